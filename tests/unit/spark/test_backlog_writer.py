"""The backlog status of a query is written for its key groups; `tests/spark` reads it as they do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowcore.spark.checkpoint import backlog_status
from flowcore.spark.checkpoint.backlog_status import BacklogStatusWriter


def test_status_that_could_not_be_written_is_written_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk: otherwise key groups would stay in backlog."""
    status = BacklogStatusWriter(tmp_path / "query")
    folder = tmp_path / "query.backlog"
    folder.mkdir(exist_ok=True)
    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", _refuse)
        with pytest.raises(OSError, match="full"):
            status.write(backlog=False)
    assert [*folder.glob("*.json")] == []

    status.write(backlog=False)
    status.write(backlog=False)

    assert len([*folder.glob("*.json")]) == 1


def test_status_is_later_than_those_of_earlier_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Key groups take the last one of a batch, also if the clock was set back between two runs."""
    BacklogStatusWriter(tmp_path / "query").write(backlog=True)
    monkeypatch.setattr(backlog_status.time, "time_ns", lambda: 1)

    BacklogStatusWriter(tmp_path / "query").write(backlog=False)

    files = (json.loads(file.read_text()) for file in (tmp_path / "query.backlog").glob("*.json"))
    assert [each["backlog"] for each in sorted(files, key=lambda each: int(each["at"]))] == [True, False]


def _refuse(*_: object) -> int:
    raise OSError(28, "full")
