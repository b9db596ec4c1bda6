"""Measures: what is told of a run, each declared once, as a field of the typed progress.

`flowcore.metrics.progress` declares its fields with `measured`. Whoever shows progress (Prometheus,
Dagster, the terminal, the report) asks `measures_of` and so shows a field that was added at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal

__all__ = ["Measure", "measured", "measures_of"]

_KEY = "measure"


@dataclass(frozen=True, slots=True)
class Measure:
    """One number that is told of a flow, a query, a partition or a latency.

    Attributes:
        key: Its short name, the same in all events of a run.
        metric: Its name in Prometheus, without the ``_total`` of a counter.
        kind: A counter counts from the start of the run and never goes back.
        doc: What it is, with its unit.
        scale: From the field's unit to the metric's: 0.001 for milliseconds to seconds.
        labels: Labels that tell it from others of the same metric.
        plotted: Its course over time says something to a person.
    """

    key: str
    metric: str
    kind: Literal["counter", "gauge"]
    doc: str
    scale: float
    labels: Mapping[str, str]
    plotted: bool
    _field: str

    def of(self, progress: Any) -> float | None:
        """Its value in a typed progress, in the field's unit; None if it is not known."""
        value: float | None = getattr(progress, self._field)
        return value

    @property
    def unit(self) -> Literal["", "bytes", "seconds", "ago"]:
        """What its `figure` counts, as its metric's name says."""
        if self.metric.endswith("_timestamp_seconds"):
            return "ago"
        return (
            "seconds"
            if self.metric.endswith("_seconds")
            else "bytes"
            if self.metric.endswith("_bytes")
            else ""
        )

    def figure(self, progress: Any, now_ms: int) -> float | None:
        """Its value in the metric's unit, as a plot shows it: of a moment, the seconds since then."""
        value = self.of(progress)
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
    """A dataclass field that is told to whoever looks at a run; see `Measure`.

    Args:
        metric: See `Measure`.
        doc: See `Measure`.
        key: Default: the field's name.
        kind: See `Measure`.
        default: Of the field.
        scale: See `Measure`.
        labels: See `Measure`.
        plotted: See `Measure`.
    """
    told = {
        "key": key, "metric": metric, "kind": kind, "doc": doc, "scale": scale, "labels": labels or {},
        "plotted": plotted,
    }  # fmt: skip
    return field(default=default, metadata={_KEY: told})


def measures_of(progress: Any) -> tuple[Measure, ...]:
    """The measures among the fields of a typed progress, or of its class, in their order."""
    found = [(one.name, one.metadata[_KEY]) for one in fields(progress) if _KEY in one.metadata]
    return tuple(Measure(**{**told, "key": told["key"] or name}, _field=name) for name, told in found)
