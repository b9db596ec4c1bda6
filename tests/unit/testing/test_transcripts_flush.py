"""Transcripts of flush, bundles, backlog and checkpoints, in addition to those of the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowcore.errors import ConfigurationError
from flowcore.testing.transcripts import Outcome, TranscriptKind, replay_transcript

CASES = """
name: flush unkeyed
operator: {kind: flush, interval_ms: 1000, keyed: false}
steps:
  - in: [[a, 1, 5], [b, 2, 6]]
  - input_idle: true
    out: [{record: [b, 2, 6]}]
---
name: flush full within a step
operator: {kind: flush, interval_ms: 1000, memory_buffer_only: true, max_entries: 2}
steps:
  - in: [[a, 1, 5], [b, 2, 5], [c, 3, 5]]
    out: [{any_order: [{record: [b, 2, 5]}, {record: [a, 1, 5]}]}]
  - end_of_input: true
    out: [{record: [c, 3, 5]}]
---
name: flush full behind a watermark
operator: {kind: flush, interval_ms: 1000, memory_buffer_only: true, max_entries: 2}
steps:
  - in: [[a, 1, 5], [a, 2, 5]]
  - watermark_ms: 5
  - in: [[b, 3, 6]]
    out: [{record: [a, 2, 5]}, {watermark: 5}, {record: [b, 3, 6]}]
---
name: flush interval after idle and restart
operator: {kind: flush, interval_ms: 1000}
steps:
  - processing_time_ms: 400
  - in: [[a, 1, null]]
  - input_idle: true
    out: [{record: [a, 1, null]}]
  - in: [[a, 2, null]]
  - processing_time_ms: 1399
  - restart: true
  - processing_time_ms: 1400
    out: [{record: [a, 2, null]}]
---
name: flush at the ends of time
operator: {kind: flush, interval_ms: 1000}
steps:
  - watermark_ms: min
    out: [{watermark: min}]
  - in: [[a, 1, max], [b, null, min]]
  - watermark_ms: max
  - restart: true
  - end_of_input: true
    out: [{any_order: [{record: [b, null, min]}, {record: [a, 1, max]}]}, {watermark: max}]
---
name: flush watermark then status over restarts
operator: {kind: flush, interval_ms: 1000}
steps:
  - in: [[a, 1, 5], [b, 1, null]]
  - watermark_ms: 10
  - watermark_status: idle
  - latency_marker: [op, 0, 7]
  - restart: true
  - latency_marker: [op, 0, 9]
  - input_idle: true
    out: [{record: [a, 1, 5]}, {watermark: 10}, {status: idle}, {record: [b, 1, null]}, {latency_marker: [op, 0, 7]}]
  - watermark_status: active
    out: [{status: active}]
---
name: flush keys of any type
operator: {kind: flush, interval_ms: 1000}
steps:
  - in: [[1, x, null], [true, y, null], [[p, 2], z, null]]
  - restart: true
  - input_idle: true
    out_any_order: true
    out: [{record: [1, x, null]}, {record: [true, y, null]}, {record: [[p, 2], z, null]}]
---
name: flush refuses a negative interval
operator: {kind: flush, interval_ms: -1}
error: invalid-argument
---
name: flush refuses a buffer of no entries
operator: {kind: flush, interval_ms: 1, max_entries: 0}
error: invalid-argument
---
name: bundle over restarts
operator: {kind: bundle, count: 2}
steps:
  - in: [[1, a, 5], [2, b, 6], [1, 7, null]]
    out: [[2, b, null], [1, a, null]]
    finished: 1
  - restart: true
    finished: 1
  - watermark_ms: 9
  - in: [[1, c, null]]
    out: [[1, "7,c", null]]
    finished: 2
  - end_of_input: true
    finished: 2
---
name: bundle refuses a count of zero
operator: {kind: bundle, count: 0}
error: invalid-argument
---
name: backlog over restarts
operator: {kind: backlog, channels: 2}
steps:
  - in: [[0, false]]
  - restart: true
  - in: [[1, false]]
    emits: [false]
  - in: [[0, true], [0, false]]
    emits: [true, false]
  - in: [[0, true], [2, true]]
    error: invalid-argument
  - in: [[0, true]]
    emits: [true]
---
name: backlog refuses to have no channel
operator: {kind: backlog, channels: 0}
error: invalid-argument
---
name: checkpoint when the clock jumps
operator: {kind: checkpoint-interval, interval_ms: 10, backlog_interval_ms: 10}
steps:
  - backlog: {A: true}
  - processing_time_ms: 35
    triggers: [10, 20, 30]
---
name: checkpoint with none in backlog
operator: {kind: checkpoint-interval, interval_ms: 10, backlog_interval_ms: 0, backlog_at_start: [A, B]}
steps:
  - processing_time_ms: 1000
  - backlog: {A: false}
  - end_of_data: [B]
  - restart: true
  - processing_time_ms: 1009
  - processing_time_ms: 1010
    triggers: [1010]
