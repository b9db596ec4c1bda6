"""`flowcore replay` counts passed transcripts, shows where others fail, and sets the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flowcore.cli.replay import replay
from flowcore.errors import ConfigurationError

GOOD = """
name: a window emits at its end
operator: {kind: window, window: {kind: tumbling, size_ms: 10}}
steps:
  - in: [[a, 1, 5]]
  - watermark_ms: 9
    out: [[a, 1, 9]]
"""
BAD = GOOD.replace("[[a, 1, 9]]", "[[a, 2, 9]]")
NOT_REFUSED = GOOD.replace("steps:", "error: invalid-argument\nsteps:")
UNKNOWN = "operator: {kind: telepathy}\nsteps: []"


def _replay(*arguments: object) -> Result:
    return CliRunner().invoke(replay, [str(argument) for argument in arguments])


def _folder(tmp_path: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "README.md").write_text("no transcript", encoding="utf-8")
    return tmp_path


def test_replay_counts_what_passed(tmp_path: Path) -> None:
    """Folders and files are accepted; passed transcripts are not listed."""
    folder = _folder(tmp_path, one=GOOD, two=GOOD)

    result = _replay(folder, folder / "one.yaml")

    assert (result.exit_code, result.stdout) == (0, "3 passed, 0 failed, 0 skipped\n")


def test_replay_names_file_step_and_both_sides_of_a_failure(tmp_path: Path) -> None:
    """All other transcripts are replayed too, and the exit code is 1."""
    folder = _folder(
        tmp_path, a_bad=BAD, b_good=GOOD, c_unknown=UNKNOWN, d_broken="{", e_not_refused=NOT_REFUSED
    )

    result = _replay(folder)

    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[:3] == [
        f"{folder / 'a_bad.yaml'}: step 2 (watermark_ms): out",
        '  expected [["a", 2, 9]]',
        '  seen     [["a", 1, 9, [0, 10]]]',
    ]
    assert lines[3] == f"{folder / 'c_unknown.yaml'}: skipped: kind 'telepathy' is not in the README"
    assert "d_broken.yaml: failed:" in result.stdout
    assert lines[-4:] == [
        f"{folder / 'e_not_refused.yaml'}: building the operator: error",
        '  expected "invalid-argument"',
        "  seen     nothing",
        "1 passed, 3 failed, 1 skipped",
    ]


def test_replay_writes_json_lines(tmp_path: Path) -> None:
    """One line for each transcript, and the totals."""
    folder = _folder(tmp_path, a_bad=BAD, b_good=GOOD)

    result = _replay("--json", "--engine", "memory", folder)
    bad, good, total = map(json.loads, result.stdout.splitlines())

    assert result.exit_code == 1
    assert bad == {
        "file": str(folder / "a_bad.yaml"), "name": "a window emits at its end", "kind": "window",
        "result": "failed", "step": 2, "action": "watermark_ms", "what": "out",
        "expected": [["a", 2, 9]], "seen": [["a", 1, 9, [0, 10]]],
    }  # fmt: skip
    assert (good["result"], good["steps"]) == ("passed", 2)
    assert total == {"passed": 1, "failed": 1, "skipped": 0}
    assert result.stderr == "1 passed, 1 failed, 0 skipped\n"


@pytest.mark.parametrize("arguments", [[], ["--engine", "abacus", "."], ["not-there.yaml"]], ids=["none", "engine", "gone"])  # fmt: skip # noqa: E501
def test_replay_refuses_what_it_cannot_run(arguments: list[str]) -> None:
    """The error is raised before any transcript is replayed."""
    assert _replay(*arguments).exit_code == 2


def test_replay_refuses_a_folder_without_transcripts(tmp_path: Path) -> None:
    """Replaying nothing must not count as success."""
    result = _replay(_folder(tmp_path))

    assert isinstance(result.exception, ConfigurationError)
