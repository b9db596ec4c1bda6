"""Operators that keep state by key group, their side outputs, and keyed processes.

Windows are in `flowcore.api.window_operator`.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.expressions import Expression
from flowcore.api.functions import name_of, promises
from flowcore.api.node import KeptState, Operator, Origins, trace_each, trace_to_all
from flowcore.api.schema import Schema
from flowcore.durations import show_ms
from flowcore.errors import PlanError
from flowcore.windows.config import LateRecords

__all__ = [
    "AGGREGATE_INSTEAD",
    "CHANGE_COLUMN",
    "IS_DELETED",
    "LATE_LEFT_OUTPUT",
    "LATE_OUTPUT",
    "LATE_RIGHT_OUTPUT",
    "KeyedProcess",
    "Reduce",
    "SideOutput",
    "StatefulOperator",
    "find_side_columns",
    "key_of",
    "late_outcome",
]

AGGREGATE_INSTEAD = "use aggregate(by=...) instead of {name}, if its windows and timers are not needed"
"""What makes real-time mode possible instead of a window or a process function."""
LATE_OUTPUT = "late"
"""The side output of records that came too late for all their windows, or for their place in an order."""
IS_DELETED = "is_deleted"
"""The last column of an operator that may delete rows it has emitted: true where it does."""
CHANGE_COLUMN = "_flowcore_change"
"""The last column of a changelog: 1 where a row is inserted, -1 where it is retracted."""
LATE_LEFT_OUTPUT, LATE_RIGHT_OUTPUT = "late_left", "late_right"
"""The side outputs of late records of the two sides of a join."""


def late_outcome(late: LateRecords, emitted: str) -> Decision:
    """What becomes of late records; ``emitted`` is what they become if they are emitted."""
    if late == "side-output":
        return Decision(emitted, ("late='side-output' is declared",))
    return Decision("dropped and counted", ("no side output is declared",), ("declare late='side-output'",))


class StatefulOperator(Operator):
    """An operator with state by key group, such as a window, a keyed process or a join of streams.

    Attributes:
        by: Columns of the key; none for one key for all. As an object, a key is None without columns,
            the value of the only one, or a tuple; see `key_of`.
        uses: The input's columns that it reads, beside ``by``.
        timestamp: Of bounded input, the time of a row: BIGINT milliseconds or TIMESTAMP. None for a
            stream, whose records have theirs, and where none is needed.
    """

    __slots__ = ()

    keeps_state: ClassVar[bool] = True
    state_kind: ClassVar[str]
    """What keeps the state, in the plan file of a checkpoint."""
    realtime_change: ClassVar[str] = ""
    """What would make real-time mode possible, with ``{name}`` for its own name; empty if nothing would."""
    without_key: ClassVar[str] = "it has no key, so that one of them has everything"
    """Where the state is kept if there is no key."""

    by: tuple[str, ...]
    uses: tuple[str, ...]
    timestamp: Expression | None

    def key_of(self, values: tuple[Any, ...]) -> Any:
        """The key as functions see it, from the values of the columns of ``by``."""
        return key_of(values)

    def state_values(self) -> str:
        """The part of the declaration that decides what is kept."""
        raise NotImplementedError

    def stored_columns(self, used: Collection[str]) -> tuple[str, ...] | None:  # noqa: ARG002 - see subclasses
        """The columns of its input that it stores of each record, in order; None if it stores no records.

        They are part of its state layout.

        Args:
            used: The columns of its output that are used, in lower case.
        """
        return None

    def trigger_kind(self) -> str | None:
        """The kind of the trigger that keeps state of each window; None if it has no windows."""
        return None

    def kept_state(self, key_groups: int) -> KeptState:
        return KeptState(self.name, self.state_kind, self.by, (self.state_values(),), key_groups)

    def placed_state(self, key_groups: int) -> Decision:
        groups = f"{key_groups} key group{'s' * (key_groups != 1)}"
        why = f"state.key-groups is {key_groups}, and a checkpoint keeps the number it began with"
        keys = () if self.by else (self.without_key,)
        return Decision(groups, (why, *keys))

    def realtime_obstacles(self) -> Iterator[Obstacle]:
        why = f"{self.name} keeps its state by key group, in Python workers"
        yield Obstacle(why, self.realtime_change.format(name=self.name))

    def flush_obstacle(self) -> Obstacle | None:
        return self.replacement_obstacle()

    def checkpoint_obstacle(self) -> Obstacle | None:
        return self.flush_obstacle() and Obstacle("its windows and timers decide when it emits")

    def reads(self, used: Collection[str]) -> Collection[str]:  # noqa: ARG002 - results are made, not passed on
        return {*self.by, *self.uses, *(self.timestamp.columns if self.timestamp is not None else ())}

    def side_outputs_by_name(self) -> Mapping[str, tuple[tuple[str, ...], Schema | None]]:
        """The columns of each side output, and their types where they do not follow from the input's."""
        return {}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KeyedProcess(StatefulOperator):
    """A Python function with state and timers for each key.

    Its columns are those of its schema.

    Attributes:
        function: A `flowcore.process.KeyedProcessFunction`.
        side_outputs: ``(name, schema)`` of its side outputs.
    """

    kind: ClassVar[Literal["process"]] = "process"
    state_kind: ClassVar[str] = "process"
    realtime_change: ClassVar[str] = AGGREGATE_INSTEAD

    by: tuple[str, ...]
    function: Any
    schema: Schema
    uses: tuple[str, ...]
    timestamp: Expression | None = None
    side_outputs: tuple[tuple[str, Schema], ...] = ()

    def own_attributes(self) -> Mapping[str, bool]:
        return promises(self.function, self.name)

    def describe(self) -> str:
        sides = ", ".join(name for name, _ in self.side_outputs)
        by = ", ".join(self.by) or "nothing"
        return f"{self.state_values()} by {by}{f', side outputs {sides}' if sides else ''}"

    def state_values(self) -> str:
        return f"process {name_of(self.function)}"

    def unbounded_state(self) -> Decision | None:
        if self.bounded or not self.by:
            return None
        why = "its function keeps what it sets of a key until it clears that, or until ttl= of the state"
        return Decision("unbounded, if states have no ttl", (why,), ("declare its states with ttl=",))

    def lineage(self, known: Mapping[Operator, Origins]) -> Origins:
        return trace_to_all(self.origins(known), self.columns, self.reads(()))

    def types(self) -> Mapping[str, str]:
        return self.schema.types

    def compiled(self) -> Decision:
        return Decision("key-group", ("a Python function keeps state and timers for each key",))

    def own_emission(self) -> Decision:
        if self.bounded:
            why = "its function sees the rows in order of time, and event time advances when they have ended"
            return Decision("as rows come and, at their end, timers are due", (why,))
        return Decision("as input comes and timers are due", ("its function decides",))

    @property
    def emits_without_input(self) -> bool:
        return True  # any call may set a timer of processing time

    @property
    def calls_user_functions(self) -> bool:
        return True

    @property
    def emits_batches(self) -> bool:
        return bool(self.function.by_batch())

    @property
    def has_timestamps(self) -> bool:
        return not self.emits_batches

    @property
    def buffer_key(self) -> tuple[str, ...]:
        return self.by

    def flush_obstacle(self) -> Obstacle | None:
        found = self.replacement_obstacle()
        if found is None and self.emits_batches:
            return Obstacle("a batch that its function returns has no one key", "process records one by one")
        return found

    def side_outputs_by_name(self) -> Mapping[str, tuple[tuple[str, ...], Schema | None]]:
        return {name: (schema.names, schema) for name, schema in self.side_outputs}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Reduce(KeyedProcess):
    """Folds the records of each key into one, by a `flowcore.process.reducing.ReducingProcess`.

    Attributes:
        fold: The user's function, which that process calls.
        ttl_ms: How long after its last record a folded record is kept; None for ever.
    """

    fold: Any
    ttl_ms: int | None = None

    def describe(self) -> str:
        kept = "" if self.ttl_ms is None else f", kept {show_ms(self.ttl_ms)} after the last record"
        return f"reduce {name_of(self.fold)} by {', '.join(self.by) or 'nothing'}{kept}"

    def unbounded_state(self) -> Decision | None:
        if self.bounded or not self.by or self.ttl_ms is not None:
            return None
        change = f"declare ttl=, if a key of {', '.join(self.by)} without records may begin anew"
        return Decision("unbounded", ("it keeps a folded record for each key, and removes none",), (change,))

    def compiled(self) -> Decision:
        return Decision("key-group", ("a Python function folds the records of each key into one",))

    def own_emission(self) -> Decision:
        return Decision("at each record", ("the folded record of its key replaces the earlier one",))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SideOutput(Operator):
    """A side output of an operator with state, which is its only input.

    Attributes:
        output: Its name; `LATE_OUTPUT` for late records of a window or a sort, `LATE_LEFT_OUTPUT` and
            `LATE_RIGHT_OUTPUT` for those of a join.
        schema: The types of its columns, None for late records: those of the operator's input.
    """

    output: str
    schema: Schema | None = None

    def describe(self) -> str:
        return f"side output {self.output}"

    def lineage(self, known: Mapping[Operator, Origins]) -> Origins:
        (sender,) = self.inputs
        inputs = sender.origins(known)
        if self.schema is None:
            side = inputs[1:] if self.output == LATE_RIGHT_OUTPUT else inputs[:1]
            return trace_each(side, self.columns)
        return trace_to_all(inputs, self.columns, sender.reads(()))

    def types(self) -> Mapping[str, str]:
        if self.schema is not None:
            return self.schema.types
        side = self.inputs[0].inputs[-1 if self.output == LATE_RIGHT_OUTPUT else 0]
        return {name: kind for name, kind in side.types().items() if name in map(str.lower, self.columns)}

    def compiled(self) -> Decision:
        return Decision("with its operator", (f"{self.inputs[0].name} emits it beside its results",))


def find_side_columns(node: Operator, output: str) -> tuple[tuple[str, ...], Schema | None]:
    """The columns of a side output, and their types where they do not follow from the input's.

    Raises:
        PlanError: The operator has no such side output.
    """
    found = node.side_outputs_by_name() if isinstance(node, StatefulOperator) else {}
    if output not in found:
        what = f"it has {', '.join(found)}" if found else "it has none"
        msg = (
            f"operator {node.name!r} has no side output {output!r}; {what}; a window, a sort or a join of "
            "streams has one with late='side-output', a process function with side_outputs={...}"
        )
        raise PlanError(msg)
    return found[output]


def key_of(values: tuple[Any, ...]) -> Any:
    """A key as functions see it: None without columns, the value of the only one, or a tuple.

    >>> key_of(()), key_of(("a",)), key_of(("a", 1))
    (None, 'a', ('a', 1))
    """
    return values if len(values) > 1 else values[0] if values else None
