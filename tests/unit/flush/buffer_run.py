"""A buffer, a clock that is moved by hand, and what has left."""

from __future__ import annotations

import json
from typing import Any

from flowcore.elements import (
    Record,
    StreamElement,
)
from flowcore.flush import Buffer, BufferOutput
from flowcore.flush.buffer import Released
from flowcore.flush.buffering import control, input_idle, look, record, start
from flowcore.flush.snapshots import restore, snapshot

__all__ = ["BufferRun"]


class BufferRun:
    """One buffer and its clock; every element that has left is kept."""

    def __init__(self, config: BufferOutput, now_ms: int = 0) -> None:
        self.config = config
        self.now_ms = now_ms
        self.buffer: Buffer[str, Any] = start(now_ms)
        self.left: list[StreamElement[Any]] = []

    def put(self, key: str, value: Any, timestamp_ms: int | None = None) -> Released[Any]:
        return self._leaves(record(self.config, self.buffer, key, Record(value, timestamp_ms), self.now_ms))

    def tell(self, element: Any) -> Released[Any]:
        return self._leaves(control(self.config, self.buffer, element, self.now_ms))

    def at(self, now_ms: int) -> Released[Any]:
        self.now_ms = now_ms
        return self._leaves(look(self.config, self.buffer, now_ms))

    def idle(self) -> Released[Any]:
        return self._leaves(input_idle(self.config, self.buffer, self.now_ms))

    def restart(self) -> None:
        self.buffer = restore(json.loads(json.dumps(snapshot(self.buffer))))

    def _leaves(self, released: Released[Any]) -> Released[Any]:
        self.left += released
        return released
