"""`Stream.aggregate` by key group: a window without end for each key, which emits at each change.

It has a time to live, or another operator upstream or downstream keeps state by key group.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from flowcore.api import window_checks
from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.window_aggregates import AggregatePlace, parse_window_aggregates
from flowcore.api.window_operator import Window
from flowcore.durations import show_ms
from flowcore.windows import GlobalWindows, WindowAggregate, WindowConfig
from flowcore.windows.built_in import BuiltIns
from flowcore.windows.triggers import Count

__all__ = ["KeyedAggregate", "build_keyed_aggregate"]

_WITH_TTL = AggregatePlace("groups with ttl=", "a group", "aggregate", "leave ttl= out")
_BESIDE_STATE = AggregatePlace(
    "groups upstream or downstream of other operators with state",
    "a group",
    "aggregate",
    "cut the flow between them with .through('topic')",
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KeyedAggregate(Window):
    """One row per distinct ``by``, the row again at each change; a group without records may expire.

    Its columns are those of ``by`` and those of its values.
    """

    keeps_timestamps = False
    has_newest_timestamp: ClassVar[bool] = True

    def own_attributes(self) -> Mapping[str, bool]:
        """A later row of a group replaces the earlier one, whatever the functions are."""
        return {**Window.own_attributes(self), "output_idempotent": True}

    def describe(self) -> str:
        text = f"{self.state_values()} by {', '.join(self.by) or 'nothing'}, emitted at each change"
        if self.config.ttl_ms is None:
            return text
        return f"{text}, kept {show_ms(self.config.ttl_ms)} after the last record"

    def state_values(self) -> str:
        return f"aggregate {', '.join(f'{text} as {name}' for name, text in self.sql)}"

    def compiled(self) -> Decision:
        if self.config.ttl_ms is None:
            why = "Spark's own aggregate shares no query with the operators with state around it"
            return Decision("key-group", (why,))
        why = "Spark's own aggregate has no time to live"
        return Decision("key-group", (why,), (f"leave ttl= of {self.name} out",))

    def own_emission(self) -> Decision:
        return Decision("at each change", ("its input has no end to wait for",))

    def unbounded_state(self) -> Decision | None:
        if self.config.ttl_ms is not None:
            return self._unbounded_values()
        if not self.by:
            why = f"{self.kept_values} keeps each value, and removes none"
            return Decision("unbounded", (why,), ("use windows that end",)) if self.kept_values else None
        change = f"declare ttl=, or use windows by {', '.join(self.by)}"
        return Decision("unbounded", ("it keeps a group for each key, and removes none",), (change,))

    def realtime_obstacles(self) -> Iterator[Obstacle]:
        if self.config.ttl_ms is None:
            yield Obstacle(f"{self.name} keeps its state by key group, in Python workers")
            return
        yield Obstacle(
            f"{self.name} has a time to live, so that it keeps its state by key group, in Python workers",
            f"leave ttl= of {self.name} out",
        )

    @property
    def emits_without_input(self) -> bool:
        """Without a time to live nothing is due."""
        return self.config.ttl_ms is not None

    @property
    def calls_user_functions(self) -> bool:
        return False


def build_keyed_aggregate(
    fields: Mapping[str, Any], keys: tuple[str, ...], aggregates: Mapping[str, str], ttl_ms: int | None
) -> KeyedAggregate:
    """Build the operator.

    Args:
        fields: The fields of any operator.
        keys: The columns to group by.
        aggregates: Output column to one Spark SQL aggregate over any row expressions.
        ttl_ms: How long after its last record a group is kept; None for ever.

    Raises:
        PlanError: The input is bounded, or a text is not one known aggregate.
    """
    (node,), name = fields["inputs"], fields["name"]
    window_checks.require_unbounded_for_ttl(node, name)
    found = parse_window_aggregates(node, name, aggregates, _BESIDE_STATE if ttl_ms is None else _WITH_TTL)
    config = WindowConfig(
        assigner=GlobalWindows(), function=WindowAggregate(BuiltIns(found.columns)), trigger=Count(1),
        ttl_ms=ttl_ms, newest_timestamp=True,
    )  # fmt: skip
    return KeyedAggregate(
        **fields, by=keys, config=config, uses=found.uses, computed=found.computed, values=tuple(aggregates),
        sql=tuple(aggregates.items()),
    )  # fmt: skip
