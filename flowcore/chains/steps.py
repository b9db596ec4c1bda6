"""Steps: which Python functions run one after another on each record, and who copies what for whom?

A plain description, made where the flow is planned and sent to the worker. It knows no flow and no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

__all__ = ["ChainSpec", "Copy", "Kind", "Receiver", "Record", "Step"]

Copy = Literal["reuse", "shallow", "deep"]
"""The very object; a new record of the same values; a record that shares nothing that can be changed."""

Kind = Literal["map", "filter", "flat_map", "map_batches", "process"]

Record = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Step:
    """One operator of a chain.

    Attributes:
        name: The operator's name, for errors.
        kind: How its function is called: with a record (``map``, ``filter``, ``flat_map``) or with an Arrow
            batch (``map_batches``). A ``process`` is a head that is called by key groups, and not here: its
            outputs are the chain's input.
        function: The user's. One with ``open`` and ``close`` is opened before its first call in a task, and
            closed after the last.
        schema: What it emits; columns that a record has beside these are dropped where it becomes a row.
        receivers: The steps behind it, each with how it gets what this one emits.
        outlet: What it emits also leaves the chain here, None if it does not.
        outlet_schema: The columns of it that leave the chain, None for all.
        outlet_copy: How it leaves; records wait there until their batch is complete.
        stores_output: It may keep or change what it has emitted.
        stores_input: It may keep what it has received.
    """

    name: str
    kind: Kind
    function: Callable[..., Any]
    schema: pa.Schema
    receivers: tuple[Receiver, ...] = ()
    outlet: int | None = None
    outlet_schema: pa.Schema | None = None
    outlet_copy: Copy = "reuse"
    stores_output: bool = True
    stores_input: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Receiver:
    """A step behind another, and how it gets a record."""

    step: Step
    copy: Copy = "reuse"


@dataclass(frozen=True, slots=True, eq=False)
class ChainSpec:
    """A chain: a tree of steps over one input.

    Attributes:
        schema: The columns of its input.
        head: The step that reads the input, whose records nobody else has.
    """

    schema: pa.Schema
    head: Step

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every step, senders before receivers."""

        def visit(step: Step) -> Iterator[Step]:
            yield step
            for receiver in step.receivers:
                yield from visit(receiver.step)

        return tuple(visit(self.head))
