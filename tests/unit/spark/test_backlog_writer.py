"""The backlog status of a query is written for its key groups; `tests/spark` reads it as they do."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def _refuse(*_: object) -> int:
    raise OSError(28, "full")
