"""What transcripts of flush, bundles, backlog and checkpoints may say beyond those that are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowcore.errors import ConfigurationError
from flowcore.testing.transcripts import Kind, Outcome, replay

FLUSH = "operator: {kind: flush, interval_ms: 1000}\n"
FULL_AT_TWO = "operator: {kind: flush, interval_ms: 1000, memory_buffer_only: true, max_entries: 2}\n"


def _replayed(tmp_path: Path, text: str) -> Outcome:
    path = tmp_path / "case.yaml"
    path.write_text(f"name: a law\n{text}", encoding="utf-8")
    return replay(path)


@pytest.mark.parametrize(
    "text",
    [
        "operator: {kind: flush, interval_ms: 1000, keyed: false}\n"
        "steps:\n- in: [[a, 1, 5], [b, 2, 6]]\n- input_idle: true\n  out: [{record: [b, 2, 6]}]",
        FULL_AT_TWO + "steps:\n- in: [[a, 1, 5], [b, 2, 5], [c, 3, 5]]\n"
        "  out: [{any_order: [{record: [b, 2, 5]}, {record: [a, 1, 5]}]}]\n"
        "- end_of_input: true\n  out: [{record: [c, 3, 5]}]",
        FULL_AT_TWO + "steps:\n- in: [[a, 1, 5], [a, 2, 5]]\n- watermark_ms: 5\n- in: [[b, 3, 6]]\n"
        "  out: [{record: [a, 2, 5]}, {watermark: 5}, {record: [b, 3, 6]}]",
        FLUSH + "steps:\n- processing_time_ms: 400\n- in: [[a, 1, null]]\n- input_idle: true\n"
        "  out: [{record: [a, 1, null]}]\n- in: [[a, 2, null]]\n- processing_time_ms: 1399\n"
        "- restart: true\n- processing_time_ms: 1400\n  out: [{record: [a, 2, null]}]",
        FLUSH + "steps:\n- watermark_ms: min\n  out: [{watermark: min}]\n- in: [[a, 1, max], [b, null, min]]\n"
        "- watermark_ms: max\n- restart: true\n- end_of_input: true\n"
        "  out: [{any_order: [{record: [b, null, min]}, {record: [a, 1, max]}]}, {watermark: max}]",
        FLUSH + "steps:\n- in: [[a, 1, 5], [b, 1, null]]\n- watermark_ms: 10\n- watermark_status: idle\n"
        "- latency_marker: [op, 0, 7]\n- restart: true\n- latency_marker: [op, 0, 9]\n- input_idle: true\n"
        "  out: [{record: [a, 1, 5]}, {watermark: 10}, {status: idle}, {record: [b, 1, null]},\n"
        "        {latency_marker: [op, 0, 7]}]\n- watermark_status: active\n  out: [{status: active}]",
        FLUSH + "steps:\n- in: [[1, x, null], [true, y, null], [[p, 2], z, null]]\n- restart: true\n"
        "- input_idle: true\n  out_any_order: true\n"
        "  out: [{record: [1, x, null]}, {record: [true, y, null]}, {record: [[p, 2], z, null]}]",
        "operator: {kind: flush, interval_ms: -1}\nerror: invalid-argument\nsteps: []",
        "operator: {kind: flush, interval_ms: 1, max_entries: 0}\nerror: invalid-argument\nsteps: []",
        "operator: {kind: bundle, count: 2}\nsteps:\n- in: [[1, a, 5], [2, b, 6], [1, 7, null]]\n"
        "  out: [[2, b, null], [1, a, null]]\n  finished: 1\n- restart: true\n  finished: 1\n"
        "- watermark_ms: 9\n- in: [[1, c, null]]\n  out: [[1, '7,c', null]]\n  finished: 2\n"
        "- end_of_input: true\n  finished: 2",
        "operator: {kind: bundle, count: 0}\nerror: invalid-argument\nsteps: []",
        "operator: {kind: backlog, channels: 2}\nsteps:\n- in: [[0, false]]\n- restart: true\n- in: [[1, false]]\n"
        "  emits: [false]\n- in: [[0, true], [0, false]]\n  emits: [true, false]\n"
        "- in: [[0, true], [2, true]]\n  error: invalid-argument\n- in: [[0, true]]\n  emits: [true]",
        "operator: {kind: backlog, channels: 0}\nerror: invalid-argument\nsteps: []",
        "operator: {kind: checkpoint-interval, interval_ms: 10, backlog_interval_ms: 10}\nsteps:\n"
        "- backlog: {A: true}\n- processing_time_ms: 35\n  triggers: [10, 20, 30]",
        "operator: {kind: checkpoint-interval, interval_ms: 10, backlog_interval_ms: 0, backlog_at_start: [A, B]}\n"
        "steps:\n- processing_time_ms: 1000\n- backlog: {A: false}\n- end_of_data: [B]\n- restart: true\n"
        "- processing_time_ms: 1009\n- processing_time_ms: 1010\n  triggers: [1010]",
        "operator: {kind: checkpoint-interval, interval_ms: 10, backlog_interval_ms: 60, backlog_at_start: A}\n"
        "steps:\n- processing_time_ms: 59\n- processing_time_ms: 60\n  triggers: [60]\n- end_of_data: A\n"
        "- processing_time_ms: 70\n  triggers: [70]",
        "operator: {kind: checkpoint-interval, interval_ms: 10, backlog_interval_ms: 60, backlog_at_start: true}\n"
        "steps:\n- processing_time_ms: 20\n- backlog: {A: false}\n- processing_time_ms: 30\n  triggers: [30]",
        "operator: {kind: checkpoint-interval, interval_ms: 10, backlog_interval_ms: 60,\n"
        "  backlog_at_start: {A: true, B: false}}\nsteps:\n- processing_time_ms: 20\n- backlog: {B: false}\n"
        "- processing_time_ms: 59\n- processing_time_ms: 60\n  triggers: [60]",
        "operator: {kind: checkpoint-interval, interval_ms: 0}\nerror: invalid-argument\nsteps: []",
    ],
    ids=[
        "flush-unkeyed", "flush-full-within-a-step", "flush-full-behind-a-watermark", "flush-interval-after-idle",
        "flush-ends-of-time", "flush-watermark-then-status", "flush-keys-of-any-type", "flush-negative",
        "flush-no-entries", "bundle-over-restarts", "bundle-zero", "backlog-over-restarts", "backlog-zero",
        "checkpoint-clock-jumps", "checkpoint-none-in-backlog", "checkpoint-backlog-at-start-one",
        "checkpoint-backlog-at-start-unnamed", "checkpoint-backlog-at-start-mapping", "checkpoint-zero",
    ],
)  # fmt: skip
def test_transcript_agrees(tmp_path: Path, text: str) -> None:
    """Each is written by hand from the README."""
    outcome = _replayed(tmp_path, text)

    assert outcome.disagreement is None


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("flush, interval_ms: 1", "{watermark_status: sleepy}"),
        ("flush, interval_ms: 1", "{latency_marker: [op, 1]}"),
    ],
    ids=["status", "marker"],
)
def test_transcript_that_says_no_element_is_refused(tmp_path: Path, kind: str, step: str) -> None:
    """A slip of the pen shows; it does not pass as a step without effect."""
    outcome = _replayed(tmp_path, f"operator: {{kind: {kind}}}\nsteps: [{step}]")

    assert outcome.disagreement is not None
    assert "is no stream element" in outcome.disagreement


@pytest.mark.parametrize("kind", ["flush, interval_ms: 1", "bundle, count: 1", "backlog, channels: 1"])
def test_transcript_with_an_action_of_another_kind_is_refused(tmp_path: Path, kind: str) -> None:
    """It would pass as a step without effect."""
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
    """What the README leaves open is left open, and nothing else."""
    path = tmp_path / "case.yaml"
    path.write_text(f"operator: {{kind: shows}}\nsteps:\n- in: []\n  {step}", encoding="utf-8")
    kind = Kind(name="shows", build=lambda _: _Shows(seen), in_order=True)

    assert replay(path, {"shows": kind}).passed is agrees
