"""Termination of a run, by a signal or by its status in Dagster's run storage, without corrupting its work.

Dagster terminates a run with SIGINT or SIGTERM. The exception is raised wherever the program is: between a
request to the JVM and the response, or while Spark still writes files that are being removed. If the code
server was killed or replaced, nobody sends the signal, and only the run storage holds the request.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from pyspark.sql import SparkSession

from flowcore.errors import RunError

__all__ = [
    "TerminationRequests",
    "cancel_jobs_on",
    "deferred_interrupts",
    "kept_interrupt_handler",
    "survive_storage",
    "was_terminated",
]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_EVENT_POLL_S = 0.2
_STORAGE_POLL_S = 2.0

_log = logging.getLogger(__name__)


class TerminationRequests:
    """Requests to terminate a run, read from Dagster's run storage in the process that executes the run."""

    def __init__(self, context: dg.AssetExecutionContext) -> None:
        self._context = context
        self._code_server: int | None = os.getppid()
        self._next_poll_s = 0.0

    def poll(self) -> bool:
        """Whether the run is to terminate; reads the storage every two seconds, and continues without it.

        Raises:
            RunError: The supervisor declared this run lost, and may have launched another one, or somebody
                has deleted the run.
        """
        if time.monotonic() < self._next_poll_s:
            return False
        self._next_poll_s = time.monotonic() + _STORAGE_POLL_S
        if self._code_server is not None and os.getppid() != self._code_server:
            with survive_storage():
                self._context.log.warning(
                    "the code server that started this run (process %d) is gone: the run continues, and "
                    "receives a request to terminate within %g s",
                    self._code_server,
                    _STORAGE_POLL_S,
                )
            self._code_server = None
        run_id, run, answered = self._context.run.run_id, None, False
        with survive_storage():
            run, answered = self._context.instance.get_run_by_id(run_id), True
        if run is None:
            if answered:
                msg = (
                    f"run {run_id} was deleted while it ran: nobody could see or terminate it any more, so "
                    "it ends; terminate a run before you delete it, and launch the job again if it is wanted"
                )
                raise RunError(msg)
            return False
        if run.status is dg.DagsterRunStatus.FAILURE:
            msg = f"run {run_id} was declared failed while it still ran: it ends, another may have begun"
            raise RunError(msg)
        return run.status in (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)


def was_terminated(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Whether a person terminated a run, whatever it ended with.

    Its worker may have died while it terminated. Only events of the run itself carry data on why it ended:
    those of a termination have none.
    """
    kinds = {dg.DagsterEventType.RUN_CANCELING, dg.DagsterEventType.RUN_CANCELED}
    events = (entry.get_dagster_event() for entry in instance.all_logs(run_id, of_type=kinds))
    return any(event.event_specific_data is None for event in events)


@contextmanager
def survive_storage() -> Iterator[None]:
    """End the block early if Dagster's storage fails, as while its database is away."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - each kind of storage has errors of its own
        _log.warning("Dagster's storage does not answer: the stream continues, and asks again (%s)", error)


@contextmanager
def deferred_interrupts() -> Iterator[threading.Event]:
    """Defer interrupts to the end of the block; the event is set when one arrives.

    Only the main thread receives interrupts: in any other thread the event is never set.
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
def cancel_jobs_on(interrupted: threading.Event, spark: SparkSession) -> Iterator[None]:
    """Cancel all Spark jobs of this block once the event is set, so that the block fails soon."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_EVENT_POLL_S):
            if interrupted.is_set():
                spark.sparkContext.cancelAllJobs()

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()


@contextmanager
def kept_interrupt_handler() -> Iterator[None]:
    """Keep Dagster's handler of SIGINT, which ends a run; a starting SparkContext replaces it."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)
