"""What a flush buffer keeps beside its records: buffered elements, and the times of flushes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flowcore.elements import LatencyMarker, Watermark, WatermarkStatus
from flowcore.errors import ElementError, SerializationError
from flowcore.flush.config import BufferOutput

__all__ = ["BufferState", "Control"]

_FORMAT = "flowcore.flush.buffer"
_VERSION = 1
_MOST_MARKERS = 4096
"""The most source subtasks with a marker, as many as `flowcore.latency` tells apart at a sink.

Anyone may forge markers of ever new subtasks, and all that are buffered are written at each step.
"""

Control = Watermark | WatermarkStatus


@dataclass(slots=True)
class BufferState:
    """The state of a buffer without its records.

    Attributes:
        controls: The latest watermark and the latest status, the one that arrived last at the end.
        markers: The earliest latency marker of each source subtask, up to a number of subtasks.
        last_flush_ms: Processing time of the last flush of any kind, also of an empty buffer.
        waiting_since_ms: Processing time at which the oldest record arrived, None while there is none.
        backlog: The records that arrive are backlog.
    """

    controls: dict[type[Control], Control] = field(default_factory=dict)
    markers: dict[tuple[str, int], LatencyMarker] = field(default_factory=dict)
    last_flush_ms: int = 0
    waiting_since_ms: int | None = None
    backlog: bool = False

    def add(self, element: Control | LatencyMarker) -> None:
        """Buffer an element: the latest watermark, the latest status, the earliest marker of a subtask.

        If there are markers of too many subtasks, one of a further subtask is dropped: emitted at once, it
        would show less latency than the records have that wait.
        """
        if isinstance(element, LatencyMarker):
            source = (element.operator_id, element.subtask)
            if source not in self.markers and len(self.markers) >= _MOST_MARKERS:
                return
            earliest = self.markers.setdefault(source, element)
            if element.marked_ms < earliest.marked_ms:
                self.markers[source] = element
        else:
            self.controls.pop(type(element), None)
            self.controls[type(element)] = element

    def flush(self, now_ms: int) -> tuple[list[Control], list[LatencyMarker]]:
        """Remove and return the buffered elements, and begin a new interval."""
        released = [*self.controls.values()], [*self.markers.values()]
        self.controls.clear()
        self.markers.clear()
        self.last_flush_ms = now_ms
        self.waiting_since_ms = None
        return released

    def is_due(self, config: BufferOutput, now_ms: int) -> bool:
        """Whether the interval has passed, or the clock was put back."""
        interval_ms = config.interval_ms_in(backlog=self.backlog)
        return interval_ms is not None and not 0 <= now_ms - self.last_flush_ms < interval_ms

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON-able data."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "last_flush_ms": self.last_flush_ms,
            "waiting_since_ms": self.waiting_since_ms,
            "backlog": self.backlog,
            "records": [],
            "held": [
                {"watermark": each.timestamp_ms} if isinstance(each, Watermark) else {"idle": each.idle}
                for each in self.controls.values()
            ],
            "markers": [[each.operator_id, each.subtask, each.marked_ms] for each in self.markers.values()],
        }

    @classmethod
    def restore(cls, written: Mapping[str, Any]) -> BufferState:
        """The state of a `snapshot`.

        Raises:
            SerializationError: The data is damaged, not a snapshot of a buffer, or of another version.
        """
        found = (written.get("format"), written.get("version"))
        if found != (_FORMAT, _VERSION):
            msg = (
                f"a snapshot of format {found[0]!r} and version {found[1]!r} is not one of {_FORMAT!r} and "
                f"version {_VERSION}: buffered records would be lost; restore it with the flowcore that "
                "wrote it"
            )
            raise SerializationError(msg)
        try:
            controls = [
                Watermark(each["watermark"]) if "watermark" in each else WatermarkStatus(each["idle"])
                for each in written["held"]
            ]
            markers = {
                (operator_id, subtask): LatencyMarker(marked_ms, operator_id, subtask)
                for operator_id, subtask, marked_ms in written["markers"]
            }
            return cls(
                {type(each): each for each in controls}, markers,
                written["last_flush_ms"], written["waiting_since_ms"], written["backlog"],
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, ElementError) as error:
            msg = (
                f"a snapshot of a buffer is damaged ({type(error).__name__}: {error}): buffered records "
                "would be lost; restore an earlier one"
            )
            raise SerializationError(msg) from error
