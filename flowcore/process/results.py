"""What comes out of keyed processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ProcessEmissions", "ProcessResult"]


class ProcessResult(NamedTuple):
    """One output.

    Attributes:
        key: Of what it was made.
        value: A record.
        timestamp_ms: That of the record, or the time of the timer, it was made of.
        origin: Which of the records of the step it was made of, from 0; None for a timer.
    """

    key: Any
    value: Mapping[str, Any]
    timestamp_ms: int | None
    origin: int | None


@dataclass(slots=True)
class ProcessEmissions:
    """What one step made come out, in order.

    Attributes:
        results: Records.
        side_outputs: Records beside them, by name.
        batches: What a function of batches returned.
    """

    results: list[ProcessResult] = field(default_factory=list)
    side_outputs: dict[str, list[ProcessResult]] = field(default_factory=dict)
    batches: list[pa.RecordBatch] = field(default_factory=list)

    def add(self, others: ProcessEmissions) -> None:
        """Put others behind these."""
        self.results += others.results
        for name, results in others.side_outputs.items():
            self.side_outputs.setdefault(name, []).extend(results)
        self.batches += others.batches
