"""Interrupts: how does a long run end when a person asks, without being torn apart?

Dagster ends a run by SIGINT or SIGTERM, which raises wherever the program just is: it may be between a
question to the JVM and its answer.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["deferred_interrupts"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
