"""Work in threads: work that repeats in an interval, and work that may not take longer than so long."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Self, TypeVar

__all__ = ["LoggedFailures", "PeriodicThread", "call_within"]

_T = TypeVar("_T")


def call_within(limit_s: float, work: Callable[[], _T]) -> _T:
    """Call a function in a thread of its own, and wait for its result.

    The timeout of a socket bounds each wait for some bytes, and not an answer that arrives byte by byte.

    Raises:
        TimeoutError: It takes longer. The thread is left to itself, and does not keep the process alive.
    """
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            future.set_exception(error)

    threading.Thread(target=run, name="call", daemon=True).start()
    try:
        return future.result(limit_s)
    except TimeoutError:
        if future.done():  # the function's own
            raise
        msg = f"no whole answer in {limit_s:g} s"
        raise TimeoutError(msg) from None


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


class LoggedFailures:
    """A context manager for work that repeats, whose errors are logged and not raised.

    Of failures in a row by one type of error the first one is logged, with its traceback, and then the first
    success: on a full disk, work that repeats often would fill the log, too.

    Args:
        failed: The message of a failure.
        recovered: The message of the first success after failures.
    """

    def __init__(self, log: logging.Logger, failed: str, recovered: str) -> None:
        self._log, self._failed, self._recovered = log, failed, recovered
        self._failure: type[BaseException] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        is_failure = isinstance(error, Exception)
        if is_failure and kind is not self._failure:
            self._log.error("%s", self._failed, exc_info=error)
        if error is None and self._failure is not None:
            self._log.warning("%s", self._recovered)
        self._failure = kind if is_failure else None
        return is_failure
