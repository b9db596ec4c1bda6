"""A thread that repeats work in an interval."""

import threading
from collections.abc import Callable
from typing import Self

__all__ = ["PeriodicThread"]


class PeriodicThread:
    """A context manager with one thread, which has ended at its exit.

    Args:
        work: Function to call. An exception ends the thread, so the function handles its own.
        interval_s: Seconds from the end of one call to the start of the next.
        at_once: Call it at the start, too, and not only after the first interval.
    """

    def __init__(
        self, name: str, work: Callable[[], object], interval_s: float, *, at_once: bool = False
    ) -> None:
        self._work = work
        self._interval_s = interval_s
        self._at_once = at_once
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        if self._at_once:
            self._work()
        while not self._stop.wait(self._interval_s):
            self._work()
