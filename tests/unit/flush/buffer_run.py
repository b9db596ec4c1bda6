"""A buffer with a manually moved clock and a list of its output."""

from __future__ import annotations

import json
from typing import Any

from flowcore.elements import (
    Record,
    StreamElement,
)
from flowcore.flush import BufferOutput
from flowcore.testing.record_buffer import RecordBuffer, Released

__all__ = ["BufferRun"]


class BufferRun:
    """One buffer and its clock; every emitted element is kept."""

    def __init__(self, config: BufferOutput, now_ms: int = 0) -> None:
        self.config = config
        self.now_ms = now_ms
        self.buffer: RecordBuffer[str, Any] = RecordBuffer(config, now_ms)
        self.left: list[StreamElement[Any]] = []

    def put(self, key: str, value: Any, timestamp_ms: int | None = None) -> Released[Any]:
        return self._leaves(self.buffer.record(key, Record(value, timestamp_ms), self.now_ms))

    def control(self, element: Any) -> Released[Any]:
        return self._leaves(self.buffer.control(element, self.now_ms))

    def at(self, now_ms: int) -> Released[Any]:
        self.now_ms = now_ms
        return self._leaves(self.buffer.poll(now_ms))

    def idle(self) -> Released[Any]:
        return self._leaves(self.buffer.input_idle(self.now_ms))

    def restart(self) -> None:
        self.buffer.restore(json.loads(json.dumps(self.buffer.snapshot())))

    def _leaves(self, released: Released[Any]) -> Released[Any]:
        self.left += released
        return released
