"""The description of a chain: its Python functions, their order, and the copies between them.

It is made when the query is compiled, and pickled to the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any, Literal

import pyarrow as pa

__all__ = [
    "ChainSpec", "Copy", "Receiver", "RecordDict", "Step", "StepKind", "asks_for_attributes", "owner_of",
]  # fmt: skip

Copy = Literal["reuse", "shallow", "deep"]
"""The same object; a new dict with the same values; a record that shares nothing mutable."""

StepKind = Literal["map", "filter", "flat_map", "map_batches", "process"]

RecordDict = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Step:
    """One operator of a chain.

    Attributes:
        kind: Whether its function takes a record (``map``, ``filter``, ``flat_map``) or an Arrow batch
            (``map_batches``). A ``process`` is the head of a chain; key groups call it, and its outputs are
            the chain's input.
        function: The user's function. If it has ``open`` and ``close``, they are called before its first and
            after its last call in a worker; in a task of a bounded stage.
        schema: The columns that it emits; a record's other columns are dropped when it becomes a row.
        outlet: The outlet at which its records also leave the chain, None if they do not.
        outlet_schema: The columns that leave the chain, None for all.
        outlet_copy: The copy that is emitted; records wait at the outlet until their batch is complete.
        stores_output: It may keep or change a record after emitting it.
        stores_input: It may keep a record that it received.
    """

    name: str
    kind: StepKind
    function: Callable[..., Any]
    schema: pa.Schema
    receivers: tuple[Receiver, ...] = ()
    outlet: int | None = None
    outlet_schema: pa.Schema | None = None
    outlet_copy: Copy = "reuse"
    stores_output: bool = True
    stores_input: bool = True

    @property
    def leaves_as_records(self) -> bool:
        """Whether its records leave the chain one by one; a ``map_batches`` emits its batch as a whole."""
        return self.outlet is not None and self.kind != "map_batches"


@dataclass(frozen=True, slots=True, eq=False)
class Receiver:
    """A downstream step, and the copy of each record that it gets."""

    step: Step
    copy: Copy = "reuse"


@dataclass(frozen=True, slots=True, eq=False)
class ChainSpec:
    """A tree of steps over one input.

    Attributes:
        head: The step that reads the input; nothing else refers to the input's records.
    """

    schema: pa.Schema
    head: Step

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps, senders before receivers."""

        def visit(step: Step) -> Iterator[Step]:
            yield step
            for receiver in step.receivers:
                yield from visit(receiver.step)

        return tuple(visit(self.head))


def owner_of(function: Any) -> Any:
    """The object whose methods a worker calls for a function: that of a bound method, or the function."""
    while isinstance(function, partial):
        function = function.func
    return function.__self__ if isinstance(function, MethodType) else function


def asks_for_attributes(function: Any) -> bool:
    """Whether a function has the method ``process_record_attributes``."""
    owner = owner_of(function)
    return not isinstance(owner, type) and callable(getattr(owner, "process_record_attributes", None))
