"""A live run's progress as text for a person: tables, formatted numbers, and whether the run is alive."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from flowcore.escaping import markdown_code
from flowcore.metrics.progress import FlowProgress

__all__ = [
    "TextTable", "liveness_problem", "markdown", "process_exists", "show_bytes", "show_count", "show_seconds",
    "tables",
]  # fmt: skip

_NONE = "-"
_UNITS_S = {"d": 86_400, "h": 3_600, "min": 60, "s": 1}
_KIB = 1024
_FEW = 10
_MISSED_REPORTS = 3
_SLACK_S = 30.0  # for a machine that is busy, or a broker that does not answer


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of texts, for the terminal, Markdown and HTML.

    Attributes:
        rows: Texts in the order of the header. The first columns name the subject of the row.
        names: Number of those columns.
    """

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    names: int = 1


def tables(progress: FlowProgress) -> list[TextTable]:
    """All known figures of a run as tables by subject; empty tables are left out."""
    return [table for table in (*_query_tables(progress), *_detail_tables(progress)) if table.rows]


def markdown(table: TextTable) -> str:
    """A table in Markdown; what names the subject of a row is code, numbers are aligned to the right."""
    marks = ["---"] * table.names + ["---:"] * (len(table.header) - table.names)
    rows = [
        table.header,
        tuple(marks),
        *(
            tuple(
                markdown_code(text, cell=True) if number < table.names else text
                for number, text in enumerate(row)
            )
            for row in table.rows
        ),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def show_count(number: float | None) -> str:
    """A count; a small one has a decimal.

    >>> show_count(1234567), show_count(0.25), show_count(None)
    ('1,234,567', '0.2', '-')
    """
    if number is None:
        return _NONE
    return f"{round(number, 1):g}" if number < _FEW else f"{number:,.0f}"


def show_bytes(number: float | None) -> str:
    """A size in bytes, with a suitable unit.

    >>> show_bytes(1536), show_bytes(None)
    ('1.5 KiB', '-')
    """
    if number is None:
        return _NONE
    size = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < _KIB:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _KIB
    return f"{size:,.1f} TiB"


def show_seconds(seconds: float | None) -> str:
    """A duration, with suitable units.

    >>> show_seconds(0.0042), show_seconds(95), show_seconds(7260), show_seconds(200_000)
    ('4.2 ms', '1 min 35 s', '2 h 1 min', '2 d 7 h')
    """
    if seconds is None:
        return _NONE
    if seconds < 1:
        return f"{round(seconds * 1000, 1):g} ms"
    if seconds < _FEW:
        return f"{round(seconds, 1):g} s"
    found, left = [], round(seconds)
    for unit, length in _UNITS_S.items():
        number, left = divmod(left, length)
        if number:
            found.append(f"{number} {unit}")
    return " ".join(found[:2])


def liveness_problem(last: FlowProgress, now_ms: int) -> str | None:
    """Why a flow does not run, or may not run; None if it runs.

    A run whose report is overdue does not run: its process or machine is gone, or hangs.

    The clock of ``now_ms`` has to agree with the run's.
    """
    ago_s = (now_ms - last.time_ms) / 1000
    ago = f"{show_seconds(max(ago_s, 0))} ago"
    if last.state == "failed":
        return f"flow {last.flow!r} failed {ago}: {last.error}"
    if last.state == "ended":
        return f"flow {last.flow!r} does not run; it ended {ago}"
    where = f"process {last.pid} on {last.host}"
    if last.state == "killed":
        return f"flow {last.flow!r} does not run: {where} was killed; its last report was {ago}"
    if last.host == socket.gethostname() and not process_exists(last.pid):
        return f"flow {last.flow!r} does not run: {where} is gone without a report; its last one was {ago}"
    if ago_s > _MISSED_REPORTS * last.interval_s + _SLACK_S:
        return (
            f"flow {last.flow!r} has not reported progress for {show_seconds(ago_s)}, though it reports "
            f"every {show_seconds(last.interval_s)}: {where} has been killed, or hangs; see its log"
        )
    return None


def process_exists(pid: int) -> bool:
    """Whether a process of any user runs on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process
        return True
    return True


def _query_tables(progress: FlowProgress) -> list[TextTable]:
    queries = [
        (
            query.name,
            query.mode if query.active else f"{query.mode}, ended",
            _NONE if query.backlog is None else "backlog" if query.backlog else "live",
            *map(show_count, (query.rows_per_second, query.rows_out_per_second, query.lag)),
            _ago(query.watermark_ms, progress.time_ms),
        )
        for query in progress.queries
    ]
    losses = [
        (query.name, *map(show_count, (query.late, query.dropped, query.dead_letters)))
        for query in progress.queries
    ]
    transactions = [
        (query.name, show_count(query.open_transactions), _show_ms(query.oldest_transaction_ms))
        for query in progress.queries
        if query.open_transactions is not None
    ]
    # Spark counts the rows of state only if a setting asks for it.
    counted = any(query.state_rows is not None for query in progress.queries)
    totals = [
        (
            query.name,
            *map(show_count, (query.rows_in, query.rows_out, query.batches)),
            _show_ms(query.batch_ms),
            *((show_count(query.state_rows),) if counted else ()),
            show_bytes(query.state_bytes),
        )
        for query in progress.queries
    ]
    rows = ("rows of state",) if counted else ()
    total_header = ("query", "read", "written", "batches", "last batch", *rows, "state")
    return [
        TextTable("queries", ("query", "mode", "reads", "in/s", "out/s", "lag", "watermark"), queries, 3),
        TextTable("late or lost", ("query", "late", "dropped", "dead letters"), losses),
        TextTable("since the start", total_header, totals),
        TextTable("transactions", ("query", "open", "oldest"), transactions),
    ]


def _detail_tables(progress: FlowProgress) -> list[TextTable]:
    latencies = [
        (
            one.source,
            one.sink,
            show_count(one.markers),
            *(
                f"{ms:,.1f} ms" if ms is not None else _NONE
                for ms in (one.p50_ms, one.p90_ms, one.p99_ms, one.max_ms)
            ),
        )
        for one in progress.latencies
    ]
    switches = [
        (
            f"{datetime.fromtimestamp(one.time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z",
            one.query,
            f"{one.before} to {one.after}" if one.before != one.after else one.after,
            one.reason or _NONE,
            _show_ms(one.pause_ms),
        )
        for one in reversed(progress.switches)
    ]
    busiest = sorted(
        ((query.name, one) for query in progress.queries for one in query.operators),
        key=lambda each: (-(each[1].busy_share or 0), -each[1].busy_ms),
    )
    operators = [
        (query, one.name, _NONE if one.busy_share is None else f"{one.busy_share:.0%}", _show_ms(one.busy_ms))
        for query, one in busiest
    ]
    results = {pair for query in progress.queries for pair in query.bounded.items()}
    partitions = [
        (
            query.name,
            f"{one.topic}[{one.partition}]",
            *map(show_count, (one.offset, one.end, one.lag)),
            _ago(one.watermark_ms, progress.time_ms) + (" (idle)" if one.idle else ""),
        )
        for query in progress.queries
        for one in query.partitions
    ]
    latency_header = ("source", "sink", "markers", "p50", "p90", "p99", "max")
    partition_header = ("query", "partition", "committed", "end", "uncommitted", "watermark")
    return [
        TextTable("operators, the busiest first", ("query", "operator", "busy", "in all"), operators, 2),
        TextTable("latency of the last minute", latency_header, latencies, 2),
        TextTable("last switches", ("time", "query", "mode", "reason", "pause"), switches, 4),
        TextTable("bounded results", ("stage", "version"), sorted(results), 2),
        TextTable("partitions", partition_header, partitions, 2),
    ]


def _show_ms(duration_ms: float | None) -> str:
    return show_seconds(None if duration_ms is None else duration_ms / 1000)


def _ago(watermark_ms: int | None, now_ms: int) -> str:
    return _NONE if watermark_ms is None else f"{show_seconds(max(now_ms - watermark_ms, 0) / 1000)} ago"
