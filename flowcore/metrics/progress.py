"""Progress: what is known of a flow's live run at one moment, typed.

One look at a run makes one `FlowProgress`, which listeners are told and files keep. Counts begin with
the run; what is not known is None. Times are milliseconds since the epoch, UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from flowcore.latency import LatencySummary
from flowcore.metrics.measures import measured

__all__ = ["FlowProgress", "LatencyProgress", "PartitionProgress", "QueryProgress", "Switch"]


class _Stored:
    """Made from what JSON can hold; what is not known there is left out, what is missing has its default."""

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """From `dataclasses.asdict`, whatever version wrote it."""
        known = {one.name for one in fields(cls)}  # type: ignore[arg-type]
        return cls(**{name: value for name, value in stored.items() if name in known})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress(_Stored):
    """How far a query has come in one partition of a source's topic."""

    topic: str
    partition: int
    offset: int | None = measured(
        "flowcore_partition_offset", "first offset that is not committed yet", default=None, plotted=False
    )
    end: int | None = measured(
        "flowcore_partition_end_offset", "offset that the next record will get", default=None, plotted=False
    )
    lag: int | None = measured(
        "flowcore_partition_lag_records", "records that are not committed yet", default=None
    )
    watermark_ms: int | None = measured(
        "flowcore_partition_watermark_timestamp_seconds", "event time up to which it is complete",
        default=None, scale=0.001,
    )  # fmt: skip
    idle: bool | None = measured(
        "flowcore_partition_idle", "1 while no watermark waits for it", default=None, plotted=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryProgress(_Stored):
    """How one query is doing.

    Attributes:
        name: The query's.
        mode: How it runs: ``"realtime"``, ``"micro-batch"``, ``"slice"``; ``"waiting"`` until it is started.
        mode_reason: Why.
        backlog: What it reads is history: a bounded result that it joins is pending, or a source lags
            (`flowcore.backlog.thresholds`); None if that is not known.
        bounded: By bounded stage the version of its result that the query joins.
        partitions: Of its sources' topics.
    """

    name: str
    mode: str
    mode_reason: str = ""
    active: bool = measured("flowcore_query_active", "1 until it has ended", plotted=False)
    batches: int = measured("flowcore_query_batches", "batches committed", kind="counter", default=0)
    rows_in: int = measured(
        "flowcore_query_records_in", "records read",
        key="records", kind="counter", default=0,
    )  # fmt: skip
    rows_per_second: float | None = measured(
        "flowcore_query_records_in_per_second", "records read a second",
        key="records_per_second", default=None,
    )  # fmt: skip
    rows_out: int = measured(
        "flowcore_query_records_out", "records that came into its sinks' topics, whoever wrote them",
        key="records_out", kind="counter", default=0,
    )  # fmt: skip
    rows_out_per_second: float | None = measured(
        "flowcore_query_records_out_per_second", "records that came into its sinks' topics a second",
        key="records_out_per_second", default=None,
    )  # fmt: skip
    lag: int | None = measured(
        "flowcore_query_lag_records", "records of its sources that it has not read yet", default=None
    )
    backlog: bool | None = measured(
        "flowcore_query_backlog", "1 while what it reads is history, 0 while it is news", default=None
    )
    batch_ms: int | None = measured(
        "flowcore_query_batch_duration_seconds", "length of the last batch", default=None, scale=0.001
    )
    watermark_ms: int | None = measured(
        "flowcore_query_watermark_timestamp_seconds", "event time up to which all its sources are complete",
        default=None, scale=0.001,
    )  # fmt: skip
    late: int = measured(
        "flowcore_query_late_records", "late records that its windows put out as a stream of their own",
        kind="counter", default=0,
    )  # fmt: skip
    dropped: int = measured(
        "flowcore_query_dropped_records", "records that were dropped since they came too late",
        kind="counter", default=0,
    )  # fmt: skip
    dead_letters: int = measured(
        "flowcore_query_dead_letters", "messages that came into its dead-letter topics",
        kind="counter", default=0,
    )  # fmt: skip
    saved: int = measured(
        "flowcore_query_saved_records", "results that never left, since later ones of their key came first",
        kind="counter", default=0,
    )  # fmt: skip
    held: int | None = measured(
        "flowcore_query_held_records", "results in flush buffers, some of which later ones may replace",
        default=None,
    )  # fmt: skip
    oldest_held_ms: int | None = measured(
        "flowcore_query_oldest_held_seconds", "age of the oldest result in a flush buffer", default=None,
        scale=0.001,
    )  # fmt: skip
    state_rows: int | None = measured("flowcore_query_state_rows", "rows of state", default=None)
    state_bytes: int | None = measured("flowcore_query_state_bytes", "bytes of state", default=None)
    bounded: Mapping[str, str] = field(default_factory=dict)
    partitions: tuple[PartitionProgress, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyProgress(_Stored):
    """The latency from one source to one sink, of the markers of the last minute."""

    source: str
    sink: str
    markers: int = measured("flowcore_latency_markers", "latency markers of the last minute")
    p50_ms: float | None = measured(
        "flowcore_latency_seconds", "latency of the last minute's markers",
        default=None, scale=0.001, labels={"quantile": "0.5"},
    )  # fmt: skip
    p90_ms: float | None = measured(
        "flowcore_latency_seconds", "latency of the last minute's markers",
        default=None, scale=0.001, labels={"quantile": "0.9"},
    )  # fmt: skip
    p99_ms: float | None = measured(
        "flowcore_latency_seconds", "latency of the last minute's markers",
        default=None, scale=0.001, labels={"quantile": "0.99"},
    )  # fmt: skip
    max_ms: float | None = measured(
        "flowcore_latency_seconds", "latency of the last minute's markers",
        default=None, scale=0.001, labels={"quantile": "1"},
    )  # fmt: skip

    @classmethod
    def of_summary(cls, one: LatencySummary) -> LatencyProgress:
        """From what a collector tells."""
        return cls(
            source=one.source, sink=one.sink, markers=one.count,
            p50_ms=one.p50_ms, p90_ms=one.p90_ms, p99_ms=one.p99_ms, max_ms=one.max_ms,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch(_Stored):
    """A query that was started anew, in another mode or with another result; or that outlived something.

    Attributes:
        time_ms: When.
        query: Its name.
        before: Its mode before, in this run or in the run before it.
        after: Its mode now.
        reason: Why.
        pause_ms: From the end of what ran before to the start of what runs now; None between two runs.
    """

    time_ms: int
    query: str
    before: str
    after: str
    reason: str = ""
    pause_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowProgress(_Stored):
    """How a flow's live run is doing.

    Attributes:
        flow: The flow's name.
        time_ms: When this was so.
        state: ``"running"``, ``"ended"`` (stopped, or caught up) or ``"failed"``.
        error: Why it failed.
        interval_s: Seconds to the next look, by which a reader knows that a run is gone.
        host: Name of the machine that the run is on.
        pid: Its process there.
        switches: The last ones, oldest first.
    """

    flow: str
    time_ms: int = measured(
        "flowcore_flow_progress_timestamp_seconds", "time of the last look at the run", scale=0.001
    )
    seconds: float = measured("flowcore_flow_uptime_seconds", "seconds since the run was started")
    state: str = "running"
    error: str = ""
    interval_s: float = 0.0
    host: str = ""
    pid: int = 0
    broker_silent_ms: int = measured(
        "flowcore_flow_broker_silent_seconds", "time since a broker answered that does not; 0 while all do",
        default=0, scale=0.001,
    )  # fmt: skip
    queries: tuple[QueryProgress, ...] = ()
    latencies: tuple[LatencyProgress, ...] = ()
    switches: tuple[Switch, ...] = ()

    @property
    def started_ms(self) -> int:
        """When the run was started; tells it from other runs."""
        return round(self.time_ms - self.seconds * 1000)

    def stored(self) -> dict[str, Any]:
        """What JSON can hold; `of` reads it back."""
        return asdict(self)

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """From what `stored` gave, whatever version wrote it.

        Raises:
            TypeError: It is something else.
        """
        queries = [
            QueryProgress.of({**query, "partitions": _all(PartitionProgress, query.get("partitions", ()))})
            for query in stored.get("queries", ())
        ]
        inner = {
            "queries": tuple(queries),
            "latencies": _all(LatencyProgress, stored.get("latencies", ())),
            "switches": _all(Switch, stored.get("switches", ())),
        }
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in {**stored, **inner}.items() if name in known})


def _all(kind: type[_Stored], stored: Any) -> tuple[Any, ...]:
    return tuple(kind.of(one) for one in stored)
