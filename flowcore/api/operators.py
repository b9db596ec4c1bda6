"""Operators: the nodes of a flow, as plain data.

What a node means to Spark is told in `flowcore.spark`; what it means to a plan in
`flowcore.planner`. Nodes compare by identity: two equal selections are two operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flowcore.api.connectors import KafkaTopic, Sink, Source
from flowcore.api.expressions import Expression
from flowcore.api.functions import promises
from flowcore.api.grouping import SideAggregate
from flowcore.api.idempotent import not_idempotent
from flowcore.api.node import Node
from flowcore.api.schema import Schema
from flowcore.api.stateful import KeyedProcess, SideOutput, Window

__all__ = [
    "Aggregate",
    "Apply",
    "ChainOperator",
    "CoGroup",
    "Filter",
    "FlatMap",
    "Join",
    "JoinType",
    "KeyedProcess",
    "Map",
    "MapBatches",
    "Operator",
    "PythonOperator",
    "Read",
    "Select",
    "SideOutput",
    "StatefulOperator",
    "Union",
    "Where",
    "Window",
    "WithColumns",
    "Write",
    "topic_of",
    "upstream",
]

JoinType = Literal["inner", "left", "right", "full", "semi", "anti"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Read(Node):
    """A source."""

    source: Source
    schema: Schema


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Select(Node):
    """Exactly these columns: ``(name, expression)``."""

    expressions: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WithColumns(Node):
    """All input columns and these: ``(name, expression)``."""

    expressions: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Where(Node):
    """The records for which the condition is true."""

    condition: Expression


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Aggregate(Node):
    """One row per distinct ``by``; on unbounded input, the row again at each change."""

    by: tuple[str, ...]
    aggregates: tuple[tuple[str, Expression], ...]

    def known(self) -> Mapping[str, bool]:
        """Over bounded input, it puts out at its end; else later rows replace, as its functions say."""
        replaces = self.bounded or not any(not_idempotent(each.text) for _, each in self.aggregates)
        return {**Node.known(self), "output_only_at_end": self.bounded, "output_idempotent": replaces}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Join(Node):
    """An equi-join: ``on`` pairs a left column with a right one, which is not in the output."""

    on: tuple[tuple[str, str], ...]
    how: JoinType


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CoGroup(Node):
    """One row per distinct key of two bounded inputs, null a key like others.

    Attributes:
        on: Pairs of a left column, which gives the output its name, and the right one.
        aggregates: Of the records that either side has for the key; one may have none.
    """

    on: tuple[tuple[str, str], ...]
    aggregates: tuple[tuple[str, SideAggregate], ...]

    def known(self) -> Mapping[str, bool]:
        """A key has all its records when both inputs have ended."""
        return {**Node.known(self), "output_only_at_end": True, "output_idempotent": True}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Union(Node):
    """All records of all inputs, columns matched by name."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Apply(Node):
    """Any function from a DataFrame to a DataFrame."""

    function: Callable[[Any], Any]
    realtime: bool

    def known(self) -> Mapping[str, bool]:
        """Nothing."""
        return {}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Python(Node):
    """A Python function.

    Attributes:
        function: What is called.
        uses: The input columns that it reads, as the input spells them; None for all.
        passes: The columns that each record it puts out has from the record it is made of, unchanged.
    """

    function: Callable[[Any], Any]
    uses: tuple[str, ...] | None = None
    passes: tuple[str, ...] = ()

    def known(self) -> Mapping[str, bool]:
        """What the function declares; the operator itself keeps no record."""
        return {
            "output_only_at_end": False,
            "output_on_checkpoint": False,
            "input_record_stored": False,
            **promises(self.function, self.name),
        }


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Map(_Python):
    """One record from each: ``dict -> dict``."""

    schema: Schema


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Filter(_Python):
    """The records for which the function returns true, as they are: ``dict -> bool``."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FlatMap(_Python):
    """Any number of records from each: ``dict -> Iterable[dict]``."""

    schema: Schema


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MapBatches(_Python):
    """Arrow record batches: ``RecordBatch -> RecordBatch``, with any number of rows."""

    schema: Schema


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Write(Node):
    """A sink."""

    sink: Sink


PythonOperator = Map | Filter | FlatMap | MapBatches
"""What runs in a Python worker, record by record or batch by batch."""

ChainOperator = PythonOperator | KeyedProcess
"""What can be in a chain: a keyed process as its head, since records come to it by key."""

StatefulOperator = Window | KeyedProcess
"""What keeps state by key group."""

Operator = (
    Read | Select | WithColumns | Where | Aggregate | Join | CoGroup | Union | Apply | PythonOperator
    | StatefulOperator | SideOutput | Write
)  # fmt: skip


def upstream(*ends: Operator) -> Iterator[Operator]:
    """Every operator that the given ones depend on, and these, inputs before readers, each once."""
    seen: set[int] = set()

    def visit(nodes: Iterable[Operator]) -> Iterator[Operator]:
        for node in nodes:
            if id(node) not in seen:
                seen.add(id(node))
                yield from visit(node.inputs)
                yield node

    return visit(ends)


def topic_of(operator: Operator) -> KafkaTopic | None:
    """The topic that a source or sink is, None for anything else."""
    match operator:
        case Read(source=KafkaTopic() as topic) | Write(sink=KafkaTopic() as topic):
            return topic
        case _:
            return None
