"""Interrupts: how does a run end when a person asks, without being torn apart?

Dagster ends a run by SIGINT or SIGTERM, which raises wherever the program just is: it may be between a
question to the JVM and its answer, or Spark may go on to write files that are being removed.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

__all__ = ["deferred_interrupts", "jobs_end_with"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOOK_S = 0.2


@contextmanager
def deferred_interrupts() -> Iterator[threading.Event]:
    """Hold interrupts back; the event tells of one, which then comes at the end of the block.

    In another thread than the main one nothing is held back: interrupts do not come there.
    """
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        signal.signal(number, lambda _number, _frame: interrupted.set())
    try:
        yield interrupted
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if interrupted.is_set():
            signal.raise_signal(signal.SIGINT)


@contextmanager
def jobs_end_with(interrupted: threading.Event, spark: SparkSession) -> Iterator[None]:
    """Cancel what Spark does in this block once the event is set, so that the block fails soon."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK_S):
            if interrupted.is_set():
                spark.sparkContext.cancelAllJobs()

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()
