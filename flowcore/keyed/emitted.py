"""The watermark and status that a query emits to its sinks: the combination over the key groups they read.

Each key group reports what it has emitted in a step. The watermark of an operator is the minimum over its key
groups, since all of them read the same input. That of the query is the minimum over the operators, and the
sources from which a sink reads directly, that are neither idle nor at their end. A watermark that a flush
buffer holds is not emitted yet.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, StreamElement, Watermark, WatermarkStatus

__all__ = ["SOURCES", "CombinedElements", "Report", "add_to_report", "latest_elements"]

SOURCES = "sources"
"""The name under which the sources report, in place of a key group."""

Report = dict[str, int | bool]
"""The latest watermark (``watermark_ms``) and status (``idle``) of a key group, in their order."""


def add_to_report(report: Report, element: StreamElement[Any]) -> None:
    """Replace the earlier element of its kind; other kinds are ignored.

    >>> report = {"watermark_ms": 5, "idle": True}
    >>> add_to_report(report, Watermark(7))
    >>> report
    {'idle': True, 'watermark_ms': 7}
    """
    match element:
        case Watermark(timestamp_ms):
            report.pop("watermark_ms", None)
            report["watermark_ms"] = timestamp_ms
        case WatermarkStatus(idle):
            report.pop("idle", None)
            report["idle"] = idle


def latest_elements(elements: Iterable[StreamElement[Any]]) -> list[StreamElement[Any]]:
    """The last element of each type, in order: a watermark may count only after the status before it."""
    found: dict[type, StreamElement[Any]] = {}
    for each in elements:
        found.pop(type(each), None)
        found[type(each)] = each
    return [*found.values()]


class CombinedElements:
    """Combines the watermarks and statuses that key groups emit to those of the query.

    Args:
        groups: The names of all key groups, ``operator/number``. Before its first report, a group holds the
            watermark.

    >>> combined = CombinedElements(["a/0", "a/1"])
    >>> combined.take("a/0", {"watermark_ms": 7})
    >>> combined.emit()
    ()
    >>> combined.take("a/1", {"watermark_ms": 5, "idle": True})
    >>> combined.emit()
    (Watermark(timestamp_ms=5),)
    """

    def __init__(self, groups: Iterable[str]) -> None:
        self._groups: dict[str, Report] = {group: {"watermark_ms": MIN_TIMESTAMP_MS} for group in groups}
        self._watermark_ms, self._idle = MIN_TIMESTAMP_MS, False
        self._status_first = True

    def take(self, group: str, report: Mapping[str, int | bool]) -> None:
        """Take the report of a step of one key group."""
        if group in self._groups:
            self._groups[group] |= report
            if len(report) > 1:
                self._status_first = next(iter(report)) == "idle"

    def activate(self) -> None:
        """Let all key groups be active, since reports were missed. Sources report their own status."""
        for name, report in self._groups.items():
            if name != SOURCES:
                report["idle"] = False

    def emit(self) -> tuple[Watermark | WatermarkStatus, ...]:
        """The elements changed since the last call, in the order of the last report that had both."""
        operators: dict[str, list[Report]] = {}
        for name, each in self._groups.items():
            operators.setdefault(name.rpartition("/")[0], []).append(each)
        channels = [
            (min(each["watermark_ms"] for each in groups), all(each.get("idle", False) for each in groups))
            for groups in operators.values()
        ]
        idle = all(is_idle for _, is_idle in channels)
        holding = [ms for ms, is_idle in channels if idle or not (is_idle or ms == MAX_TIMESTAMP_MS)]
        if all(ms == MAX_TIMESTAMP_MS for ms, _ in channels):
            holding = [MAX_TIMESTAMP_MS]
        watermark_ms = max(self._watermark_ms, min(holding, default=self._watermark_ms))
        status = [WatermarkStatus(idle)] if idle != self._idle else []
        watermark = [Watermark(watermark_ms)] if watermark_ms > self._watermark_ms else []
        self._watermark_ms, self._idle = watermark_ms, idle
        return (*status, *watermark) if self._status_first else (*watermark, *status)

    def snapshot(self) -> dict[str, Any]:
        """The state as JSON-able data."""
        return dict(self._groups)

    def restore(self, kept: Mapping[str, Report]) -> None:
        """Apply a `snapshot`; everything is emitted again. Removed key groups are ignored.

        Sources report again by themselves, and are active at first.
        """
        known = {name: each for name, each in kept.items() if name in self._groups and name != SOURCES}
        self._groups |= known
