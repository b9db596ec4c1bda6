"""A change of the number of partitions that was interrupted is undone or completed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from flowcore import Flow, KafkaTopic
from flowcore.delivery import LedgerTerms
from flowcore.kafka.topics import TopicIdentity
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.checkpoint.offset_log import planned_batches
from flowcore.spark.checkpoint.plan_file import checkpoint_folder, read_plan_file, write_plan_file
from flowcore.spark.checkpoint.repartitioning import copy_of, settle_repartition

KEPT = ("offsets/7", "commits/7", "state/0/1/8_a.zip", "state/0/1/.8_a.zip.crc", "state/0/_metadata/v2/0")
NEW = (
    "offsets/.8.crc", "state/0/1/9_b.zip", "state/0/1/.9_b.zip.crc", "state/0/4/9_c.changelog",
    "state/0/_metadata/v2/8", "state/0/_metadata/v2/.8.crc",
)  # fmt: skip


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of a query that delivers exactly once; its batch 8 changes the number of partitions."""
    flow = Flow("f")
    flow.read("bids", KafkaTopic("bids", schema="id BIGINT")).write("out", KafkaTopic("out"))
    settings = Settings.of({"state.dir": tmp_path}, environment={})
    (query,) = plan_flow(flow, settings=settings).live_queries
    folder = checkpoint_folder(query, "f", settings)
    topics = {"bids": TopicIdentity("cluster-a", "id-1", 2)}
    write_plan_file(query, "f", folder, {}, topics=topics, bounded={}, slots=2)
    for name in (*KEPT, *NEW, "commits/8"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("content")
    _plan(folder, 7, partitions=2)
    _plan(folder, 8, partitions=5)
    return folder


def _plan(checkpoint: Path, batch: int, partitions: int) -> None:
    conf = {"conf": {"spark.sql.shuffle.partitions": str(partitions)}}
    (checkpoint / "offsets" / str(batch)).write_text(f'v1\n{json.dumps(conf)}\n{{"bids":{{"0":5}}}}')


def _files(checkpoint: Path) -> set[str]:
    return {str(file.relative_to(checkpoint)) for file in checkpoint.rglob("*") if file.is_file()}


def _ledger(checkpoint: Path) -> LedgerTerms | None:
    identity = read_plan_file(checkpoint)
    assert identity is not None
    return identity.ledger


def test_change_without_its_commit_is_undone(checkpoint: Path) -> None:
    """Otherwise the next start would look for the state in partitions that do not have it."""
    (checkpoint / "commits" / "8").unlink()
    before = _files(checkpoint)

    settle_repartition(checkpoint)

    assert before - _files(checkpoint) == {*NEW, "offsets/8"}
    assert {*KEPT} <= _files(checkpoint)
    assert planned_batches(checkpoint) == [7]
    assert _ledger(checkpoint) == LedgerTerms(2, 0)


def test_ledger_leaves_out_a_change_that_was_committed(checkpoint: Path) -> None:
    """It has no records, so the ledger would end with the batch before it. A second call changes nothing."""
    before = _files(checkpoint)

    for _ in range(2):
        settle_repartition(checkpoint)

        assert _files(checkpoint) == before
        assert _ledger(checkpoint) == LedgerTerms(2, 9, series=1)


@pytest.mark.parametrize("is_committed", [True, False])
def test_other_batches_stay(checkpoint: Path, *, is_committed: bool) -> None:
    """Their records may have been written."""
    _plan(checkpoint, 8, partitions=2)
    if not is_committed:
        (checkpoint / "commits" / "8").unlink()
    before = _files(checkpoint)

    settle_repartition(checkpoint)

    assert _files(checkpoint) == before
    assert _ledger(checkpoint) == LedgerTerms(2, 0)


def test_checkpoint_without_batches_stays(tmp_path: Path) -> None:
    """There is nothing to settle before the first batch."""
    settle_repartition(tmp_path)

    assert _files(tmp_path) == set()


def test_copy_of_a_killed_change_of_key_groups_is_removed(checkpoint: Path) -> None:
    """Its files are links to those of the checkpoint, which Spark's cleaning would not free."""
    copy = copy_of(checkpoint)
    shutil.copytree(checkpoint, copy, copy_function=os.link)
    before = _files(checkpoint)

    settle_repartition(checkpoint)

    assert not copy.exists()
    assert _files(checkpoint) == before
