"""Ranking: the first rows of each key in an order, and the newest row of each key."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.expressions import Expression
from flowcore.api.node import Operator, Origins, trace, trace_each
from flowcore.api.stateful import CHANGE_COLUMN, IS_DELETED, StatefulOperator
from flowcore.durations import show_ms

__all__ = ["Ranked", "RetractingTopN"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Ranked(StatefulOperator):
    """The first ``n`` rows of each key; without an order of columns the newest row.

    Attributes:
        order: The columns of the order, each with whether larger values come first.
        time: What makes a row newer: ``"event"``, its timestamp; ``"arrival"``. Not used with an order.
        rank: The last column, with a row's rank from 1; None if there is one row of a key.
        ttl_ms: How long after its last row a key is kept; None for ever.
    """

    state_kind: ClassVar[str] = "rank"

    by: tuple[str, ...]
    n: int
    order: tuple[tuple[str, bool], ...]
    time: Literal["event", "arrival"]
    rank: str | None
    ttl_ms: int | None = None
    timestamp: Expression | None = None
    uses: tuple[str, ...] = ()

    def own_attributes(self) -> Mapping[str, bool]:
        known = Operator.own_attributes(self)
        return {**known, "output_only_at_end": self.bounded, "output_idempotent": True}

    def describe(self) -> str:
        by = f" by {', '.join(self.by)}" if self.by else ""
        kept = "" if self.ttl_ms is None else f", kept {show_ms(self.ttl_ms)} after the last record"
        return f"{self.state_values()}{by}{kept}"

    def reads(self, used: Collection[str]) -> Collection[str]:
        return {*used, *StatefulOperator.reads(self, used), *(name for name, _ in self.order)}

    def lineage(self, known: Mapping[Operator, Origins]) -> Origins:
        inputs = self.origins(known)
        own = trace_each(inputs, self.inputs[0].columns)
        ordered = trace(inputs, (name for name, _ in self.order))
        return own if self.rank is None else {**own, self.rank.lower(): ordered}

    def types(self) -> Mapping[str, str]:
        return self.passed_types(self.inputs[0].columns)

    @property
    def keeps_timestamps(self) -> bool:
        """A row that gets another rank comes again, when later ones may have left."""
        return self.rank is None

    def state_values(self) -> str:
        if self.rank is None:
            return f"latest in order of {'event time' if self.time == 'event' else 'arrival'}"
        order = ", ".join(f"{name}{' desc' * descending}" for name, descending in self.order)
        return f"top {self.n} in order of {order}"

    def stored_columns(self, used: Collection[str]) -> tuple[str, ...]:
        used = {*used, *(name.lower() for name in self.buffer_key or ())}
        return tuple(name for name in self.inputs[0].columns if name.lower() in used)

    def unbounded_state(self) -> Decision | None:
        if self.bounded or not self.by or self.ttl_ms is not None:
            return None
        change = f"declare ttl=, if a key of {', '.join(self.by)} without records may begin anew"
        kept = "newest row" if self.rank is None else "ranked rows"
        return Decision("unbounded", (f"it keeps the {kept} of each key, and removes none",), (change,))

    def compiled(self) -> Decision:
        """``"native"``: a window function of Spark. ``"key-group"``: Python over columns, with state."""
        if self.bounded:
            return Decision("native", ("its rows are complete, and Spark can order them",))
        others = "the newest of its key" if self.rank is None else "those of its key that have a rank"
        return Decision("key-group", (f"a record is compared with {others}",))

    def own_emission(self) -> Decision:
        if self.bounded:
            return Decision("at the end of input", ("ranks are final when its input has ended",))
        what = "a rank that has another row" if self.rank is not None else "the newest row of a key"
        why = f"{what} replaces the earlier one, for many records of a batch at once"
        return Decision("at each change", (why,))

    def checkpoint_obstacle(self) -> Obstacle | None:
        return self.flush_obstacle()

    @property
    def emits_without_input(self) -> bool:
        return self.ttl_ms is not None  # its keys expire

    @property
    def needs_timestamps(self) -> bool:
        return not self.bounded and self.rank is None and self.time == "event"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RetractingTopN(Ranked):
    """The first ``n`` rows of each key among the rows of a changelog, without those taken back.

    Its last columns are ``rank`` and `IS_DELETED`, which is true where a rank has vanished.

    Attributes:
        row_key: The columns by which a row replaces an earlier one. Rows that are equal in the order are in
            ascending order of these.
    """

    state_kind: ClassVar[str] = "retracting-rank"
    has_newest_timestamp: ClassVar[bool] = True

    row_key: tuple[str, ...]

    def reads(self, used: Collection[str]) -> Collection[str]:
        own = {name.lower() for name in self.columns[-2:]}
        return {*Ranked.reads(self, {*used} - own), *self.row_key, CHANGE_COLUMN}

    def lineage(self, known: Mapping[Operator, Origins]) -> Origins:
        inputs, rank = self.origins(known), self.columns[-2]
        ordered = trace(inputs, (name for name, _ in self.order))
        return {**trace_each(inputs, self.columns[:-2]), rank.lower(): ordered}

    def types(self) -> Mapping[str, str]:
        return {**self.passed_types(self.columns[:-2]), IS_DELETED: "BOOLEAN"}

    def state_values(self) -> str:
        return f"{Ranked.state_values(self)} of a changelog"

    def stored_columns(self, used: Collection[str]) -> tuple[str, ...]:
        names = (name for name in self.columns[:-2] if name not in self.by)
        return tuple(name for name in names if name.lower() in used)

    def unbounded_state(self) -> Decision | None:
        """None: it has the rows that its changelog has, which says so."""
        return None

    def compiled(self) -> Decision:
        return Decision("key-group", ("a row that is taken back gives its rank to the next one of its key",))

    def own_emission(self) -> Decision:
        why = "a rank that has another row, or none any more, once between two control elements"
        return Decision("at each change", (why,))
