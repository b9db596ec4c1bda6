"""The report: a flow's progress history as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from flowcore.metrics.chart import Line, Point, line_chart
from flowcore.metrics.health import TextTable, show_bytes, show_count, show_seconds, tables
from flowcore.metrics.progress import (
    FlowProgress,
    LatencyProgress,
    Measure,
    PartitionProgress,
    QueryProgress,
    measures_of,
)

_STYLE = Path(__file__).with_name("report.css")

_Parts = Callable[[FlowProgress], Iterable[tuple[str, Any]]]
"""Selects the parts of one kind from a progress, each with its name."""


def report_page(history: Sequence[FlowProgress]) -> str:
    """Build the page as HTML.

    Args:
        history: Oldest first, not empty.
    """
    last = history[-1]
    span_ms = history[0].time_ms, last.time_ms
    period = f"{_clock(span_ms[0])} to {_clock(span_ms[1])} (UTC), {len(history):,} reports"
    parts = [
        f"<h1>Flow {escape(last.flow)}</h1><p>{period}</p>",
        f"<h2>Runs</h2>{_table(_runs(history))}",
        f"<h2>Last report</h2>{''.join(map(_table, tables(last)))}",
        "<h2>Queries</h2>", *_charts(history, span_ms, QueryProgress, _queries),
        "<h2>Latency</h2>", *_charts(history, span_ms, LatencyProgress, _latencies),
        "<h2>Partitions</h2>", *_charts(history, span_ms, PartitionProgress, _partitions),
    ]  # fmt: skip
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>flowcore: {escape(last.flow)}</title><style>{_STYLE.read_text()}</style></head>\n"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _charts(
    history: Sequence[FlowProgress], span_ms: tuple[int, int], kind: Any, parts: _Parts
) -> Iterator[str]:
    plotted = (measure for measure in measures_of(kind) if measure.plotted)
    for _, group in groupby(plotted, lambda measure: measure.metric):
        measures = list(group)
        lines = [
            line
            for measure in measures
            for line in _lines(history, measure, parts, several=len(measures) > 1)
        ]
        first = measures[0]
        counted = ", since the run began" if first.kind == "counter" else ""
        title = f"{first.doc}{', time since then' if first.unit == 'ago' else counted}"
        yield line_chart(title, lines, span_ms, _SHOW[first.unit])


def _lines(history: Sequence[FlowProgress], measure: Measure, parts: _Parts, *, several: bool) -> list[Line]:
    points: dict[str, list[Point]] = {}
    before: FlowProgress | None = None
    for progress in history:
        if before and before.started_ms != progress.started_ms:
            for line in points.values():
                line.append((progress.time_ms, None))
        for name, part in parts(progress):
            points.setdefault(name, []).append((progress.time_ms, measure.figure(part, progress.time_ms)))
        before = progress
    suffix = f" {measure.key.removesuffix('_ms')}" if several else ""
    return [Line(name + suffix, found) for name, found in points.items()]


def _queries(progress: FlowProgress) -> list[tuple[str, QueryProgress]]:
    return [(query.name, query) for query in progress.queries]


def _latencies(progress: FlowProgress) -> list[tuple[str, LatencyProgress]]:
    return [(f"{one.source} to {one.sink}", one) for one in progress.latencies]


def _partitions(progress: FlowProgress) -> list[tuple[str, PartitionProgress]]:
    return [
        (f"{query.name}: {one.topic}[{one.partition}]", one)
        for query in progress.queries
        for one in query.partitions
    ]


def _runs(history: Sequence[FlowProgress]) -> TextTable:
    rows = []
    for started_ms, reports in groupby(history, lambda progress: progress.started_ms):
        *_, last = reports
        rows_in = sum(query.rows_in for query in last.queries)
        rows_out = sum(query.rows_out for query in last.queries)
        modes = ", ".join(dict.fromkeys(query.mode for query in last.queries))
        rows.append((
            _clock(started_ms), modes, f"{last.state} {last.error}".strip(),
            show_seconds(last.seconds), show_count(rows_in), show_count(rows_out),
        ))  # fmt: skip
    return TextTable(
        "", ("started", "mode", "last seen", "lasted", "read", "written"), tuple(rows[::-1]), names=3
    )


def _table(table: TextTable) -> str:
    def row(texts: Iterable[str], tag: str) -> str:
        cells = (
            f"<{tag}{' class=name' if number < table.names else ''}>{escape(text)}</{tag}>"
            for number, text in enumerate(texts)
        )
        return f"<tr>{''.join(cells)}</tr>"

    body = "".join(row(texts, "td") for texts in table.rows)
    return f"<table><caption>{escape(table.title)}</caption>{row(table.header, 'th')}{body}</table>\n"


def _clock(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


_SHOW: Mapping[str, Callable[[float], str]] = {
    "": show_count, "bytes": show_bytes, "seconds": show_seconds, "ago": show_seconds,
}  # fmt: skip
