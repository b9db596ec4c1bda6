"""Operators: the nodes of a flow, as plain data.

What a node means to Spark is told in `flowcore.spark`; what it means to a plan in
`flowcore.planner`. Nodes compare by identity: two equal selections are two operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from flowcore.graph.connectors import KafkaTopic, Sink, Source
from flowcore.graph.expressions import Expression
from flowcore.graph.schema import Schema

__all__ = [
    "Aggregate",
    "Apply",
    "Join",
    "JoinType",
    "Operator",
    "Read",
    "Select",
    "Union",
    "Where",
    "WithColumns",
    "Write",
    "topic_of",
    "upstream",
]

JoinType = Literal["inner", "left", "right", "full", "semi", "anti"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Node:
    """What every operator has.

    Attributes:
        name: Unique in its flow.
        inputs: The operators it reads, left one first.
        columns: Names of its output columns, in order.
        bounded: Its input ends.
        key: The columns of which the latest record replaces earlier ones, None if there are none.
        updating: A later output with the same key replaces an earlier one.
    """

    name: str
    inputs: tuple[Operator, ...]
    columns: tuple[str, ...]
    bounded: bool
    key: tuple[str, ...] | None = None
    updating: bool = False


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Read(_Node):
    """A source."""

    source: Source
    schema: Schema


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Select(_Node):
    """Exactly these columns: ``(name, expression)``."""

    expressions: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WithColumns(_Node):
    """All input columns and these: ``(name, expression)``."""

    expressions: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Where(_Node):
    """The records for which the condition is true."""

    condition: Expression


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Aggregate(_Node):
    """One row per distinct ``by``; on unbounded input, the row again at each change."""

    by: tuple[str, ...]
    aggregates: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Join(_Node):
    """An equi-join: ``on`` pairs a left column with a right one, which is not in the output."""

    on: tuple[tuple[str, str], ...]
    how: JoinType


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Union(_Node):
    """All records of all inputs, columns matched by name."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Apply(_Node):
    """Any function from a DataFrame to a DataFrame."""

    function: Callable[[Any], Any]
    realtime: bool


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Write(_Node):
    """A sink."""

    sink: Sink


Operator = Read | Select | WithColumns | Where | Aggregate | Join | Union | Apply | Write


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
