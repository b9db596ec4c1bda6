"""The live queries of a plan, each started when the bounded stages that it waits for are committed.

Queries that wait for the same stages form one `LiveRun`. By default all queries wait for all stages. With
``execution.result-visibility = pipelined`` some may start while bounded stages still run.
"""

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

from flowcore.errors import FlowcoreError
from flowcore.latency import LatencySummary
from flowcore.metrics.progress import QueryProgress
from flowcore.planner.model import LiveQuery, LiveStage
from flowcore.planner.plan import Plan
from flowcore.spark.context import Context
from flowcore.spark.run.live_stage import LiveRun, wait_until_ended
from flowcore.spark.run.observation import Observation

__all__ = ["LiveRuns"]


class LiveRuns:
    """The live queries of one plan; a context manager that stops them at its end."""

    def __init__(self, plan: Plan, context: Context) -> None:
        self.plan = plan
        self._context = context
        self._waiting: dict[tuple[str, ...], list[LiveQuery]] = {}
        for query in plan.live_queries:
            self._waiting.setdefault(query.after, []).append(query)
        self._runs: list[LiveRun] = []
        self._observation = Observation(plan, context)
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._record(error)
        self._close()

    def start(self, committed: Collection[str]) -> None:
        """Start the queries that wait only for these bounded stages.

        Raises:
            FlowcoreError: As `LiveRun` does.
        """
        for after in tuple(self._waiting):
            if set(after) <= {*committed}:
                run = LiveRun(self._part(self._waiting.pop(after)), self._context, self._observation)
                self._runs.append(self._closing.enter_context(run))
        self._observation.set_committed(committed)

    def check(self) -> None:
        """Check whether a query has failed; if so, end all others.

        Raises:
            RunError: A query failed.
        """
        try:
            for run in self._runs:
                run.wait(0)
        except BaseException as error:
            self._record(error)
            self._close()
            raise

    @property
    def active(self) -> bool:
        """At least one query has not ended."""
        return any(run.active for run in self._runs)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every query has ended by itself; True if they have.

        Raises:
            RunError: A query failed; the others are stopped.
        """
        return wait_until_ended(self, self.check, timeout_s)

    def progress(self) -> tuple[QueryProgress, ...]:
        """The progress of each query; empty before the first start of a query."""
        return self._observation.health().queries if self._runs else ()

    @property
    def metrics_url(self) -> str | None:
        """The address of the metrics of all queries for Prometheus; None if they are not served."""
        return self._observation.metrics_url

    def latency(self) -> tuple[LatencySummary, ...]:
        """The latency of the markers that reached each sink in the last minute; none if it is not tracked."""
        return tuple(summary for run in self._runs for summary in run.latency())

    def _record(self, error: object) -> None:
        """Record why the run ends, unless it ends as it should or was interrupted."""
        if isinstance(error, FlowcoreError):
            self._observation.fail(str(error))
        elif isinstance(error, Exception):
            self._observation.fail(f"{type(error).__name__}: {error}")

    def _close(self) -> None:
        self._observation.close()
        self._closing.close()

    def _part(self, queries: list[LiveQuery]) -> Plan:
        joined = {node for query in queries for node in query.results}
        stages = (
            stage for stage in self.plan.bounded if any(result.operator in joined for result in stage.results)
        )
        return replace(self.plan, bounded=tuple(stages), live=LiveStage(tuple(queries)))
