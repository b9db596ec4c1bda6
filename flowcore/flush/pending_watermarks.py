"""Watermarks that wait until the records before them have left all flush buffers of a query.

Each key group flushes on its own, while watermarks are emitted for the query. When a batch that began an
interval later is done, the buffer has been flushed in all key groups, so all earlier records have left it. A
watermark waits for such a batch, and then for the next buffer downstream. Of several watermarks that may
leave, only the latest does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from flowcore.elements import Watermark, WatermarkStatus

__all__ = ["PendingWatermarks"]

Element = Watermark | WatermarkStatus


class PendingWatermarks:
    """The watermarks and statuses that wait for a buffer.

    Args:
        interval_ms: The longest time between two flushes of the buffer; 0 if nothing is buffered.
        backlog_interval_ms: The same during backlog; None if there is no flush before its end.
        downstream: Those that wait for the next buffer; None if there is none.
    """

    def __init__(
        self,
        interval_ms: int,
        backlog_interval_ms: int | None = 0,
        downstream: PendingWatermarks | None = None,
    ) -> None:
        self._interval_ms = interval_ms
        self._backlog_interval_ms = backlog_interval_ms
        self._downstream = downstream
        self._pending: list[tuple[int, Element]] = []

    def add(self, elements: Iterable[Element], now_ms: int) -> None:
        """Add elements of this time, when all records that they cover have arrived."""
        self._pending += [(now_ms, element) for element in elements]

    def release(self, begun_ms: int, *, backlog: bool = False) -> tuple[Element, ...]:
        """Remove and return what may leave, the latest of each kind, when a batch is done.

        Args:
            begun_ms: When the batch began.
            backlog: Its records were backlog.

        >>> pending = PendingWatermarks(interval_ms=1_000)
        >>> pending.add([Watermark(7)], now_ms=100)
        >>> pending.release(begun_ms=1_099), pending.release(begun_ms=1_100)
        ((), (Watermark(timestamp_ms=7),))
        """
        latest: dict[type[Element], Element] = {}
        interval_ms = self._backlog_interval_ms if backlog else self._interval_ms
        wait_ms = math.inf if interval_ms is None else interval_ms
        while self._pending and (not wait_ms or self._pending[0][0] + wait_ms <= begun_ms):
            _, element = self._pending.pop(0)
            latest.pop(type(element), None)
            latest[type(element)] = element
        if self._downstream is None:
            return tuple(latest.values())
        self._downstream.add(latest.values(), begun_ms)
        return self._downstream.release(begun_ms, backlog=backlog)
