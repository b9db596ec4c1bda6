"""A checkpoint resumes over the topics and the folder that its plan file names, and refuses any others."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from flowcore import Flow, KafkaTopic
from flowcore.errors import StateError
from flowcore.kafka.topics import TopicIdentity
from flowcore.planner import plan_flow
from flowcore.planner.model import LiveQuery
from flowcore.settings import Settings
from flowcore.spark.checkpoint.identity import create_checkpoint, find_topic_differences, read_id
from flowcore.spark.checkpoint.plan_file import (
    checkpoint_folder,
    plan_file_of,
    read_plan_file,
    repeated_status,
    repeated_topics,
    require_fit,
    write_plan_file,
)
from flowcore.spark.topics.side_channels import SideChannels

BIDS = TopicIdentity("cluster-a", "id-1", 2)


@pytest.fixture
def query() -> LiveQuery:
    flow = Flow("f")
    flow.read("bids", KafkaTopic("bids", schema="id BIGINT", start="latest")).write("out", KafkaTopic("out"))
    return plan_flow(flow).live_queries[0]


@pytest.fixture
def checkpoint(query: LiveQuery, tmp_path: Path) -> Path:
    """A checkpoint that has planned a batch."""
    folder = checkpoint_folder(query, "f", Settings.of({"state.dir": tmp_path}, environment={}))
    write_plan_file(query, "f", folder, {}, topics={"bids": BIDS}, bounded={"shops": "v1"})
    (folder / "offsets").mkdir()
    (folder / "offsets" / "0").write_text('v1\n{}\n{"bids":{"0":5}}')
    return folder


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (BIDS, []),
        (replace(BIDS, partitions=3), []),
        (replace(BIDS, id=""), []),
        (replace(BIDS, id="id-2"), ["its id was id-1, and now is id-2"]),
        (replace(BIDS, cluster="cluster-b"), ["cluster-a, and now is in the cluster cluster-b"]),
        (replace(BIDS, partitions=1), ["had 2 partitions, and now has 1"]),
        (None, ["(id id-1) does not exist any more"]),
    ],
    ids=["same", "more-partitions", "broker-without-ids", "recreated", "other-cluster", "shrunk", "deleted"],
)  # fmt: skip
def test_offsets_are_of_one_topic_of_one_cluster(now: TopicIdentity | None, expected: list[str]) -> None:
    """A topic that was created again has another id; a topic may get more partitions."""
    found = list(find_topic_differences({"bids": BIDS}, {"bids": now}))

    assert len(found) == len(expected)
    for difference, text in zip(found, expected, strict=True):
        assert text in difference
        assert "'bids'" in difference


def test_plan_file_holds_the_identity_of_the_checkpoint(query: LiveQuery, checkpoint: Path) -> None:
    """A later start keeps the id and the time of birth, and takes over new topics and versions."""
    born = read_plan_file(checkpoint)
    assert born is not None

    write_plan_file(
        query, "f", checkpoint, {}, topics={"bids": replace(BIDS, partitions=3)}, bounded={"shops": "v2"}
    )

    after = read_plan_file(checkpoint)
    assert after == replace(born, topics={"bids": replace(BIDS, partitions=3)}, bounded={"shops": "v2"})
    assert after.checkpoint == read_id(checkpoint)


@pytest.mark.parametrize("lags", [True, False])
def test_only_a_batch_that_runs_again_has_the_status_of_before(
    query: LiveQuery, checkpoint: Path, *, lags: bool
) -> None:
    """Otherwise its records could be filtered differently, which exactly-once delivery refuses."""
    write_plan_file(query, "f", checkpoint, {}, topics={"bids": BIDS}, bounded={}, lags=lags)
    assert repeated_status(checkpoint) is lags
    (checkpoint / "commits").mkdir()
    (checkpoint / "commits" / "0").write_text("v1\n{}")
    assert repeated_status(checkpoint) is None
    assert repeated_status(checkpoint.with_name("another")) is None


def test_only_a_batch_that_runs_again_has_the_partitions_of_before(checkpoint: Path) -> None:
    """A partition that was added since would hold the watermark, and windows of the batch would not end."""
    sides = SideChannels(topics={"bids": replace(BIDS, partitions=3), "out": BIDS})
    before = sides.before_growth(repeated_topics(checkpoint))
    assert before is not None
    assert before.topics == {"bids": BIDS, "out": BIDS}
    assert before.before_growth(repeated_topics(checkpoint)) is None

    (checkpoint / "commits").mkdir()
    (checkpoint / "commits" / "0").write_text("v1\n{}")
    assert sides.before_growth(repeated_topics(checkpoint)) is None


@pytest.mark.parametrize("damage", ["folder", "content", "another"])
def test_missing_checkpoint_is_refused_with_a_command(
    damage: str, query: LiveQuery, checkpoint: Path
) -> None:
    """Without its folder the query would start anew and, from 'latest', lose what arrived meanwhile."""
    shutil.rmtree(checkpoint)
    if damage == "content":
        checkpoint.mkdir()
    if damage == "another":
        create_checkpoint(checkpoint)

    with pytest.raises(StateError, match=r"bring the folder back.*: rm -r ") as refused:
        require_fit(query, "f", checkpoint)

    assert str(plan_file_of(checkpoint)) in str(refused.value)
    plan_file_of(checkpoint).unlink()
    require_fit(query, "f", checkpoint)


def test_checkpoint_without_a_batch_starts_anew(query: LiveQuery, tmp_path: Path) -> None:
    """A run that was killed before its first batch leaves nothing to resume from."""
    settings = Settings.of({"state.dir": tmp_path}, environment={})
    folder = checkpoint_folder(query, "f", settings)
    write_plan_file(query, "f", folder, {}, topics={"bids": BIDS}, bounded={})

    require_fit(query, "f", folder)


def test_plan_file_of_another_format_is_refused(query: LiveQuery, checkpoint: Path) -> None:
    """Its checkpoint has state in another layout."""
    path = plan_file_of(checkpoint)
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))

    with pytest.raises(StateError, match="has format 2, this flowcore reads 3"):
        require_fit(query, "f", checkpoint)
