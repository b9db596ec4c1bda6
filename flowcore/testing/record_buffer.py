"""A flush buffer that takes records one by one, in memory: the model of `flowcore.flush.operator`.

Transcripts are replayed with it, and tests compare the columnar buffer with it. Every call changes the buffer
and returns the elements that are emitted, in order.
"""

from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeVar, assert_never, cast

from flowcore.elements import (
    EndOfInput,
    LatencyMarker,
    Record,
    RecordAttributes,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from flowcore.flush.buffer import BufferState
from flowcore.flush.config import BufferOutput

__all__ = ["BufferControl", "RecordBuffer", "Released"]

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

BufferControl = Watermark | WatermarkStatus | LatencyMarker | RecordAttributes | EndOfInput
"""Every stream element except records."""

Released = tuple[StreamElement[_V], ...]
"""The elements that are emitted, in order."""


class RecordBuffer(Generic[_K, _V]):
    """The buffer; its first interval begins at once.

    Attributes:
        records: The latest record of each key, the one that arrived last at the end.
    """

    def __init__(self, config: BufferOutput, now_ms: int = 0) -> None:
        self.records: dict[_K, Record[_V]] = {}
        self.state = BufferState(last_flush_ms=now_ms)
        self._config = config

    def record(self, key: _K, latest: Record[_V], now_ms: int) -> Released[_V]:
        """Take a record; a deletion or a retraction is a record like any other."""
        if not self._config.is_enabled:
            return (latest,)
        key = key if self._config.keyed else cast("_K", None)
        if self.state.waiting_since_ms is None:
            self.state.waiting_since_ms = now_ms
        self.records.pop(key, None)
        self.records[key] = latest
        capacity = self._config.capacity
        is_full = capacity is not None and len(self.records) >= capacity
        return self.flush(now_ms) if is_full else self.poll(now_ms)

    def control(self, element: BufferControl, now_ms: int) -> Released[_V]:
        """Take another element: it passes an empty buffer and never overtakes a record that it covers.

        A change of the backlog status and the end of input flush the buffer first.
        """
        match element:
            case _ if not self._config.is_enabled:
                return (element,)
            case EndOfInput():
                return (*self.flush(now_ms), element)
            case RecordAttributes(backlog=backlog):
                if backlog == self.state.backlog:
                    return (element,)
                self.state.backlog = backlog
                return (*self.flush(now_ms), element)
            case Watermark() | WatermarkStatus() | LatencyMarker():
                if not self.records:
                    return (element,)
                self.state.add(element)
                return self.poll(now_ms)
            case _:
                assert_never(element)

    def poll(self, now_ms: int) -> Released[_V]:
        """Flush if the interval has passed."""
        return self.flush(now_ms) if self.state.is_due(self._config, now_ms) else ()

    def input_idle(self, now_ms: int) -> Released[_V]:
        """Flush, since the input has nothing available and waiting would save nothing."""
        return self.flush(now_ms) if self._config.is_enabled else ()

    def flush(self, now_ms: int) -> Released[_V]:
        """Empty the buffer.

        Returns:
            The records that the watermark covers, watermark and status, the other records, markers.
        """
        watermark = self.state.controls.get(Watermark)
        covered: list[Record[_V]] = []
        others: list[Record[_V]] = []
        for record in self.records.values():
            is_covered = (
                isinstance(watermark, Watermark)
                and record.timestamp_ms is not None
                and record.timestamp_ms <= watermark.timestamp_ms
            )
            (covered if is_covered else others).append(record)
        controls, markers = self.state.flush(now_ms)
        self.records.clear()
        return (*covered, *controls, *others, *markers)

    def snapshot(self) -> dict[str, Any]:
        """The buffer as JSON-able data, if its keys and values are."""
        records = [[key, each.value, each.timestamp_ms] for key, each in self.records.items()]
        return {**self.state.snapshot(), "records": records}

    def restore(self, written: Mapping[str, Any]) -> None:
        """Replace the content by that of a `snapshot`."""
        self.state = BufferState.restore(written)
        self.records = {key: Record(value, time_ms) for key, value, time_ms in written["records"]}
