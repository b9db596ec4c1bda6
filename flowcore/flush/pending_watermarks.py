"""PendingWatermarks: when may a watermark leave whose records wait in buffers elsewhere?

Each key group flushes by itself, and a query's watermarks leave beside its records. Whatever came before a
batch that begins an interval later has left when that batch is done, since every buffer has been flushed in
between. So a watermark waits for such a batch; of several that may leave then, only the latest does. In
backlog the interval is a longer one, or there is none until the backlog is gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowcore.elements import Watermark, WatermarkStatus

__all__ = ["PendingWatermarks"]

Element = Watermark | WatermarkStatus


class PendingWatermarks:
    """The watermarks and statuses of a query with buffers.

    Args:
        interval_ms: The longest time between two flushes of a buffer; 0 holds nothing back.
        backlog_interval_ms: The same in backlog; None if there is no flush before its end.
    """

    def __init__(self, interval_ms: int, backlog_interval_ms: int | None = 0) -> None:
        self._interval_ms = interval_ms
        self._backlog_interval_ms = backlog_interval_ms
        self._waiting: list[tuple[int, Element]] = []

    def take(self, told: Iterable[Element], now_ms: int) -> None:
        """Take what was told by this time; all records that it speaks of have come."""
        self._waiting += [(now_ms, element) for element in told]

    def release(self, begun_ms: int, *, backlog: bool = False) -> tuple[Element, ...]:
        """What may leave, the latest of each kind, when a batch that began then is done.

        Args:
            begun_ms: When it began.
            backlog: Its records were history.

        >>> held = PendingWatermarks(interval_ms=1_000)
        >>> held.take([Watermark(7)], now_ms=100)
        >>> held.release(begun_ms=1_099), held.release(begun_ms=1_100)
        ((), (Watermark(timestamp_ms=7),))
        """
        latest: dict[type[Element], Element] = {}
        interval_ms = self._backlog_interval_ms if backlog else self._interval_ms
        if interval_ms is None:
            return ()
        while self._waiting and (not interval_ms or self._waiting[0][0] + interval_ms <= begun_ms):
            _, element = self._waiting.pop(0)
            latest.pop(type(element), None)
            latest[type(element)] = element
        return tuple(latest.values())
