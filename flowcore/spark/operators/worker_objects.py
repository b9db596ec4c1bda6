"""Objects that a Python worker keeps from task to task: operators and chains with users' functions.

A worker unpickles an object once, not for each batch. It closes the object when other bytes of the same name
arrive, for instance of an edited function, when a task fails, and when the worker itself ends.
"""

import hashlib
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Generic, Protocol, TypeVar

from pyspark import cloudpickle

__all__ = ["WorkerObject", "close_objects"]

_CLOSING_S = 10
"""A worker that takes longer to close its objects is killed."""
_log = logging.getLogger(__name__)


class _Closable(Protocol):
    def close(self) -> None: ...


_T = TypeVar("_T", bound=_Closable)
_kept: dict[str, tuple[str, Any]] = {}
"""In this worker process, by name: the digest of the bytes, and the object."""


class WorkerObject(Generic[_T]):
    """An object on its way to the workers, as bytes; made on the driver.

    Args:
        name: Distinguishes it from the other objects of a worker.
    """

    def __init__(self, name: str, content: _T) -> None:
        self._name = name
        self._pickled: bytes = cloudpickle.dumps(content)  # type: ignore[no-untyped-call]
        self._digest = hashlib.sha256(self._pickled).hexdigest()

    @contextmanager
    def use(self) -> Iterator[_T]:
        """The object of this worker; it is closed if the block raises, as Spark then ends the worker."""
        _close_at_end()
        known = _kept.get(self._name)
        if known is None or known[0] != self._digest:
            _close(self._name)
            known = _kept[self._name] = (self._digest, cloudpickle.loads(self._pickled))
        try:
            yield known[1]
        except Exception:
            _close(self._name)
            raise


def close_objects() -> None:
    """Close all objects of this worker process."""
    for name in tuple(_kept):
        _close(name)


def _close(name: str) -> None:
    if name in _kept:
        _, content = _kept.pop(name)
        try:
            content.close()
        except Exception:  # noqa: BLE001 - a user's function may raise anything
            _log.exception("closing %r failed in worker %d, which continues without it", name, os.getpid())


@cache
def _close_at_end() -> None:
    """Close the objects when this worker ends.

    Spark ends a worker by a signal or by closing its connection, and runs no exit handlers. Its daemon resets
    the signals before each task and then calls ``pyspark.worker.main``.
    """
    from pyspark import worker  # noqa: PLC0415 - only in workers

    run_task = worker.main

    def main(infile: Any, outfile: Any) -> None:
        signal.signal(signal.SIGHUP, _end)
        signal.signal(signal.SIGTERM, _end)
        try:
            run_task(infile, outfile)
        except BaseException:
            close_objects()
            raise

    worker.main = main


def _end(*_: object) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_CLOSING_S)
    close_objects()
    os._exit(0)
