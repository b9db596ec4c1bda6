"""Processing time of live queries that is moved by hand, with one trigger of each query in a step.

Spark uses the clock of a query for the time of its batches and for the wait between triggers. It is replaced
before the first trigger. After that trigger, the time of batches gets a clock of its own.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from flowcore.errors import RunError
from flowcore.spark.context import Clock

__all__ = ["ManualTime"]

_LONG_MS = 10**12
"""Longer than any trigger interval."""
_TIMEOUT_S = 300.0


class ManualTime(Clock):
    """The processing time of one live run.

    Work that a run repeats, such as emitting watermarks, is done once after the triggers of each step.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._work: list[Callable[[], object]] = []
        self._queries: dict[str, _Query] = {}

    def now_ms(self) -> int:
        return self._now_ms

    def attach(self, session: SparkSession) -> None:
        session.conf.set("spark.sql.streaming.noDataProgressEventInterval", "0")  # each trigger is reported
        self._queries.clear()
        session.streams.addListener(_Listener(self._queries, session, self))

    @contextmanager
    def every(self, interval_s: float, name: str, work: Callable[[], object]) -> Iterator[None]:  # noqa: ARG002 - as of the system's clock
        self._work.append(work)
        try:
            yield
        finally:
            self._work.remove(work)

    @property
    def running(self) -> int:
        """The number of queries that have not ended."""
        return sum(not query.terminated for query in tuple(self._queries.values()))

    def wait(self) -> None:
        """Wait for the end of the running triggers; the start of a query is a trigger.

        Raises:
            RunError: A trigger has not ended in time.
        """
        for query in tuple(self._queries.values()):
            query.wait()

    def step(self, now_ms: int) -> None:
        """Set the time, run one trigger of each query, then the work that the run repeats.

        Raises:
            RunError: A trigger has not ended in time.
        """
        self._now_ms = max(now_ms, self._now_ms)
        for query in tuple(self._queries.values()):
            query.trigger(self._now_ms)
        self.wait()
        self.work()

    def work(self) -> None:
        """Do the work that the run repeats, once."""
        for work in tuple(self._work):
            work()


class _Query:
    """The clocks and triggers of one query that has had no trigger yet."""

    def __init__(self, execution: Any, now_ms: int) -> None:
        self._execution = execution
        self._ended = threading.Semaphore(0)
        self._running = True
        self.terminated = False
        self._waiting = self._set_clock(now_ms)
        self._time: Any = None

    def trigger(self, now_ms: int) -> None:
        if self.terminated:
            return
        if self._time is None:
            self._time = self._set_clock(now_ms)
        self._time.setTime(now_ms)
        self._running = True
        self._waiting.advance(_LONG_MS)

    def wait(self) -> None:
        if self._running and not self._ended.acquire(timeout=_TIMEOUT_S):
            msg = f"a query has not ended its trigger in {_TIMEOUT_S:g} s: see the log of Spark"
            raise RunError(msg)
        self._running = False

    def end(self, *, terminated: bool = False) -> None:
        self.terminated |= terminated
        self._ended.release()

    def _set_clock(self, now_ms: int) -> Any:
        jvm: Any = SparkContext._jvm  # noqa: SLF001 - PySpark has no public way
        clock = jvm.org.apache.spark.util.ManualClock(now_ms)
        for kind in _ancestors(self._execution.getClass()):
            for field in kind.getDeclaredFields():
                if field.getName() == "triggerClock":
                    field.setAccessible(True)
                    field.set(self._execution, clock)
        return clock


class _Listener(StreamingQueryListener):
    """Calls back for the queries of a session; the first call comes before a query's first trigger.

    Events stay Java objects, since PySpark's own conversion takes longer than a trigger.
    """

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)

    def __init__(self, queries: dict[str, _Query], session: SparkSession, clock: Clock) -> None:
        self._queries = queries
        self._streams: Any = session.streams
        self._clock = clock

    @property
    def _jlistener(self) -> Any:
        return SparkContext._jvm.PythonStreamingQueryListenerWrapper(self)  # type: ignore[union-attr]  # noqa: SLF001

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        execution = self._streams._jsqm.get(event.id()).streamingQuery()  # noqa: SLF001
        self._queries[event.runId().toString()] = _Query(execution, self._clock.now_ms())

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self._end(event.progress().runId())

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        self._end(event.runId())

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self._end(event.runId(), terminated=True)

    def _end(self, run_id: Any, *, terminated: bool = False) -> None:
        query = self._queries.get(run_id.toString())
        if query is not None:
            query.end(terminated=terminated)


def _ancestors(kind: Any) -> Iterator[Any]:
    while kind is not None:
        yield kind
        kind = kind.getSuperclass()
