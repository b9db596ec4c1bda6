"""The base class of operators: their common fields, and their descriptions of themselves for the planner.

A subclass overrides what differs. The defaults describe an operator that Spark runs natively, row by row, and
that keeps no state.

The origins of a column are the source columns from which it is made. Conditions and functions that only
decide whether a record exists do not count. Names are lower case, as Spark compares them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar

from flowcore.api.attributes import OperatorAttributes
from flowcore.api.connectors import KafkaTopic
from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.expressions import Expression
from flowcore.watermarks.strategies import WatermarkStrategy

__all__ = [
    "KeptState",
    "Operator",
    "Origins",
    "trace",
    "trace_each",
    "trace_expressions",
    "trace_pairs",
    "trace_to_all",
]

Origins = Mapping[str, frozenset[tuple[str, str]]]
"""By column: pairs of a source's name and one of the source's columns."""


def trace(inputs: Sequence[Origins], columns: Iterable[str]) -> frozenset[tuple[str, str]]:
    """The origins of several columns together, whichever input they are from."""
    nothing: frozenset[tuple[str, str]] = frozenset()
    return nothing.union(*(each.get(column.lower(), nothing) for column in columns for each in inputs))


def trace_each(inputs: Sequence[Origins], columns: Iterable[str]) -> Origins:
    """The origins of columns that are passed on unchanged."""
    return {column.lower(): trace(inputs, [column]) for column in columns}


def trace_to_all(inputs: Sequence[Origins], columns: Iterable[str], read: Iterable[str]) -> Origins:
    """The origins of columns that are each made of everything that is read."""
    return dict.fromkeys(map(str.lower, columns), trace(inputs, read))


def trace_expressions(inputs: Sequence[Origins], expressions: Iterable[tuple[str, Expression]]) -> Origins:
    """The origins of ``(name, expression)`` columns."""
    return {name.lower(): trace(inputs, expression.columns) for name, expression in expressions}


def trace_pairs(inputs: Sequence[Origins], on: Iterable[tuple[str, str]]) -> Origins:
    """The origins of key columns, from pairs of a left and a right column."""
    return {left.lower(): trace(inputs[:1], [left]).union(trace(inputs[1:], [right])) for left, right in on}


@dataclass(frozen=True, slots=True)
class KeptState:
    """The state that an operator keeps from one batch to the next.

    Attributes:
        operator: Its name. State by key group is found by it.
        kind: The kind of operator that keeps the state, which decides its format.
        keys: The columns that the state is kept by.
        values: What is kept of each key.
        key_groups: Into how many groups keys are hashed, None where Spark keeps state by key.
        depth: The number of the exchange, from 1; None where Spark keeps state by key.
    """

    operator: str
    kind: str
    keys: tuple[str, ...]
    values: tuple[str, ...]
    key_groups: int | None = None
    depth: int | None = None

    def __str__(self) -> str:
        groups = f" in {self.key_groups} key groups" if self.key_groups is not None else ""
        place = f" of exchange {self.depth}" if self.depth else ""
        return f"{', '.join(self.values) or 'its keys'} by {', '.join(self.keys) or 'nothing'}{groups}{place}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Operator:
    """A node of a flow, compared by identity: two equal selections are two operators.

    Attributes:
        name: Unique in its flow.
        inputs: The operators it reads, left one first.
        columns: Names of its output columns, in order.
        bounded: Its input ends.
        key: The columns of which the latest record replaces earlier ones, None if records are final.
        updating: A later output with the same key replaces an earlier one.
        declared_attributes: The attributes that were declared with it, by name.
        flush_ms: How long its output may be buffered, 0 for not at all; None for the setting of the run.
    """

    keeps_state: ClassVar[bool] = False
    """It keeps state from one batch of a stream to the next."""

    takes_whole_frame: ClassVar[bool] = False
    """It sees every row of the DataFrame, so no other branch can share that frame."""

    needs_own_query: ClassVar[bool] = False
    """Over a stream, only records pass through it: neither other branches nor bad records."""

    is_row_wise: ClassVar[bool] = False
    """An input record gives at most one output record, whose key, if any, is the input's."""

    has_newest_timestamp: ClassVar[bool] = False
    """A row has the timestamp of the newest record that it was made of, which a cut carries."""

    emits_once_a_batch: ClassVar[bool] = False
    """It emits one output for each key and batch, so longer batches are enough to buffer its output."""

    name: str
    inputs: tuple[Operator, ...]
    columns: tuple[str, ...]
    bounded: bool
    key: tuple[str, ...] | None = None
    updating: bool = False
    declared_attributes: Mapping[str, bool] = field(default_factory=dict)
    flush_ms: int | None = None

    @property
    def upstream(self) -> tuple[Operator, ...]:
        """Every operator that it depends on, and itself, inputs before readers, each once."""
        found: dict[Operator, None] = {}

        def visit(node: Operator) -> None:
            if node not in found:
                for parent in node.inputs:
                    visit(parent)
                found[node] = None

        visit(self)
        return tuple(found)

    @property
    def live_sources(self) -> tuple[Operator, ...]:
        """The unbounded sources that it depends on, each once."""
        return tuple(node for node in self.upstream if not node.inputs and not node.bounded)

    @property
    def topic(self) -> KafkaTopic | None:
        """The Kafka topic that a source reads or a sink writes, None for anything else."""
        return None

    @property
    def watermark(self) -> WatermarkStrategy | None:
        """The strategy for watermarks from its records' timestamps, if it has one."""
        return None

    def attributes(self) -> OperatorAttributes:
        """Its attributes: declared, else following from the operator, else the safe defaults."""
        own = self.own_attributes()
        known = {**own, **self.declared_attributes}
        # A declaration cannot revoke that there is nothing to emit before the end.
        at_end = known.get("output_only_at_end", False) or own.get("output_only_at_end", False)
        return OperatorAttributes(**{**known, "output_only_at_end": at_end})

    def own_attributes(self) -> Mapping[str, bool]:
        """The attributes that follow from the operator itself; all of them for Spark's own operators."""
        return {
            "output_only_at_end": False,
            "output_on_checkpoint": False,
            "output_value_stored": False,
            "input_record_stored": False,
            "output_idempotent": self.updating and self.key is not None,
        }

    def undeclared_attributes(self) -> tuple[str, ...]:
        """The attributes that were not declared and have their safe default."""
        known = {*self.own_attributes(), *self.declared_attributes}
        return tuple(each.name for each in fields(OperatorAttributes) if each.name not in known)

    def describe(self) -> str:
        """What it does, in one line without names of operators."""
        return type(self).__name__.lower()

    def reads(self, used: Collection[str]) -> Collection[str]:
        """The columns that it reads of its inputs; ``used`` are those used of its output, in lower case."""
        return used

    def columns_read(self, used: Collection[str]) -> frozenset[str]:
        return frozenset(map(str.lower, self.reads(used)))

    def lineage(self, known: Mapping[Operator, Origins]) -> Origins:
        """The source columns that each output column is made of, from those of its inputs."""
        return trace_each(self.origins(known), self.columns)

    def origins(self, known: Mapping[Operator, Origins]) -> Sequence[Origins]:
        return [known[parent] for parent in self.inputs]

    def types(self) -> Mapping[str, str]:
        """The types of its columns as Spark DDL, by name in lower case.

        Only those that declarations say for certain. The others are known when Spark runs.
        """
        return {}

    def passed_types(self, columns: Iterable[str]) -> Mapping[str, str]:
        """The types of columns that it passes on from its first input unchanged."""
        known = self.inputs[0].types()
        return {name: known[name] for name in map(str.lower, columns) if name in known}

    def compiled(self) -> Decision:
        """In which form it runs."""
        return Decision("native", ("Spark has an expression for it",))

    def emission(self) -> Decision:
        """When it emits."""
        if self.declared_attributes.get("output_only_at_end"):
            return Decision("at the end of input", ("it declares output_only_at_end",))
        return self.own_emission()

    def own_emission(self) -> Decision:
        """When it emits, if nothing is declared about that."""
        return Decision("as input comes", ("it does not declare output_only_at_end",))

    def late_records(self) -> Decision | None:
        """How late records are handled, None where no record is late."""
        return None

    def alignment(self) -> Decision | None:
        """How the partitions of a source are aligned, None if they are not."""
        return None

    def kept_state(self, key_groups: int) -> KeptState | None:  # noqa: ARG002 - for operators that use them
        """The state that it keeps from batch to batch of a stream, with this number of key groups."""
        return None

    def placed_state(self, key_groups: int) -> Decision | None:  # noqa: ARG002 - for operators that use them
        """In how many key groups a live query keeps its state, None where it keeps none by key group."""
        return None

    def unbounded_state(self) -> Decision | None:
        """Why its state in a live query grows with every new key; None if it does not."""
        return None

    def realtime_obstacles(self) -> Iterator[Obstacle]:
        """The reasons, in the operator itself, why its query cannot run in Spark's real-time mode."""
        yield from ()

    @property
    def has_timestamps(self) -> bool:
        """Each of its output records has the timestamp of an input record, or one of its own."""
        return True

    @property
    def keeps_timestamps(self) -> bool:
        """Each of its output records has its place in event time."""
        return self.has_timestamps

    @property
    def repeats_records(self) -> bool:
        """Several of its output records may be made of one source record."""
        return False

    @property
    def needs_timestamps(self) -> bool:
        """Each of its input records must have a timestamp."""
        return False

    @property
    def emits_without_input(self) -> bool:
        """It may emit because processing time has passed."""
        return False

    @property
    def calls_user_functions(self) -> bool:
        """It calls Python functions of the user with single records, groups or batches."""
        return False

    @property
    def emits_batches(self) -> bool:
        """It emits Arrow batches, which cannot be changed, instead of records."""
        return False

    @property
    def keeps_keys_apart(self) -> bool:
        """An input record gives at most one output record, with the same key."""
        return self.is_row_wise and self.key is not None

    @property
    def buffer_key(self) -> tuple[str, ...] | None:
        """The columns of which a buffer keeps the latest output.

        They are columns of the output; of a process function, of its input. Empty where there is one output
        for everything, None if nothing says which output replaces which.
        """
        return self.key

    def flush_obstacle(self) -> Obstacle | None:
        """Why its output is never buffered, whatever the settings are; None if it may be."""
        return Obstacle("it emits what it reads, so its input is buffered instead")

    def checkpoint_obstacle(self) -> Obstacle | None:
        """Why it cannot emit what it keeps back because of a checkpoint; None if it can, or keeps nothing."""
        return None

    def replacement_obstacle(self) -> Obstacle | None:
        """Why a later output does not replace an earlier one, None if it does."""
        if not self.attributes().output_idempotent:
            return Obstacle(
                "its output does not replace earlier output (output_idempotent)",
                "declare it with attributes=OperatorAttributesBuilder().set_output_idempotent(True), if so, "
                "or is_output_idempotent = True on its function",
            )
        if self.buffer_key is None:
            return Obstacle(
                "no key says which output replaces which, and it is not made in one place",
                "use process(by=...)",
            )
        return None

    def key_passed_by(self, passes: Sequence[str]) -> tuple[str, ...] | None:
        """Its key downstream of a function that passes these columns; None if a key column is lost."""
        if self.key is None:
            return None
        passed = {column.lower(): column for column in passes}
        key = tuple(passed[column.lower()] for column in self.key if column.lower() in passed)
        return key if len(key) == len(self.key) else None
