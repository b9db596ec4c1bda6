"""The report: a flow's progress history as one self-contained HTML page with line charts in SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from flowcore.escaping import html_text
from flowcore.metrics.health import (
    TextTable,
    liveness_problem,
    show_bytes,
    show_count,
    show_seconds,
    tables,
)
from flowcore.metrics.progress import (
    FlowProgress,
    LatencyProgress,
    Measure,
    PartitionProgress,
    QueryProgress,
    measures_of,
)

__all__ = ["Line", "Point", "line_chart", "report_page"]

_STYLE = Path(__file__).with_name("report.css")

_Parts = Callable[[FlowProgress], Iterable[tuple[str, Any]]]
"""Selects the parts of one kind from a progress, each with its name."""


def report_page(history: Sequence[FlowProgress], now_ms: int) -> str:
    """Build the page as HTML.

    Args:
        history: Oldest first, not empty.
        now_ms: By it a run without a last report is known to be killed.
    """
    last = history[-1]
    span_ms = history[0].time_ms, last.time_ms
    period = f"{_clock(span_ms[0])} to {_clock(span_ms[1])} (UTC), {len(history):,} reports"
    parts = [
        f"<h1>Flow {html_text(last.flow)}</h1><p>{period}</p>",
        f"<h2>Runs</h2>{_table(_runs(history, now_ms))}",
        f"<h2>Last report</h2>{''.join(map(_table, tables(last)))}",
        "<h2>Queries</h2>",
        *_charts(history, span_ms, QueryProgress, lambda one: [(each.name, each) for each in one.queries]),
        "<h2>Latency</h2>", *_charts(history, span_ms, LatencyProgress, _latencies),
        "<h2>Partitions</h2>", *_charts(history, span_ms, PartitionProgress, _partitions),
    ]  # fmt: skip
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>flowcore: {html_text(last.flow)}</title><style>{_STYLE.read_text()}</style></head>\n"
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


def _latencies(progress: FlowProgress) -> list[tuple[str, LatencyProgress]]:
    return [(f"{one.source} to {one.sink}", one) for one in progress.latencies]


def _partitions(progress: FlowProgress) -> list[tuple[str, PartitionProgress]]:
    return [
        (f"{query.name}: {one.topic}[{one.partition}]", one)
        for query in progress.queries
        for one in query.partitions
    ]


def _runs(history: Sequence[FlowProgress], now_ms: int) -> TextTable:
    rows = []
    newest = history[-1].started_ms
    for started_ms, reports in groupby(history, lambda progress: progress.started_ms):
        *_, last = reports
        rows_in = sum(query.rows_in for query in last.queries)
        rows_out = sum(query.rows_out for query in last.queries)
        state = last.state
        if state == "running" and started_ms != newest:
            state = "end not kept"  # only the outline of such an old run is kept
        elif state == "running" and liveness_problem(last, now_ms) is not None:
            state = "killed"
        modes = ", ".join(dict.fromkeys(query.mode for query in last.queries))
        rows.append((
            _clock(started_ms), modes, f"{state} {last.error}".strip(),
            show_seconds(last.seconds), show_count(rows_in), show_count(rows_out),
        ))  # fmt: skip
    return TextTable(
        "", ("started", "mode", "last seen", "lasted", "read", "written"), tuple(rows[::-1]), names=3
    )


def _table(table: TextTable) -> str:
    def row(texts: Iterable[str], tag: str) -> str:
        cells = (
            f"<{tag}{' class=name' if number < table.names else ''}>{html_text(text)}</{tag}>"
            for number, text in enumerate(texts)
        )
        return f"<tr>{''.join(cells)}</tr>"

    body = "".join(row(texts, "td") for texts in table.rows)
    return f"<table><caption>{html_text(table.title)}</caption>{row(table.header, 'th')}{body}</table>\n"


def _clock(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


_SHOW: Mapping[str, Callable[[float], str]] = {
    "": show_count, "bytes": show_bytes, "seconds": show_seconds, "ago": show_seconds,
}  # fmt: skip


Point = tuple[int, float | None]
"""A time and the value at that time; None breaks the line."""

_WIDTH, _HEIGHT = 960, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 12, 8, 24
_COLOURS = 8
_Y_TICKS, _X_TICKS = 4, 8
_STEPS_S = (1, 5, 15, 60, 300, 900, 3_600, 10_800, 43_200, 86_400, 604_800, 2_592_000)
_DAY_S = 86_400
_MINUTE_S = 60


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart, with its points in order of time."""

    name: str
    points: Sequence[Point]

    @property
    def values(self) -> list[float]:
        return [value for _, value in self.points if value is not None]


