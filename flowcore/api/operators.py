"""The operators of a flow, as plain data.

Here are those that Spark runs itself; the others are in `flowcore.api.python_operators`,
`flowcore.api.stateful` and `flowcore.api.window_operator`. `flowcore.spark` compiles them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flowcore.api.arrival_joins import JoinLatest, JoinRegular
from flowcore.api.co_groups import SideAggregate
from flowcore.api.connector_operators import Read, Write
from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.deduplication import Deduplicate
from flowcore.api.event_time_operator import WithEventTime, find_timed
from flowcore.api.expression_types import find_types
from flowcore.api.expressions import Expression, find_not_idempotent
from flowcore.api.functions import name_of
from flowcore.api.history_operator import WithHistory
from flowcore.api.node import (
    KeptState,
    Operator,
    Origins,
    trace,
    trace_each,
    trace_expressions,
    trace_pairs,
    trace_to_all,
)
from flowcore.api.python_operators import Filter, FlatMap, Map, MapBatches, PythonOperator, PythonTransform
from flowcore.api.ranking import Ranked, RetractingTopN
from flowcore.api.retraction import ChangelogNormalize, DistinctAggregate, RetractingAggregate
from flowcore.api.sorting import EventTimeSort
from flowcore.api.stateful import KeyedProcess, SideOutput, StatefulOperator
from flowcore.api.stream_joins import (
    JoinAsOf,
    JoinInterval,
    JoinWindow,
    JoinWithLateness,
    StreamJoin,
    join_types,
)
from flowcore.api.window_operator import Window

__all__ = [
    "Aggregate",
    "Apply",
    "ChainOperator",
    "ChangelogNormalize",
    "CoGroup",
    "Deduplicate",
    "DistinctAggregate",
    "Drop",
    "EventTimeSort",
    "Filter",
    "FlatMap",
    "Join",
    "JoinAsOf",
    "JoinInterval",
    "JoinLatest",
    "JoinRegular",
    "JoinType",
    "JoinWindow",
    "JoinWithLateness",
    "KeyedProcess",
    "Map",
    "MapBatches",
    "Operator",
    "Projection",
    "PythonOperator",
    "PythonTransform",
    "Ranked",
    "Read",
    "RetractingAggregate",
    "RetractingTopN",
    "Select",
    "SideOutput",
    "StatefulOperator",
    "StreamJoin",
    "Union",
    "Where",
    "Window",
    "WithColumns",
    "WithEventTime",
    "WithHistory",
    "Write",
    "find_timed",
]

JoinType = Literal["inner", "left", "right", "full", "semi", "anti"]

ChainOperator = PythonOperator | KeyedProcess
"""What can be in a chain: a keyed process as its head, since records come to it by key."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Projection(Operator):
    """Computes columns: ``(name, expression)``; a base class."""

    expressions: tuple[tuple[str, Expression], ...]

    @property
    def repeats_records(self) -> bool:
        return any(expression.generates for _, expression in self.expressions)

    @property
    def keeps_keys_apart(self) -> bool:
        return self.key is not None and not self.repeats_records


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Select(Projection):
    """Exactly these columns."""

    def describe(self) -> str:
        return f"select {_named(self.expressions)}"

    def reads(self, used: Collection[str]) -> Collection[str]:
        return _needed(self.expressions, used)

    def lineage(self, known: Mapping[Operator, Origins]) -> Origins:
        return trace_expressions(self.origins(known), self.expressions)

    def types(self) -> Mapping[str, str]:
        return find_types(self.expressions, self.inputs[0].types())


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WithColumns(Projection):
    """All input columns and these."""

    def describe(self) -> str:
        return f"with {_named(self.expressions)}"

    def reads(self, used: Collection[str]) -> Collection[str]:
        passed = set(used) - {name.lower() for name, _ in self.expressions}
        return _needed(self.expressions, used) | passed

    def lineage(self, known: Mapping[Operator, Origins]) -> Origins:
        inputs = self.origins(known)
        return {**inputs[0], **trace_expressions(inputs, self.expressions)}

    def types(self) -> Mapping[str, str]:
        known, made = self.inputs[0].types(), {name.lower() for name, _ in self.expressions}
        passed = {name: kind for name, kind in known.items() if name not in made}
        return {**passed, **find_types(self.expressions, known)}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Drop(Operator):
    """All input columns but these."""

    is_row_wise: ClassVar[bool] = True

    dropped: tuple[str, ...]

    def describe(self) -> str:
        return f"drop {', '.join(self.dropped)}"

    def types(self) -> Mapping[str, str]:
        return self.passed_types(self.columns)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Where(Operator):
    """The records for which the condition is true."""

    is_row_wise: ClassVar[bool] = True

    condition: Expression

    def describe(self) -> str:
        return f"where {self.condition.text}"

    def reads(self, used: Collection[str]) -> Collection[str]:
        return {*used, *self.condition.columns}

    def types(self) -> Mapping[str, str]:
        return self.passed_types(self.columns)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Aggregate(Operator):
    """One row per distinct ``by``; on unbounded input, the row again at each change."""

    keeps_state: ClassVar[bool] = True
    needs_own_query: ClassVar[bool] = True
    keeps_timestamps = False
    has_newest_timestamp: ClassVar[bool] = True
    emits_once_a_batch: ClassVar[bool] = True

    by: tuple[str, ...]
    aggregates: tuple[tuple[str, Expression], ...]

    def own_attributes(self) -> Mapping[str, bool]:
        replaces = self.bounded or not any(find_not_idempotent(each.text) for _, each in self.aggregates)
        known = Operator.own_attributes(self)
        return {**known, "output_only_at_end": self.bounded, "output_idempotent": replaces}

    def describe(self) -> str:
        values = ", ".join(f"{e.text} as {name}" for name, e in self.aggregates)
        when = "at the end of input" if self.bounded else "at each change"
        return f"aggregate {values} by {', '.join(self.by) or 'nothing'}, emitted {when}"

    def reads(self, used: Collection[str]) -> Collection[str]:  # noqa: ARG002 - all is computed
        return {*self.by, *(column for _, expression in self.aggregates for column in expression.columns)}

    def lineage(self, known: Mapping[Operator, Origins]) -> Origins:
        inputs = self.origins(known)
        return {**trace_each(inputs, self.by), **trace_expressions(inputs, self.aggregates)}

    def types(self) -> Mapping[str, str]:
        return {**find_types(self.aggregates, {}), **self.passed_types(self.by)}

    def own_emission(self) -> Decision:
        if self.bounded:
            return Decision("at the end of input", ("a group is complete when its input has ended",))
        return Decision("at each change", ("its input has no end to wait for",))

    def kept_state(self, key_groups: int) -> KeptState:  # noqa: ARG002 - Spark keeps it by key
        values = tuple(expression.text for _, expression in self.aggregates)
        return KeptState(self.name, "aggregate", self.by, values)

    def unbounded_state(self) -> Decision | None:
        if self.bounded or not self.by:
            return None
        change = f"declare ttl=, or use windows by {', '.join(self.by)}"
        return Decision("unbounded", ("it keeps a group for each key, and removes none",), (change,))

    def flush_obstacle(self) -> Obstacle | None:
        found = self.replacement_obstacle()
        names = dict.fromkeys(name for _, each in self.aggregates for name in find_not_idempotent(each.text))
        if found is None or self.attributes().output_idempotent or not names:
            return found
        return Obstacle(
            f"of {', '.join(names)} it is not known that a later result replaces earlier ones",
            "declare it with attributes=OperatorAttributesBuilder().set_output_idempotent(True), if so",
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Join(Operator):
    """An equi-join: ``on`` pairs a left column with a right one, which is not in the output."""

    on: tuple[tuple[str, str], ...]
    how: JoinType

    def describe(self) -> str:
        return f"{self.how} join on {_pairs(self.on)}"

    def reads(self, used: Collection[str]) -> Collection[str]:
        return {*used, *(column for pair in self.on for column in pair)}

    def lineage(self, known: Mapping[Operator, Origins]) -> Origins:
        left, right = self.origins(known)
        # A row without a left side takes its key from the right side.
        keys = trace_pairs([left, right] if self.how in ("right", "full") else [left], self.on)
        return {**({} if self.how in ("semi", "anti") else right), **left, **keys}

    def types(self) -> Mapping[str, str]:
        return join_types(self)

    @property
    def keeps_keys_apart(self) -> bool:
        return self.how in ("semi", "anti")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CoGroup(Operator):
    """One row per distinct key of two bounded inputs, null a key like others.

    Attributes:
        on: Pairs of a left column, which gives the output its name, and the right one.
        aggregates: Of the records that either side has for the key; one may have none.
    """

    on: tuple[tuple[str, str], ...]
    aggregates: tuple[tuple[str, SideAggregate], ...]

    def own_attributes(self) -> Mapping[str, bool]:
        return {**Operator.own_attributes(self), "output_only_at_end": True, "output_idempotent": True}

    def describe(self) -> str:
        values = ", ".join(f"{e.expression.text} as {name}" for name, e in self.aggregates)
        return f"co-group on {_pairs(self.on)}, {values}, emitted at the end of input"

    def reads(self, used: Collection[str]) -> Collection[str]:  # noqa: ARG002 - all is computed
        read = (column for _, aggregate in self.aggregates for column in aggregate.columns)
        return {*read, *(column for pair in self.on for column in pair)}

    def lineage(self, known: Mapping[Operator, Origins]) -> Origins:
        left, right = self.origins(known)
        sides = {"left": [left], "right": [right]}
        made = {name.lower(): trace(sides[each.side], each.columns) for name, each in self.aggregates}
        return {**trace_pairs([left, right], self.on), **made}

    def own_emission(self) -> Decision:
        return Decision("at the end of input", ("a key has all its records when both inputs have ended",))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Union(Operator):
    """All records of all inputs, columns matched by name."""

    @property
    def repeats_records(self) -> bool:
        return True

    def describe(self) -> str:
        return "union"

    def types(self) -> Mapping[str, str]:
        first, *others = (each.types() for each in self.inputs)
        return {name: kind for name, kind in first.items() if all(o.get(name) == kind for o in others)}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Apply(Operator):
    """Any function from a DataFrame to a DataFrame."""

    takes_whole_frame: ClassVar[bool] = True
    needs_own_query: ClassVar[bool] = True
    has_timestamps = False

    function: Callable[[Any], Any]
    realtime: bool

    def own_attributes(self) -> Mapping[str, bool]:
        return {}

    def describe(self) -> str:
        return f"apply {name_of(self.function)}"

    def reads(self, used: Collection[str]) -> Collection[str]:  # noqa: ARG002 - it may read all
        return self.inputs[0].columns

    def lineage(self, known: Mapping[Operator, Origins]) -> Origins:
        return trace_to_all(self.origins(known), self.columns, self.inputs[0].columns)

    def compiled(self) -> Decision:
        return Decision("dataframe function", ("it is called once, with the DataFrame",))

    def checkpoint_obstacle(self) -> Obstacle | None:
        return Obstacle("Spark decides when a DataFrame function emits")

    def realtime_obstacles(self) -> Iterator[Obstacle]:
        if not self.realtime:
            yield Obstacle(
                f"{self.name} is a DataFrame function that does not declare realtime=True",
                f"declare realtime=True on {self.name}, if Spark's real-time mode allows what it does",
            )


def _named(expressions: Iterable[tuple[str, Expression]]) -> str:
    return ", ".join(f"{e.text} as {name}" if e.text != name else name for name, e in expressions)


def _pairs(on: Iterable[tuple[str, str]]) -> str:
    return ", ".join(left if left == right else f"{left} = {right}" for left, right in on)


def _needed(expressions: Iterable[tuple[str, Expression]], used: Collection[str]) -> set[str]:
    """What the expressions read whose columns are used."""
    # A generator (explode) decides how many rows there are, whether its column is read or not.
    kept = (each for name, each in expressions if name.lower() in used or each.generates)
    return {column for expression in kept for column in expression.columns}
