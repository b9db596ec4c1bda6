"""The plan file follows state that is moved to other key groups while the flow is stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from flowcore import Flow, Global, KafkaTopic
from flowcore.delivery import LedgerEntry, LedgerTerms, SlotBatch
from flowcore.errors import DeliveryError, StateError
from flowcore.kafka.topics import TopicIdentity
from flowcore.keyed.content import StoredSchemas
from flowcore.planner import plan_flow
from flowcore.planner.model import LiveQuery
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.checkpoint.plan_file import (
    checkpoint_folder,
    move_to_key_groups,
    plan_file_of,
    read_plan_file,
    read_schemas,
    require_checkpoints_fit,
    require_fit,
    skip_ledger_batch,
    write_plan_file,
)
from flowcore.spark.run import regroup
from flowcore.windows.triggers import Count

BIDS = TopicIdentity("cluster-a", "id-1", 2)
SCHEMAS = {
    "counted": StoredSchemas(
        pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.timestamp("us", "UTC"))]),
        pa.schema([pa.field("n", pa.decimal128(10, 2))]),
    )
}


def query_in(key_groups: int) -> LiveQuery:
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema="id BIGINT"))
    counted = bids.window(Global(), by="id", trigger=Count(1), name="counted").aggregate(n="count(*)")
    counted.write("out", KafkaTopic("out"))
    settings = Settings.of({"state.key-groups": key_groups}, environment={})
    return plan_flow(flow, settings=settings).live_queries[0]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of a query that delivers exactly once, with two committed batches."""
    query = query_in(16)
    folder = checkpoint_folder(query, "f", Settings.of({"state.dir": tmp_path}, environment={}))
    write_plan_file(query, "f", folder, {}, topics={"bids": BIDS}, bounded={}, slots=2, schemas=SCHEMAS)
    for name in ("offsets", "commits"):
        (folder / name).mkdir()
        for number in (0, 1):
            (folder / name / str(number)).write_text('v1\n{}\n{"bids":{"0":5}}')
    return folder


def test_plan_with_the_new_number_of_key_groups_continues(checkpoint: Path) -> None:
    """The plan with the old number is refused from then on."""
    with pytest.raises(StateError, match="in 16 key groups of exchange 1, and now"):
        require_fit(query_in(64), "f", checkpoint)

    move_to_key_groups(checkpoint, 64)

    require_fit(query_in(64), "f", checkpoint)
    with pytest.raises(StateError, match="in 64 key groups of exchange 1, and now"):
        require_fit(query_in(16), "f", checkpoint)


def test_plan_file_has_the_types_of_keys(checkpoint: Path) -> None:
    """It has the types of the last start; an older plan file has none."""
    assert read_schemas(checkpoint) == SCHEMAS

    path = plan_file_of(checkpoint)
    path.write_text(json.dumps({**json.loads(path.read_text()), "schemas": {}}))
    with pytest.raises(StateError, match="start the flow once with this flowcore"):
        read_schemas(checkpoint)


def test_interrupted_move_leaves_the_plan_as_it_was(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flow cannot start with the new number before the ledger is skipped: the command is repeated."""

    def interrupt(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(regroup, "skip_ledger_batch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        regroup._follow(checkpoint, 64)
    require_fit(query_in(16), "f", checkpoint)
    monkeypatch.undo()

    regroup._follow(checkpoint, 64)

    require_fit(query_in(64), "f", checkpoint)
    after = read_plan_file(checkpoint)
    assert after is not None
    assert after.ledger == LedgerTerms(2, 2, series=1)


def test_ledger_begins_again_after_the_batch_that_moves_state(checkpoint: Path) -> None:
    """That batch writes no records, so the ledger has no entry of it."""
    identity = read_plan_file(checkpoint)
    assert identity is not None
    assert identity.ledger == LedgerTerms(2, 0)
    last = LedgerEntry(identity.checkpoint, 0, 0, 2, 5, 7)
    batch = SlotBatch("f", "bids", identity.checkpoint, 2, 0, identity.ledger)
    with pytest.raises(DeliveryError, match="ends with batch 0"):
        batch.find_written(last)

    skip_ledger_batch(checkpoint)

    after = read_plan_file(checkpoint)
    assert after is not None
    assert after.ledger == LedgerTerms(2, 2, series=1)
    assert SlotBatch("f", "bids", identity.checkpoint, 2, 0, after.ledger).find_written(last) is None


def test_ledger_that_has_begun_again_is_continued_after_delivery_at_least_once(checkpoint: Path) -> None:
    """Its last entry is of an earlier batch, as after any other start."""
    skip_ledger_batch(checkpoint)
    identity = read_plan_file(checkpoint)
    assert identity is not None
    assert identity.ledger is not None
    last = SlotBatch("f", "bids", identity.checkpoint, 2, 0, identity.ledger).entry(5, 7)

    def start(slots: int | None) -> LedgerTerms | None:
        query = query_in(16)
        return write_plan_file(
            query, "f", checkpoint, {}, topics={"bids": BIDS}, bounded={}, slots=slots, schemas=SCHEMAS
        ).ledger

    for number in (2, 3):
        for name in ("offsets", "commits"):
            (checkpoint / name / str(number)).write_text('v1\n{}\n{"bids":{"0":5}}')
        assert start(None) is None
    terms = start(5)

    assert terms == LedgerTerms(5, 4, series=1)
    assert SlotBatch("f", "bids", identity.checkpoint, 4, 0, terms).find_written(last) is None


def test_ledger_goes_on_if_a_batch_may_have_been_written(checkpoint: Path) -> None:
    """A planned batch is repeated, and its records may be there."""
    (checkpoint / "commits" / "1").unlink()

    skip_ledger_batch(checkpoint)

    after = read_plan_file(checkpoint)
    assert after is not None
    assert after.ledger == LedgerTerms(2, 0)


def _plan(*, with_ranks: bool) -> Plan:
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema="id BIGINT"))
    totals = bids.aggregate(by="id", n="count(*)", name="totals")
    totals.write("out", KafkaTopic("out"))
    if with_ranks:
        totals.top_n(3, order="n desc", name="most").write("most_out", KafkaTopic("most"))
    return plan_flow(flow)


def test_operator_that_moves_to_another_query_is_refused(tmp_path: Path) -> None:
    """Its query is gone, and it would begin with empty state; other queries that are gone do not matter."""
    settings = Settings.of({"state.dir": tmp_path}, environment={})
    queries = _plan(with_ranks=False).live_queries
    before = next(query for query in queries if any(node.name == "totals" for node in query.operators))
    folder = checkpoint_folder(before, "f", settings)
    write_plan_file(before, "f", folder, {}, topics={"bids": BIDS}, bounded={}, slots=2, schemas={})
    require_checkpoints_fit(_plan(with_ranks=True), settings)  # it has no batch
    (folder / "offsets").mkdir()
    (folder / "offsets" / "0").write_text('v1\n{}\n{"bids":{"0":5}}')

    require_checkpoints_fit(_plan(with_ranks=False), settings)
    with pytest.raises(StateError, match=r"'totals', which is in query '.*' now.*begin with empty state"):
        require_checkpoints_fit(_plan(with_ranks=True), settings)

    other = Flow("f")
    other.read("bids", KafkaTopic("bids", schema="id BIGINT")).write("copy", KafkaTopic("copy"))
    require_checkpoints_fit(plan_flow(other), settings)