def line_chart(
    title: str, lines: Iterable[Line], span_ms: tuple[int, int], show: Callable[[float], str]
) -> str:
    """A chart as HTML: a title, a legend with the last and the highest value, and the lines.

    Lines without a known value are left out; without any line the result is empty text.
    """
    known = [line for line in lines if line.values]
    if not known:
        return ""
    top = _nice_above(max(max(line.values) for line in known))
    paths = "".join(
        f'<path class="c{number % _COLOURS}" d="{_path(line.points, span_ms, top)}"/>'
        for number, line in enumerate(known)
    )
    legend = "".join(
        f'<span><i class="c{number % _COLOURS}"></i>{html_text(line.name)}: last {show(line.values[-1])}, '
        f"highest {show(max(line.values))}</span>"
        for number, line in enumerate(known)
    )
    return (
        f"<figure><figcaption><b>{html_text(title)}</b>{legend}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html_text(title)}">'
        f"{_grid(span_ms, top, show)}{paths}</svg></figure>\n"
    )


def _grid(span_ms: tuple[int, int], top: float, show: Callable[[float], str]) -> str:
    found = []
    for number in range(_Y_TICKS + 1):
        value = top * number / _Y_TICKS
        y = _y(value, top)
        found.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        found.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{html_text(show(value))}</text>')
    for time_ms, label in _times(span_ms):
        x = _x(time_ms, span_ms)
        found.append(f'<line x1="{x}" x2="{x}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        found.append(f'<text x="{x}" y="{_HEIGHT - 8}" text-anchor="middle">{label}</text>')
    return f'<g class="grid">{"".join(found)}</g>'


def _times(span_ms: tuple[int, int]) -> Iterator[tuple[int, str]]:
    first_s, last_s = span_ms[0] / 1000, span_ms[1] / 1000
    step = next((step for step in _STEPS_S if (last_s - first_s) / step <= _X_TICKS), _STEPS_S[-1])
    form = "%Y-%m-%d" if step >= _DAY_S else "%H:%M" if step >= _MINUTE_S else "%H:%M:%S"
    if step < _DAY_S < last_s - first_s:
        form = "%m-%d %H:%M"
    for time_s in range(math.ceil(first_s / step) * step, math.floor(last_s) + 1, step):
        yield time_s * 1000, f"{datetime.fromtimestamp(time_s, UTC):{form}}"


def _path(points: Sequence[Point], span_ms: tuple[int, int], top: float) -> str:
    found, pen_is_up = [], True
    for time_ms, value in _thinned(points, span_ms):
        if value is None:
            pen_is_up = True
            continue
        place = f"{_x(time_ms, span_ms)} {_y(value, top)}"
        # A single point is a line of length zero, which round line ends show as a dot.
        found.append(f"M{place}h0" if pen_is_up else f"L{place}")
        pen_is_up = False
    return "".join(found)


def _thinned(points: Sequence[Point], span_ms: tuple[int, int]) -> Iterator[Point]:
    """The lowest and the highest of the points that share a column of pixels."""
    column: list[tuple[int, float]] = []
    at: int | None = None
    for time_ms, value in points:
        here = int(_x(time_ms, span_ms))
        if value is None or here != at:
            yield from _ends(column)
            column, at = [], here
        if value is None:
            yield time_ms, None
        else:
            column.append((time_ms, value))
    yield from _ends(column)


def _ends(column: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    if not column:
        return []
    lowest, highest = (pick(column, key=lambda point: point[1]) for pick in (min, max))
    return sorted({lowest, highest})


def _nice_above(value: float) -> float:
    """The smallest of 1, 2, 5, 10, ... that is not below the value, for round labels."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def _x(time_ms: int, span_ms: tuple[int, int]) -> float:
    first, last = span_ms
    return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * (time_ms - first) / max(last - first, 1), 1)


def _y(value: float, top: float) -> float:
    return round(_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * min(max(value / top, 0), 1), 1)
