"""Line charts of numbers over time, as SVG inside HTML, without external resources."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

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
        """The known values."""
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
        f'<span><i class="c{number % _COLOURS}"></i>{escape(line.name)}: last {show(line.values[-1])}, '
        f"highest {show(max(line.values))}</span>"
        for number, line in enumerate(known)
    )
    return (
        f"<figure><figcaption><b>{escape(title)}</b>{legend}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{_grid(span_ms, top, show)}{paths}</svg></figure>\n"
    )


def _grid(span_ms: tuple[int, int], top: float, show: Callable[[float], str]) -> str:
    found = []
    for number in range(_Y_TICKS + 1):
        value = top * number / _Y_TICKS
        y = _y(value, top)
        found.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        found.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{escape(show(value))}</text>')
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
