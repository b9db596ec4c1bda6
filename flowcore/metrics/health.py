"""Health: a live run's progress in words and figures for a person.

A table is a header and rows of text, which the terminal, Markdown and HTML draw each in their way.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from flowcore.metrics.progress import FlowProgress

__all__ = ["TextTable", "markdown", "query_lines", "show_bytes", "show_count", "show_seconds", "tables"]

_NONE = "-"
_UNITS_S = {"d": 86_400, "h": 3_600, "min": 60, "s": 1}
_KIB = 1024
_FEW = 10


@dataclass(frozen=True, slots=True)
class TextTable:
    """What is shown as a table.

    Attributes:
        title: What it is of.
        header: Names of its columns.
        rows: As many texts as the header has; the first one or more name what the row is of.
        names: How many do.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1


def tables(progress: FlowProgress) -> list[TextTable]:
    """All that is known of a run, by subject; subjects of which nothing is known are left out."""
    makers = (_queries, _aside, _work, _latencies, _switches, _results, _partitions)
    return [table for make in makers if (table := make(progress)).rows]


def markdown(table: TextTable) -> str:
    """A table in Markdown; numbers are on the right."""
    marks = ["---"] * table.names + ["---:"] * (len(table.header) - table.names)
    rows = [
        table.header,
        tuple(marks),
        *(tuple(text.replace("|", "\\|") for text in row) for row in table.rows),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def query_lines(progress: FlowProgress) -> list[str]:
    """A line for each query."""
    return [
        f"{progress.flow}/{query.name} {query.mode}: {show_count(query.rows_per_second)}/s in, "
        f"{show_count(query.rows_out_per_second)}/s out, lag {show_count(query.lag)}, "
        f"late {query.late:,}, dropped {query.dropped:,}, dead letters {query.dead_letters:,}"
        f"{', catching up' if query.backlog else ''}"
        for query in progress.queries
    ]


def show_count(number: float | None) -> str:
    """A number of things, with a decimal where it is small and has one.

    >>> show_count(1234567), show_count(0.25), show_count(None)
    ('1,234,567', '0.2', '-')
    """
    if number is None:
        return _NONE
    return f"{round(number, 1):g}" if number < _FEW else f"{number:,.0f}"


def show_bytes(number: float | None) -> str:
    """A size.

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
    """A length of time, in the units that a person would take.

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


def _queries(progress: FlowProgress) -> TextTable:
    rows = [
        (
            query.name,
            query.mode if query.active else f"{query.mode}, ended",
            _reads(query.backlog),
            show_count(query.rows_per_second),
            show_count(query.rows_out_per_second),
            show_count(query.lag),
            _behind(query.watermark_ms, progress.time_ms),
        )
        for query in progress.queries
    ]
    header = ("query", "mode", "reads", "in/s", "out/s", "lag", "watermark")
    return TextTable("queries", header, tuple(rows), names=3)


def _aside(progress: FlowProgress) -> TextTable:
    rows = [
        (query.name, *map(show_count, (query.late, query.dropped, query.dead_letters)))
        for query in progress.queries
    ]
    return TextTable("put aside or lost", ("query", "late", "dropped", "dead letters"), tuple(rows))


def _work(progress: FlowProgress) -> TextTable:
    rows = [
        (
            query.name,
            show_count(query.rows_in),
            show_count(query.rows_out),
            show_count(query.batches),
            show_seconds(None if query.batch_ms is None else query.batch_ms / 1000),
            show_count(query.state_rows),
            show_bytes(query.state_bytes),
        )
        for query in progress.queries
    ]
    header = ("query", "read", "written", "batches", "last batch", "rows of state", "state")
    return TextTable("since the start", header, tuple(rows))


def _partitions(progress: FlowProgress) -> TextTable:
    rows = [
        (
            query.name,
            f"{one.topic}[{one.partition}]",
            show_count(one.offset),
            show_count(one.end),
            show_count(one.lag),
            _behind(one.watermark_ms, progress.time_ms) + (" (idle)" if one.idle else ""),
        )
        for query in progress.queries
        for one in query.partitions
    ]
    header = ("query", "partition", "committed", "end", "lag", "watermark")
    return TextTable("partitions", header, tuple(rows), names=2)


def _latencies(progress: FlowProgress) -> TextTable:
    rows = [
        (
            one.source,
            one.sink,
            show_count(one.markers),
            *map(_ms, (one.p50_ms, one.p90_ms, one.p99_ms, one.max_ms)),
        )
        for one in progress.latencies
    ]
    header = ("source", "sink", "markers", "p50", "p90", "p99", "max")
    return TextTable("latency of the last minute", header, tuple(rows), names=2)


def _results(progress: FlowProgress) -> TextTable:
    rows = sorted(
        {(stage, version) for query in progress.queries for stage, version in query.bounded.items()}
    )
    return TextTable("bounded results", ("stage", "version"), tuple(rows), names=2)


def _switches(progress: FlowProgress) -> TextTable:
    rows = [
        (
            _clock(one.time_ms),
            one.query,
            f"{one.before} to {one.after}" if one.before != one.after else one.after,
            one.reason or _NONE,
            show_seconds(None if one.pause_ms is None else one.pause_ms / 1000),
        )
        for one in reversed(progress.switches)
    ]
    return TextTable("last switches", ("time", "query", "mode", "reason", "pause"), tuple(rows), names=4)


def _reads(backlog: bool | None) -> str:
    return _NONE if backlog is None else "history" if backlog else "news"


def _behind(watermark_ms: int | None, now_ms: int) -> str:
    return _NONE if watermark_ms is None else f"{show_seconds(max(now_ms - watermark_ms, 0) / 1000)} ago"


def _ms(value_ms: float | None) -> str:
    return _NONE if value_ms is None else f"{value_ms:,.1f} ms"


def _clock(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
