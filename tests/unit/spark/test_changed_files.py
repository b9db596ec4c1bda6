"""Files of a state folder that a disk or a person has changed: an error with a way out, in little memory."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from flowcore import Flow, Global, KafkaTopic
from flowcore.errors import DamagedCheckpointError, ResultError, RunError, StateError
from flowcore.kafka.topics import TopicIdentity
from flowcore.planner import plan_flow
from flowcore.planner.model import LiveQuery
from flowcore.spark.checkpoint.lease import Leases
from flowcore.spark.checkpoint.plan_file import (
    plan_file_of,
    read_plan_file,
    read_schemas,
    require_fit,
    write_plan_file,
)
from flowcore.spark.checkpoint.storage import require_undamaged
from flowcore.spark.results.manifest import Manifest
from flowcore.stored_json import read_json
from flowcore.windows.triggers import Count, Delta, Trigger

DEEP = "[" * 100_000
MANIFEST = {"format": 2, "tables": {"t": {"files": [{"path": 1, "bytes": "x", "rows": 1, "sha256": ""}]}}}


def _query() -> LiveQuery:
    flow = Flow("sales")
    bids = flow.read("bids", KafkaTopic("bids", schema="shop STRING, price DOUBLE"))
    bids.aggregate(by="shop", usual="avg(price)", name="usual").write("out", KafkaTopic("out"))
    return plan_flow(flow).live_queries[0]


def _count_of(trigger: Trigger) -> LiveQuery:
    flow = Flow("sales")
    bids = flow.read("bids", KafkaTopic("bids", schema="shop STRING, price DOUBLE"))
    windows = bids.window(Global(), by="shop", trigger=trigger, name="usual")
    windows.aggregate(n="count(*)").write("out", KafkaTopic("out"))
    return next(query for query in plan_flow(flow).live_queries if query.sinks)


def _checkpoint(folder: Path, query: LiveQuery) -> Path:
    """A checkpoint with one committed batch."""
    checkpoint = folder / query.name
    topics = {topic.name: TopicIdentity("cluster", "id", 2) for topic in query.topics_read}
    write_plan_file(query, "sales", checkpoint, {"usual": ("a",)}, topics=topics, bounded={}, slots=2)
    for log in ("offsets", "commits"):
        (checkpoint / log).mkdir()
    (checkpoint / "offsets" / "0").write_text('v1\n{"batchWatermarkMs":0}\n{"bids":{"0":1}}')
    (checkpoint / "commits" / "0").write_text("v1\n{}")
    require_fit(query, "sales", checkpoint)
    return checkpoint


def test_plan_file_has_the_kind_of_each_trigger(tmp_path: Path) -> None:
    """A file of an earlier version does not, and is of the flow."""
    query = _count_of(Count(2))
    checkpoint = _checkpoint(tmp_path, query)
    require_fit(_count_of(Count(3)), "sales", checkpoint)
    with pytest.raises(StateError, match="'usual' had the trigger Count, and now Delta: its state would"):
        require_fit(_count_of(Delta(1.0, max)), "sales", checkpoint)

    file = plan_file_of(checkpoint)
    content = json.loads(file.read_text())
    assert content.pop("triggers") == [["usual", "Count"]]
    file.write_text(json.dumps(content))
    require_fit(_count_of(Count(3)), "sales", checkpoint)


@pytest.mark.parametrize(
    "value",
    [None, "x", -1, 1.5, [], [[]], {"a": 1}, math.nan, 10**400, 10**20],
    ids=lambda each: str(each)[:9],
)
@pytest.mark.parametrize(
    "place",
    [
        ("sources", 0),
        ("states", 0, "keys", 0),
        ("identity", "born_ms"),
        ("identity", "depth"),
        ("identity", "ledger", "series"),
    ],
    ids=str,
)
def test_plan_file_with_another_value_is_refused(
    place: tuple[Any, ...], value: object, tmp_path: Path
) -> None:
    """Wherever the value is."""
    query = _query()
    checkpoint = _checkpoint(tmp_path, query)
    file = plan_file_of(checkpoint)
    content = part = json.loads(file.read_text())
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    file.write_text(json.dumps(content))

    with pytest.raises(StateError, match=r"start anew|another state\.dir"):
        require_fit(query, "sales", checkpoint)


@pytest.mark.parametrize("text", [DEEP, "", "\0", "[]", '{"format":3}'], ids=lambda each: each[:9])
def test_plan_file_that_is_something_else_is_refused(text: str, tmp_path: Path) -> None:
    """The error says what to do."""
    checkpoint = _checkpoint(tmp_path, _query())
    plan_file_of(checkpoint).write_text(text)

    with pytest.raises(StateError, match=r"cannot be read.*bring the file back"):
        read_plan_file(checkpoint)


@pytest.mark.parametrize("schemas", ["x", 5, [[]], {"a": 1}, {"a": ["!"]}], ids=str)
def test_plan_file_with_other_schemas_is_refused(schemas: object, tmp_path: Path) -> None:
    """`flowcore rescale` reads them."""
    checkpoint = _checkpoint(tmp_path, _query())
    file = plan_file_of(checkpoint)
    file.write_text(json.dumps({**json.loads(file.read_text()), "schemas": schemas}))

    with pytest.raises(StateError):
        read_schemas(checkpoint)


@pytest.mark.parametrize("name", ["metadata", "watermarks.json", "offsets/0"])
def test_deep_file_of_a_checkpoint_is_damage(name: str, tmp_path: Path) -> None:
    """Python's parser gives up with another error than for text that is no JSON."""
    checkpoint = _checkpoint(tmp_path, _query())
    file = checkpoint / name
    file.write_text(f"v1\n{DEEP}\n{{}}" if name == "offsets/0" else DEEP)

    with pytest.raises(DamagedCheckpointError, match="bring the file back"):
        require_undamaged(checkpoint)


