"""Signals that stop a run."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from flowcore.causes import causes_of

__all__ = ["stopped_by_signals"]


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Let SIGTERM stop the run as Ctrl-C does. What fails afterwards is not an error of the run.

    A supervisor such as systemd sends it to all processes of a run, so that the JVM ends meanwhile. Ctrl-C
    may break off a call to the JVM.
    """
    received: list[int] = []

    def stop(number: int, _frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except Exception as error:
        if received or any(isinstance(each, KeyboardInterrupt) for each in causes_of(error)):
            raise KeyboardInterrupt from None
        raise
