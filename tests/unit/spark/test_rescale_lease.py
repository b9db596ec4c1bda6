"""A change of partitions or key groups whose lease another process has taken changes nothing."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowcore.errors import RunError
from flowcore.spark.run import regroup, rescale


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "query").mkdir()
    return tmp_path / "query"


def _take_over(checkpoint: Path) -> None:
    """What the start of a flow does, when the machine of this process was suspended for a minute."""
    (lease,) = checkpoint.parent.glob(".query.lease.[0-9]*")
    lease.with_name(".query.lease.9").touch()
    lease.unlink()


def test_new_key_groups_are_not_adopted(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The offsets and commits of the flow that runs meanwhile would be overwritten."""
    done: list[str] = []
    group = SimpleNamespace(manifest=SimpleNamespace(key_groups=16))

    @contextmanager
    def copy(_: Path) -> Any:
        yield checkpoint.with_name("copy")

    monkeypatch.setattr(regroup, "_read", lambda *_: [{"counted": {0: group}}])
    monkeypatch.setattr(regroup, "read_schemas", lambda _: {})
    monkeypatch.setattr(regroup, "_regroup", lambda *_: [])
    monkeypatch.setattr(regroup, "_copy", copy)
    monkeypatch.setattr(regroup, "_digest", lambda *_: 0)
    monkeypatch.setattr(regroup, "_write_batch", lambda *_: _take_over(checkpoint))
    for name in ("_adopt", "_follow"):
        monkeypatch.setattr(regroup, name, lambda *_, name=name: done.append(name))

    with pytest.raises(RunError, match="was taken over by another process"):
        regroup.regroup_checkpoint(SimpleNamespace(), checkpoint, 4)  # type: ignore[arg-type]

    assert done == []


def test_state_is_not_moved_to_other_partitions(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would plan and commit a batch under a number that the flow has used."""
    done: list[int] = []

    def digest(*_: Any) -> Any:
        _take_over(checkpoint)
        return SimpleNamespace(operators=["counted"])

    monkeypatch.setattr(rescale, "digest_state", digest)
    monkeypatch.setattr(rescale, "state_partitions", lambda _: 2)
    manager = SimpleNamespace(repartition=lambda _, partitions: done.append(partitions))
    spark: Any = SimpleNamespace(_streamingCheckpointManager=manager)

    with pytest.raises(RunError, match="was taken over by another process"):
        rescale.rescale_checkpoint(spark, checkpoint, 5)

    assert done == []
