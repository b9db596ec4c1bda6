"""A slow, independent implementation of windows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MIN, MAX = -(2**63), 2**63 - 1


@dataclass
class Oracle:
    """A slow implementation that computes everything again for each question.

    Written from the words of the transcripts' README and without any of flowcore's window modules: it has
    no timers, no panes and no state windows. ``kind`` is tumbling, sliding or session; windows have the
    event-time trigger, or a count trigger where ``count`` is given, purging or not.
    """

    kind: str
    size: int
    slide: int = 0
    offset: int = 0
    lateness: int = 0
    count: int = 0  # 0 stands for the event-time trigger
    purging: bool = False
    zero_gap_value: int | None = None
    watermark: int = MIN
    # Each live window: key, start, end, values still in it, records since the last count.
    windows: list[dict[str, Any]] = field(default_factory=list)

    def record(self, key: str, value: int, ts: int) -> dict[str, list[Any]]:
        shown: dict[str, list[Any]] = {"out": [], "late": []}
        counted = False
        for start, end in self.spans(value, ts):
            window = self.find(key, start, end)
            if self.cleanup(window["end"]) <= self.watermark:
                continue
            counted = True
            window["values"].append(value)
            window["since"] += 1
            self.keep(window)
            if self.count:
                if window["since"] >= self.count:
                    window["since"] = 0
                    self.emit(window, shown)
            elif window["end"] - 1 <= self.watermark:
                self.emit(window, shown)
        if not counted and min(ts + self.lateness, MAX) <= self.watermark:
            shown["late"].append((key, value, ts))
        return shown

    def advance(self, watermark: int) -> dict[str, list[Any]]:
        shown: dict[str, list[Any]] = {"out": [], "late": []}
        if watermark <= self.watermark:
            return shown
        before, self.watermark = self.watermark, watermark
        for window in list(self.windows):
            if not self.count and before < window["end"] - 1 <= watermark:
                self.emit(window, shown)
            if self.cleanup(window["end"]) <= watermark:
                self.windows.remove(window)
        return shown

    def spans(self, value: int, ts: int) -> list[tuple[int, int]]:
        if self.kind == "session":
            return [(ts, ts + (0 if value == self.zero_gap_value else self.size))]
        step = self.slide if self.kind == "sliding" else self.size
        # Try every start that could contain the timestamp, one millisecond after the other.
        starts = [s for s in range(ts - self.size + 1, ts + 1) if (s - self.offset) % step == 0]
        return [(s, s + self.size) for s in starts]

    def find(self, key: str, start: int, end: int) -> dict[str, Any]:
        fresh = {"key": key, "start": start, "end": end, "values": [], "since": 0, "of": []}
        if self.kind != "session":
            for window in self.windows:
                if (window["key"], window["start"], window["end"]) == (key, start, end):
                    return window
            return fresh
        touching = [w for w in self.windows if w["key"] == key and w["start"] <= end and start <= w["end"]]
        return {
            "key": key,
            "start": min([start, *(w["start"] for w in touching)]),
            "end": max([end, *(w["end"] for w in touching)]),
            "values": [value for w in sorted(touching, key=lambda w: w["start"]) for value in w["values"]],
            "since": sum(w["since"] for w in touching),
            "of": touching,
        }

    def keep(self, window: dict[str, Any]) -> None:
        self.windows = [w for w in self.windows if not any(w is part for part in window["of"])]
        window["of"] = []
        if not any(w is window for w in self.windows):
            self.windows.append(window)

    def cleanup(self, end: int) -> int:
        return min(end - 1 + self.lateness, MAX)

    def emit(self, window: dict[str, Any], shown: dict[str, list[Any]]) -> None:
        if window["values"]:
            values = tuple(window["values"])
            shown["out"].append((window["key"], values, window["start"], window["end"]))
        if self.purging:
            window["values"] = []
