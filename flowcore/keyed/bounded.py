"""Bounded input: what does a key group put out whose records all come in order of time, and then end?

Nothing is kept for later: the state is in memory until the input has ended. Event time stands still until
then, so that no record is late, and goes to its end at once. All records are history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS, RecordAttributes
from flowcore.keyed.operator import Closing, StepOutputs

__all__ = ["BoundedGroup", "BoundedOperator", "BoundedRun"]


class BoundedGroup(Protocol):
    """The part of `flowcore.keyed.operator.KeyGroup` that needs no state store."""

    def advance_clock(self, clock_ms: int, out: StepOutputs, /) -> None:
        """The clock has come this far."""
        ...

    def attributes(self, attributes: RecordAttributes, out: StepOutputs, /) -> None:
        """What is true of the records that follow."""
        ...

    def rows(self, rows: pa.RecordBatch, out: StepOutputs, /) -> None:
        """Records have come, in order of time."""
        ...

    def advance_watermark(self, watermark_ms: int, out: StepOutputs, /) -> None:
        """Event time has come this far."""
        ...

    def finish(self, out: StepOutputs, /, *, idle: bool) -> None:
        """Nothing follows."""
        ...


class BoundedOperator(Protocol):
    """Configuration of an operator; every `flowcore.keyed.operator.KeyGroupOperator` is one."""

    def open(self) -> BoundedGroup:
        """A key group without state."""
        ...


@dataclass(frozen=True, slots=True)
class BoundedRun:
    """One key group, or several as if they were one, from the first record to the end of input.

    Args:
        operator: What is done.
        clock_ms: The clock, which stands still.
    """

    operator: BoundedOperator
    clock_ms: int

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """``(output, rows)``, in order, of records in order of time."""
        try:
            yield from self._run(batches)
        finally:
            if isinstance(self.operator, Closing):
                self.operator.close()

    def _run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
        group: BoundedGroup | None = None
        out = StepOutputs()
        for batch in batches:
            if group is None:
                group = self.operator.open()
                group.advance_clock(self.clock_ms, out)
                group.attributes(RecordAttributes(backlog=True), out)
            group.rows(batch, out)
            yield from _taken(out)
        if group is None:
            return
        group.advance_watermark(MAX_TIMESTAMP_MS, out)
        group.finish(out, idle=False)
        yield from _taken(out)


def _taken(out: StepOutputs) -> list[tuple[str, pa.RecordBatch]]:
    taken, out.batches = out.batches, []
    return taken
