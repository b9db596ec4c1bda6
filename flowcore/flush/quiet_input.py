"""When a query whose batches are a flush interval apart runs one early, because nothing more is available.

Its input waits for the next batch. If some has arrived and no more does, waiting would save nothing. Each
early batch costs a restart of the query, so there are at most ten of them in an interval.

Times are integer milliseconds of any clock that does not go back.
"""

__all__ = ["QUIET_MS", "QuietInput"]

QUIET_MS = 2_000
"""A stream that pauses for less than this is not idle."""


class QuietInput:
    """Follows the number of records that have arrived in the sources of a query.

    Args:
        interval_ms: The time between two batches, > 0.

    >>> quiet = QuietInput(interval_ms=60_000)
    >>> [quiet.poll(arrived, unread=1, now_ms=now_ms) for arrived, now_ms in ((5, 0), (5, 5_999), (5, 6_000))]
    [False, False, True]
    """

    def __init__(self, interval_ms: int) -> None:
        self._quiet_ms = max(interval_ms // 10, QUIET_MS)
        self._arrived: int | None = None
        self._since_ms = 0

    def poll(self, arrived: int, *, unread: int, now_ms: int) -> bool:
        """Whether records wait, and none has arrived for a tenth of the interval, at least two seconds.

        Args:
            arrived: The number of records that have arrived, processed ones included.
        """
        if arrived != self._arrived:
            self._arrived, self._since_ms = arrived, now_ms
        return unread > 0 and now_ms - self._since_ms >= self._quiet_ms