@pytest.mark.parametrize("pid", ["x", None, 0, -1, 10**30, 1.5], ids=str)
def test_lease_with_another_process_id_is_of_an_unknown_process(pid: object, tmp_path: Path) -> None:
    """It is held until it is stale, as one that is being written."""
    checkpoint = tmp_path / "bids"
    with Leases() as held:
        held.take(checkpoint)
        lease = tmp_path / ".bids.lease.1"
        lease.write_text(json.dumps({**json.loads(lease.read_text()), "pid": pid}))
        with pytest.raises(RunError, match="held by an unknown process"):
            Leases().take(checkpoint)


def test_deep_lease_is_of_an_unknown_process(tmp_path: Path) -> None:
    """So is one whose number is of digits that no number is made of."""
    (tmp_path / ".bids.lease.²").touch()
    (tmp_path / ".bids.lease.1").write_text(DEEP)

    with pytest.raises(RunError, match="held by an unknown process"):
        Leases().take(tmp_path / "bids")


@pytest.mark.parametrize("text", [DEEP, json.dumps(MANIFEST)], ids=["deep", "types"])
def test_manifest_that_is_something_else_is_refused(text: str, tmp_path: Path) -> None:
    """`flowcore plan` reads it, too."""
    file = tmp_path / "manifest.json"
    file.write_text(text)

    with pytest.raises(ResultError, match="run the stage again"):
        Manifest.read(file)


def test_file_without_bounds_is_not_read(tmp_path: Path) -> None:
    """Here it is a link to a device, a pipe that nobody writes, and one byte too long."""
    (tmp_path / "device").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").write_text("[1, 2]")

    for name in ("device", "pipe"):
        with pytest.raises(ValueError, match="not a file"):
            read_json(tmp_path / name)
    with pytest.raises(ValueError, match="more than 5 bytes"):
        read_json(tmp_path / "long", 5)
    assert read_json(tmp_path / "long", 6) == [1, 2]
