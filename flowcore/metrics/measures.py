"""Measures of a run: numbers that are declared once, as fields of the typed progress.

`flowcore.metrics.progress` declares its fields with `measured`. Every view of progress (Prometheus, Dagster,
the terminal, the report) uses `measures_of`, so a new field appears in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal

__all__ = ["Measure", "measured", "measures_of"]

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
