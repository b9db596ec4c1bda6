"""The clock of live queries: their processing time, and the work that is repeated as it advances."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from pyspark.sql import SparkSession

from flowcore.background import PeriodicThread

__all__ = ["Clock"]


class Clock:
    """The system's clock. A test may derive one that is moved by hand."""

    def now_ms(self) -> int:
        """The time, in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def attach(self, session: SparkSession) -> None:
        """Called with the session of live queries, before the first one is started."""

    def every(
        self, interval_s: float, name: str, work: Callable[[], object]
    ) -> AbstractContextManager[object]:
        """Repeat work until the context ends.

        Args:
            interval_s: Seconds from the end of one call to the start of the next.
            name: Name of the thread.
            work: Function to call. An exception ends the thread, so the function handles its own.
        """
        return PeriodicThread(name, work, interval_s)
