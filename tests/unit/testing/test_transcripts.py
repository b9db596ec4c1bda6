"""Transcripts are read with all 64 bits, and every difference of an implementation is found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flowcore.errors import ConfigurationError, RunError
from flowcore.testing.transcripts import Outcome, Refused, TranscriptKind, load, replay_transcript


class _Scripted:
    """Returns the observations that a test gives."""

    def __init__(self, seen: list[Mapping[str, Any] | Exception]) -> None:
        self._seen = iter(seen)
        self.asked: list[tuple[str, Any]] = []

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        self.asked.append((action, argument))
        seen = next(self._seen)
        if isinstance(seen, Exception):
            raise seen
        return seen


def _written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "case.yaml"
    path.write_text(f"name: a law\noperator: {{kind: scripted}}\n{text}", encoding="utf-8")
    return path


def _replayed(tmp_path: Path, text: str, *seen: Mapping[str, Any] | Exception) -> Outcome:
    kind = TranscriptKind(build=lambda _: _Scripted(list(seen)))
    return replay_transcript(_written(tmp_path, text), {"scripted": kind})


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("min", -(2**63)),
        ("max", 2**63 - 1),
        ("'max'", "max"),
        ("{max: max}", {"max": 2**63 - 1}),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775807", -(2**63) + 1),
        ("010", 10),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("on", "on"),
        ("no", "no"),
        ("true", True),
        ("~", None),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("minor", "minor"),
    ],
)
def test_load_reads_scalars_as_they_stand(tmp_path: Path, written: str, read: object) -> None:
    """Times keep 64 bits, bare `min` and `max` are times, and other words are text."""
    (step,) = load(_written(tmp_path, f"steps: [{{in: {written}}}]")).steps

    assert step == {"in": read}
    assert type(step["in"]) is type(read)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x", "has no operator with a kind"),
        ("operator: {kind: x}\nsteps: 4", "not a list of mappings"),
        ("operator: {kind: x}\nsteps: [4]", "not a list of mappings"),
        ("operator: {kind: x, kind: y}", "'kind' is given twice"),
        ("operator: {", "cannot be read as YAML"),
    ],
    ids=["no-kind", "no-list", "no-mapping", "twice", "no-yaml"],
)
def test_load_refuses_other_files(tmp_path: Path, text: str, message: str) -> None:
    """The message names the file."""
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(ConfigurationError, match=rf"bad\.yaml.*{message}"):
        load(path)


@pytest.mark.parametrize(
    ("expected", "seen"),
    [
        ("out: [[a, 1, 5], [b, 2, 5]]", {"out": [("b", 2, 5), ("a", 1, 5)]}),
        ("out: [[a, 1, 5], [a, 1, 5, [0, 6]]]", {"out": [["a", 1, 5, [0, 6]], ["a", 1, 5, [3, 6]]]}),
        ("emits: []", {}),
        ("note: a remark", {"out": [], "dropped": 0, "current_ms": 3}),
        ("current_ms: min", {"current_ms": -(2**63)}),
        ("read: {record: [42, null]}", {"read": {"record": (42, None)}}),
    ],
    ids=["any-order", "window-only-where-expected", "nothing", "unasked", "time", "nested"],
)
def test_replay_agrees(tmp_path: Path, expected: str, seen: Mapping[str, Any]) -> None:
    """What the README leaves open may differ."""
    assert _replayed(tmp_path, f"steps:\n- in: []\n  {expected}", seen).disagreement is None


@pytest.mark.parametrize(
    ("expected", "seen"),
    [
        ("out: [[a, 1, 5]]", {}),
        ("out: [[a, 1, 5]]", {"out": [["a", 1, 5], ["a", 1, 5]]}),
        ("out: [[a, 1, 5], [a, 1, 5]]", {"out": [["a", 1, 5]]}),
        ("out: [[a, 1, 5, [0, 6]]]", {"out": [["a", 1, 5, [3, 6]]]}),
        ("note: x", {"out": [["a", 1, 5]]}),
        ("note: x", {"dropped": 1}),
        ("note: x", {"emits": [{"watermark": 1}]}),
        ("emits: [{watermark: 1}, {status: idle}]", {"emits": [{"status": "idle"}, {"watermark": 1}]}),
        ("current_ms: 3", {}),
        ("current_ms: 3", {"current_ms": 4}),
        ("read: 1", {"read": True}),
        ("read: {backlog: true}", {"read": {"backlog": 1}}),
        ("error: no-timestamp", {}),
        ("error: no-timestamp", Refused("only-records")),
        ("note: x", Refused("no-timestamp")),
        ("note: x", RunError("it broke")),
    ],
    ids=[
        "missing-row", "row-too-many", "row-once", "other-window", "unexpected-row", "unexpected-drop",
        "unexpected-emit", "other-order", "not-shown", "other-value", "bool-is-no-int", "int-is-no-bool",
        "not-refused", "refused-otherwise", "refused", "failed",
    ],
)  # fmt: skip
def test_replay_disagrees(tmp_path: Path, expected: str, seen: Mapping[str, Any] | Exception) -> None:
    """Each kind of difference is found, with its step."""
    outcome = _replayed(tmp_path, f"steps:\n- in: []\n- in: []\n  {expected}", {}, seen)

    assert outcome.steps == 1
    assert outcome.disagreement
    assert outcome.disagreement.startswith("case.yaml step 2 (in)")


@pytest.mark.parametrize(
    ("expected", "refused", "passed"),
    [
        ("error: invalid-argument", "invalid-argument", True),
        ("error: invalid-argument", "other", False),
        ("error: invalid-argument", None, False),
        ("note: x", "invalid-argument", False),
    ],
    ids=["as-expected", "otherwise", "not-refused", "unexpectedly"],
)
def test_replay_compares_how_building_fails(
    tmp_path: Path, expected: str, refused: str | None, passed: bool
) -> None:
    """The error's word must be the expected one."""

    def build(_: Mapping[str, Any]) -> _Scripted:
        if refused:
            raise Refused(refused)
        return _Scripted([])

    outcome = replay_transcript(
        _written(tmp_path, f"{expected}\nsteps: []"),
        {"scripted": TranscriptKind(build=build)},
    )

    assert outcome.passed is passed


def test_replay_hands_each_step_to_the_runner_without_what_is_expected(tmp_path: Path) -> None:
    """A runner does not get the expectations."""
    runner = _Scripted([{}, {"current_ms": 4}])
    kind = TranscriptKind(build=lambda _: runner)

    replay_transcript(
        _written(tmp_path, "steps:\n- in: [[k, 1, max]]\n- restart: true\n  current_ms: 4"),
        {"scripted": kind},
    )

    assert runner.asked == [("in", [["k", 1, 2**63 - 1]]), ("restart", True)]


@pytest.mark.parametrize(
    "step", ["{}", "{in: [], restart: true}", "{fly: 3}"], ids=["none", "two", "unknown"]
)
def test_replay_refuses_a_step_without_exactly_one_action(tmp_path: Path, step: str) -> None:
    """A step without an action would always agree."""
    with pytest.raises(ConfigurationError, match=r"step 1 has [02] actions"):
        _replayed(tmp_path, f"steps: [{step}]", {})


def test_replay_refuses_a_kind_without_runner(tmp_path: Path) -> None:
    """It is an error, not skipped."""
    with pytest.raises(ConfigurationError, match="kind 'scripted' cannot be replayed here"):
        replay_transcript(_written(tmp_path, "steps: []"), {})
