"""The typed progress of a flow's live run at one moment, and its measures.

Each poll of a run makes one `FlowProgress`, which listeners receive and the history keeps. Counts begin with
the run; an unknown value is None. Times are milliseconds since the epoch, UTC.

A measure is declared once, as a field made by `measured`. Every view of progress (Prometheus, Dagster, the
terminal, the report) uses `measures_of`, so a new field appears in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import partial
from typing import Any, Literal, Self

from flowcore.latency import LatencySummary

__all__ = [
    "FlowProgress",
    "LatencyProgress",
    "Measure",
    "OperatorProgress",
    "PartitionProgress",
    "QueryProgress",
    "Switch",
    "measured",
    "measures_of",
]

_KEY = "measure"


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a flow, a query, a partition or a latency.

    Attributes:
        key: Its short name, the same in all events of a run.
        metric: Its name in Prometheus, without the ``_total`` of a counter.
        kind: A counter counts from the start of the run and never decreases.
        doc: Description with the unit.
        scale: From the field's unit to the metric's: 0.001 for milliseconds to seconds.
        labels: Labels that distinguish it from other measures with the same metric.
        plotted: Whether plots over time show it.
    """

    key: str
    metric: str
    kind: Literal["counter", "gauge"]
    doc: str
    scale: float
    labels: Mapping[str, str]
    plotted: bool
    _field: str

    def value(self, progress: Any) -> float | None:
        """Its value in the typed progress, in the field's unit; None if it is unknown."""
        value: float | None = getattr(progress, self._field)
        return value

    @property
    def unit(self) -> Literal["", "bytes", "seconds", "ago"]:
        """The unit of `figure`, by the suffix of the metric's name."""
        if self.metric.endswith("_timestamp_seconds"):
            return "ago"
        if self.metric.endswith("_seconds"):
            return "seconds"
        return "bytes" if self.metric.endswith("_bytes") else ""

    def figure(self, progress: Any, now_ms: int) -> float | None:
        """Its value in the metric's unit, as a plot shows it: for a timestamp, the seconds since then."""
        value = self.value(progress)
        if value is None:
            return None
        return max(now_ms / 1000 - value * self.scale, 0) if self.unit == "ago" else value * self.scale


def measured(
    metric: str,
    doc: str,
    *,
    key: str = "",
    kind: Literal["counter", "gauge"] = "gauge",
    default: Any = MISSING,
    scale: float = 1.0,
    labels: Mapping[str, str] | None = None,
    plotted: bool = True,
) -> Any:
    """A dataclass field with a `Measure`, described there; the default key is its name."""
    arguments = {
        "key": key, "metric": metric, "kind": kind, "doc": doc, "scale": scale, "labels": labels or {},
        "plotted": plotted,
    }  # fmt: skip
    return field(default=default, metadata={_KEY: arguments})


def measures_of(progress: Any) -> tuple[Measure, ...]:
    """The measures of a typed progress or of its class, in the order of the fields."""
    found = [(one.name, one.metadata[_KEY]) for one in fields(progress) if _KEY in one.metadata]
    return tuple(Measure(**{**given, "key": given["key"] or name}, _field=name) for name, given in found)


_if_known = partial(measured, default=None)
_counter = partial(measured, kind="counter", default=0)


def _quantile(quantile: str) -> Any:
    doc, labels = "latency of the last minute's markers", {"quantile": quantile}
    return _if_known("flowcore_latency_seconds", doc, scale=0.001, labels=labels)


