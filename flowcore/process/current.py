"""Context of the current call: key, record or timer, and the outputs so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from flowcore.errors import StateError
from flowcore.process.state import ProcessState, Undo

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Current", "ProcessEmissions", "ProcessResult"]


class ProcessResult(NamedTuple):
    """One output.

    Attributes:
        key: The key of its record or timer.
        timestamp_ms: The time of its record or timer.
        origin: The number of its record in the step, from 0; None for a timer.
    """

    key: Any
    value: Mapping[str, Any]
    timestamp_ms: int | None
    origin: int | None


@dataclass(slots=True)
class ProcessEmissions:
    """The outputs of one step, in order; ``batches`` are those of a function of batches."""

    results: list[ProcessResult] = field(default_factory=list)
    side_outputs: dict[str, list[ProcessResult]] = field(default_factory=dict)
    batches: list[pa.RecordBatch] = field(default_factory=list)

    def extend(self, others: ProcessEmissions) -> None:
        """Append other outputs."""
        self.results += others.results
        for name, results in others.side_outputs.items():
            self.side_outputs.setdefault(name, []).extend(results)
        self.batches += others.batches


class Current:
    """Shared by an operator, its function's context and its states.

    Attributes:
        timestamp_ms: The time of the record or timer, None if it has none.
        timestamps_ms: The times of the rows of a batch.
        origin: The number of the record in the step, None for a timer and for a batch.
        undo: Records what the call may change; None if the call is never rolled back.
        no_timestamps: The error for a function that asks for a timestamp, if no record has one.
    """

    __slots__ = (
        "_has_key", "_key", "emissions", "no_timestamps", "origin", "state", "timestamp_ms", "timestamps_ms",
        "undo",
    )  # fmt: skip

    def __init__(self, no_timestamps: str | None = None) -> None:
        self.no_timestamps = no_timestamps
        self.undo: Undo | None = None
        self.begin(ProcessState())

    def begin(self, state: ProcessState, timestamps_ms: Sequence[int | None] = ()) -> ProcessEmissions:
        """Begin a step, without a key."""
        self.state = state
        self.emissions = ProcessEmissions()
        self.timestamps_ms = timestamps_ms
        self.timestamp_ms: int | None = None
        self.origin: int | None = None
        self._key: Any = None
        self._has_key = False
        return self.emissions

    @property
    def key(self) -> Any:
        """The current key.

        Raises:
            StateError: There is no current key.
        """
        if not self._has_key:
            msg = (
                "a state or a timer was requested without a current key: it would belong to no key; request "
                "it in process() or on_timer(), and in process_batch() set context.key first"
            )
            raise StateError(msg)
        return self._key

    @key.setter
    def key(self, key: Any) -> None:
        self._key, self._has_key = key, True
        self.state.touched.add(key)
        if self.undo is not None:
            self.undo.save_timers(key)

    def result(self, record: Any) -> ProcessResult:
        """An output of the current record or timer."""
        return ProcessResult(self.key, record, self.timestamp_ms, self.origin)