---
name: checkpoint of one source in backlog at the start
operator: {kind: checkpoint-interval, interval_ms: 10, backlog_interval_ms: 60, backlog_at_start: A}
steps:
  - processing_time_ms: 59
  - processing_time_ms: 60
    triggers: [60]
  - end_of_data: A
  - processing_time_ms: 70
    triggers: [70]
---
name: checkpoint of an unnamed source in backlog at the start
operator: {kind: checkpoint-interval, interval_ms: 10, backlog_interval_ms: 60, backlog_at_start: true}
steps:
  - processing_time_ms: 20
  - backlog: {A: false}
  - processing_time_ms: 30
    triggers: [30]
---
name: checkpoint of sources of which one is in backlog at the start
operator: {kind: checkpoint-interval, interval_ms: 10, backlog_interval_ms: 60, backlog_at_start: {A: true, B: false}}
steps:
  - processing_time_ms: 20
  - backlog: {B: false}
  - processing_time_ms: 59
  - processing_time_ms: 60
    triggers: [60]
---
name: checkpoint refuses an interval of zero
operator: {kind: checkpoint-interval, interval_ms: 0}
error: invalid-argument
"""  # noqa: E501 - a step is a line
"""Written by hand from the transcripts' README."""


def _replayed(tmp_path: Path, text: str) -> Outcome:
    path = tmp_path / "case.yaml"
    path.write_text(text, encoding="utf-8")
    return replay_transcript(path)


@pytest.mark.parametrize("case", CASES.split("---\n"), ids=lambda case: case.split("\n")[case[0] == "\n"][6:])
def test_transcript_agrees(tmp_path: Path, case: str) -> None:
    """Each step shows exactly what is expected."""
    outcome = _replayed(tmp_path, case)

    assert outcome.disagreement is None


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("flush, interval_ms: 1", "{watermark_status: sleepy}"),
        ("flush, interval_ms: 1", "{latency_marker: [op, 1]}"),
    ],
    ids=["status", "marker"],
)
def test_transcript_with_an_unknown_element_is_refused(tmp_path: Path, kind: str, step: str) -> None:
    """A typing error is not a step without effect."""
    outcome = _replayed(tmp_path, f"operator: {{kind: {kind}}}\nsteps: [{step}]")

    assert outcome.disagreement is not None
    assert "is not a stream element" in outcome.disagreement


@pytest.mark.parametrize("kind", ["flush, interval_ms: 1", "bundle, count: 1", "backlog, channels: 1"])
def test_transcript_with_an_action_of_another_kind_is_refused(tmp_path: Path, kind: str) -> None:
    """It would be a step without effect."""
    with pytest.raises(ConfigurationError, match="has 0 actions"):
        _replayed(tmp_path, f"operator: {{kind: {kind}}}\nsteps: [{{end_of_data: [A]}}]")


class _Shows:
    def __init__(self, out: list[Any]) -> None:
        self._out = out

    def act(self, _action: str, _argument: Any, /) -> dict[str, Any]:
        return {"out": self._out}


@pytest.mark.parametrize(
    ("step", "seen", "agrees"),
    [
        ("out: [1, {any_order: [2, 3]}, 4]", [1, 3, 2, 4], True),
        ("out: [1, {any_order: [2, 3]}, 4]", [1, 3, 4, 2], False),
        ("out: [1, {any_order: [2, 3]}, 4]", [1, 2, 2, 4], False),
        ("out: [1, {any_order: [2, 3]}]", [1, 2], False),
        ("out: [1, {any_order: [2, 3]}]", [1, 2, 3, 4], False),
        ("out: [1, 2]", [2, 1], False),
        ("out_any_order: true\n  out: [1, 2, 2]", [2, 1, 2], True),
        ("out_any_order: true\n  out: [1, 2, 2]", [2, 1, 1], False),
        ("out_any_order: true\n  out: [1, {any_order: [2, 3]}]", [3, 1, 2], True),
        ("out_any_order: false\n  out: [1, 2]", [2, 1], False),
        ("out_any_order: true\n  out: []", [1], False),
        ("out_any_order: true", [1], False),
    ],
    ids=[
        "group", "across-groups", "twice", "too-few", "too-many", "ordered", "all-free", "all-free-counts",
        "group-in-all-free", "not-free", "nothing", "nothing-named",
    ],
)  # fmt: skip
def test_order_is_compared_except_within_groups(
    tmp_path: Path, step: str, seen: list[Any], agrees: bool
) -> None:
    """Only what the README leaves open may differ."""
    path = tmp_path / "case.yaml"
    path.write_text(f"operator: {{kind: shows}}\nsteps:\n- in: []\n  {step}", encoding="utf-8")
    kind = TranscriptKind(build=lambda _: _Shows(seen), in_order=True)

    assert replay_transcript(path, {"shows": kind}).passed is agrees