class _Stored:
    """Restored from JSON: unknown keys are ignored, missing fields have their default."""

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """Restore from the result of `dataclasses.asdict`, of any version."""
        known = {one.name for one in fields(cls)}  # type: ignore[arg-type]
        return cls(**{name: value for name, value in stored.items() if name in known})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress(_Stored):
    """Progress of a query in one partition of a source's topic."""

    topic: str
    partition: int
    offset: int | None = _if_known("flowcore_partition_offset", "first uncommitted offset", plotted=False)
    end: int | None = _if_known("flowcore_partition_end_offset", "offset of the next record", plotted=False)
    lag: int | None = _if_known("flowcore_partition_lag_records", "uncommitted records")
    watermark_ms: int | None = _if_known(
        "flowcore_partition_watermark_timestamp_seconds", "watermark of the partition", scale=0.001
    )
    idle: bool | None = _if_known("flowcore_partition_idle", "1 while the partition is idle", plotted=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorProgress(_Stored):
    """How busy a query's operator is that runs in Python: one with state, or a chain of functions."""

    name: str
    busy_ms: int = measured(
        "flowcore_operator_busy_seconds",
        "time that workers spent in the operator",
        kind="counter",
        default=0,
        scale=0.001,
    )
    busy_share: float | None = _if_known(
        "flowcore_operator_busy_share",
        "the same per second, over the last batches: 1 is one worker all the time",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryProgress(_Stored):
    """Progress of one query.

    Attributes:
        mode: ``"realtime"``, ``"micro-batch"``, ``"slice"``, or ``"waiting"`` until it is started.
        backlog: Whether it reads backlog: a bounded result that it joins is pending, or a source lags
            (`flowcore.backlog`); None if that is not known.
        bounded: The versions of the bounded results that it joins, by stage.
    """

    name: str
    mode: str
    mode_reason: str = ""
    active: bool = measured("flowcore_query_active", "1 until the query ends", plotted=False)
    batches: int = _counter("flowcore_query_batches", "batches committed")
    rows_in: int = _counter("flowcore_query_records_in", "records read", key="records")
    rows_per_second: float | None = _if_known(
        "flowcore_query_records_in_per_second", "records read a second", key="records_per_second"
    )
    rows_out: int = _counter(
        "flowcore_query_records_out", "records added to its sinks' topics, by any writer", key="records_out"
    )
    rows_out_per_second: float | None = _if_known(
        "flowcore_query_records_out_per_second",
        "records added to its sinks' topics a second",
        key="records_out_per_second",
    )
    lag: int | None = _if_known("flowcore_query_lag_records", "unread records of its sources")
    backlog: bool | None = _if_known(
        "flowcore_query_backlog", "1 while it reads backlog, 0 while it reads live records"
    )
    batch_ms: int | None = _if_known(
        "flowcore_query_batch_duration_seconds", "duration of the last batch", scale=0.001
    )
    watermark_ms: int | None = _if_known(
        "flowcore_query_watermark_timestamp_seconds", "watermark of the query", scale=0.001
    )
    late: int = _counter(
        "flowcore_query_late_records", "late records that its windows emitted as a side output"
    )
    dropped: int = _counter(
        "flowcore_query_dropped_records", "records that were dropped because they were too late"
    )
    repeated: int = _counter(
        "flowcore_query_repeated_records", "records that repeated earlier ones and were dropped"
    )
    unidentified: int = _counter(
        "flowcore_query_unidentified_records", "records without flowcore-id, which were not deduplicated"
    )
    dead_letters: int = _counter("flowcore_query_dead_letters", "messages added to its dead-letter topics")
    saved: int = _counter(
        "flowcore_query_saved_records", "results that a flush buffer replaced by later ones of their key"
    )
    buffered: int | None = _if_known("flowcore_query_buffered_records", "results in flush buffers")
    oldest_buffered_ms: int | None = _if_known(
        "flowcore_query_oldest_buffered_seconds", "age of the oldest result in a flush buffer", scale=0.001
    )
    open_transactions: int | None = _if_known(
        "flowcore_query_open_transactions", "transactions that have not ended, which readers wait for"
    )
    oldest_transaction_ms: int | None = _if_known(
        "flowcore_query_oldest_transaction_seconds", "age of the oldest open transaction", scale=0.001
    )
    state_rows: int | None = _if_known("flowcore_query_state_rows", "rows of state")
    state_bytes: int | None = _if_known("flowcore_query_state_bytes", "bytes of state")
    bounded: Mapping[str, str] = field(default_factory=dict)
    partitions: tuple[PartitionProgress, ...] = ()
    operators: tuple[OperatorProgress, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyProgress(_Stored):
    """Latency from one source to one sink, of the markers of the last minute."""

    source: str
    sink: str
    markers: int = measured("flowcore_latency_markers", "latency markers of the last minute")
    p50_ms: float | None = _quantile("0.5")
    p90_ms: float | None = _quantile("0.9")
    p99_ms: float | None = _quantile("0.99")
    max_ms: float | None = _quantile("1")

    @classmethod
    def of_summary(cls, one: LatencySummary) -> LatencyProgress:
        """Convert the summary of a collector."""
        return cls(
            source=one.source, sink=one.sink, markers=one.count,
            p50_ms=one.p50_ms, p90_ms=one.p90_ms, p99_ms=one.p99_ms, max_ms=one.max_ms,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch(_Stored):
    """A change of a query: it was started again in another mode or with another result, or it recovered.

    Attributes:
        before: Its mode before, in this run or in the previous one.
        pause_ms: From the end of the previous query to the start of the current one; None between two runs.
    """

    time_ms: int
    query: str
    before: str
    after: str
    reason: str = ""
    pause_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowProgress(_Stored):
    """Progress of a flow's live run.

    Attributes:
        state: ``"running"``, ``"ended"`` (stopped, or caught up), ``"failed"``, or ``"killed"``: the next run
            found no report of its end.
        interval_s: Seconds to the next report; if it is overdue, the run is gone.
        switches: The last ones, oldest first.
        sinks: By broker, the topics that latency markers reach, each with ``flow/sink``.
    """

    flow: str
    time_ms: int = measured(
        "flowcore_flow_progress_timestamp_seconds", "time of the last progress report", scale=0.001
    )
    seconds: float = measured("flowcore_flow_uptime_seconds", "seconds since the run was started")
    state: str = "running"
    error: str = ""
    interval_s: float = 0.0
    host: str = ""
    pid: int = 0
    broker_silent_ms: int = measured(
        "flowcore_flow_broker_silent_seconds",
        "time since a silent broker last answered; 0 without one",
        default=0,
        scale=0.001,
    )
    memory_bytes: int | None = _if_known(
        "flowcore_flow_memory_bytes", "resident memory of the run's processes on its machine"
    )
    open_files: int | None = _if_known("flowcore_flow_open_files", "open files of the same")
    threads: int | None = _if_known("flowcore_flow_threads", "threads of the same")
    queries: tuple[QueryProgress, ...] = ()
    latencies: tuple[LatencyProgress, ...] = ()
    switches: tuple[Switch, ...] = ()
    sinks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def started_ms(self) -> int:
        """When the run was started; identifies the run."""
        return round(self.time_ms - self.seconds * 1000)

    def stored(self) -> dict[str, Any]:
        """As JSON values; `of` restores them."""
        return asdict(self)

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """Restore from the result of `stored`, of any version.

        Raises:
            TypeError: The value is not a stored progress.
        """
        queries = [
            QueryProgress.of({
                **query,
                "partitions": _all(PartitionProgress, query.get("partitions", ())),
                "operators": _all(OperatorProgress, query.get("operators", ())),
            })
            for query in stored.get("queries", ())
        ]  # fmt: skip
        inner = {
            "queries": tuple(queries),
            "latencies": _all(LatencyProgress, stored.get("latencies", ())),
            "switches": _all(Switch, stored.get("switches", ())),
        }
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in {**stored, **inner}.items() if name in known})


def _all(kind: type[_Stored], stored: Any) -> tuple[Any, ...]:
    return tuple(kind.of(one) for one in stored)
