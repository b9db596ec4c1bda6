"""Operators that keep state by key group, their side outputs, and keyed processes.

Windows are in `flowcore.api.window_operator`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.expressions import Expression
from flowcore.api.functions import name_of, promises
from flowcore.api.node import KeptState, Operator, Origins, trace_each, trace_to_all
from flowcore.api.schema import Schema
from flowcore.errors import PlanError

__all__ = [
    "LATE_OUTPUT",
    "KeyedProcess",
    "SideOutput",
    "StatefulOperator",
    "find_side_columns",
    "find_side_outputs",
    "key_of",
]

LATE_OUTPUT = "late"
"""The side output of records that came too late for all their windows."""


class StatefulOperator(Operator):
    """An operator with state by key group: a window or a keyed process.

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

    by: tuple[str, ...]
    uses: tuple[str, ...]
    timestamp: Expression | None

    def key_of(self, values: tuple[Any, ...]) -> Any:
        """The key as functions see it, from the values of the columns of ``by``."""
        return key_of(values)

    def state_values(self) -> str:
        """The part of the declaration that decides what is kept."""
        raise NotImplementedError

    def kept_state(self, key_groups: int) -> KeptState:
        return KeptState(self.name, self.state_kind, self.by, (self.state_values(),), key_groups)

    def placed_state(self, key_groups: int) -> Decision:
        groups = f"{key_groups} key group{'s' * (key_groups != 1)}"
        why = f"state.key-groups is {key_groups}, and a checkpoint keeps the number it began with"
        keys = () if self.by else ("it has no key, so that one of them has everything",)
        return Decision(groups, (why, *keys))

    def realtime_obstacles(self) -> Iterator[Obstacle]:
        yield Obstacle(
            f"{self.name} keeps its state by key group, in Python workers",
            f"use aggregate(by=...) instead of {self.name}, if its windows and timers are not needed",
        )

    def flush_obstacle(self) -> Obstacle | None:
        return self.replacement_obstacle()

    def checkpoint_obstacle(self) -> Obstacle | None:
        return self.flush_obstacle() and Obstacle("its windows and timers decide when it emits")

    def reads(self, used: Collection[str]) -> Collection[str]:  # noqa: ARG002 - results are made, not passed on
        return {*self.by, *self.uses, *(self.timestamp.columns if self.timestamp is not None else ())}

    def side_outputs_by_name(self) -> Mapping[str, tuple[tuple[str, ...], Schema | None]]:
        """The columns of each side output, and their types where they do not follow from the input's."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KeyedProcess(StatefulOperator):
    """A Python function with state and timers for each key.

    Its columns are those of its schema.

    Attributes:
        function: A `flowcore.process.KeyedProcessFunction`.
        schema: The columns of its output records.
        side_outputs: ``(name, schema)`` of its side outputs.
    """

    kind: ClassVar[Literal["process"]] = "process"
    state_kind: ClassVar[str] = "process"

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
class SideOutput(Operator):
    """What a window or a keyed process, its only input, emits beside its results.

    Attributes:
        output: Its name; `LATE_OUTPUT` for late records, which have the columns of the window's input.
        schema: The types of its columns, None for late records: those of the window's input.
    """

    output: str
    schema: Schema | None = None

    def describe(self) -> str:
        return f"side output {self.output}"

    def lineage(self, known: Mapping[Operator, Origins]) -> Origins:
        (sender,) = self.inputs
        inputs = sender.origins(known)
        if self.output == LATE_OUTPUT:
            return trace_each(inputs, self.columns)
        return trace_to_all(inputs, self.columns, sender.reads(()))

    def compiled(self) -> Decision:
        return Decision("with its operator", (f"it leaves {self.inputs[0].name} beside its results",))


def find_side_outputs(node: Operator, operators: Iterable[Operator]) -> list[SideOutput]:
    """The side outputs of an operator among others."""
    return [each for each in operators if isinstance(each, SideOutput) and node in each.inputs]


def find_side_columns(node: Operator, output: str) -> tuple[tuple[str, ...], Schema | None]:
    """The columns of a side output, and their types where they do not follow from the input's.

    Raises:
        PlanError: The operator has no such side output.
    """
    found = node.side_outputs_by_name() if isinstance(node, StatefulOperator) else {}
    if output not in found:
        what = f"it has {', '.join(found)}" if found else "it has none"
        msg = (
            f"operator {node.name!r} has no side output {output!r}: there would be no output; {what}; "
            "a window has one with late='side-output', a process function with side_outputs={...}"
        )
        raise PlanError(msg)
    return found[output]


def key_of(values: tuple[Any, ...]) -> Any:
    """A key as functions see it: None without columns, the value of the only one, or a tuple.

    >>> key_of(()), key_of(("a",)), key_of(("a", 1))
    (None, 'a', ('a', 1))
    """
    return values if len(values) > 1 else values[0] if values else None
