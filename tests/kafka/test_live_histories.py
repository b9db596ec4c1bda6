"""Live queries whose topics begin with a history."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowcore import Flow, KafkaTopic, Parquet, Tumbling
from flowcore.api.value_formats import format_of
from flowcore.planner import plan_flow
from flowcore.spark.run.live_stage import LiveRun
from flowcore.watermarks import monotonous
from tests.kafka.conftest import Live
from tests.kafka.driver import driver_settings, kill_driver, run_plan
from tests.sampling import sample

pytestmark = pytest.mark.kafka

BID = "id BIGINT, shop BIGINT, at BIGINT"
SEAM = datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
FIRST_LIVE = 600


def _rows(first: int, last: int) -> list[dict[str, Any]]:
    """Bids of three shops, one each 100 ms."""
    return [{"id": number, "shop": number % 3, "at": 100 * number} for number in range(first, last)]


def _write_past(folder: Path, rows: list[dict[str, Any]]) -> str:
    """The rows as a table, in an order that is not that of their times."""
    path = folder / "past"
    path.mkdir()
    mixed = sorted(rows, key=lambda row: row["id"] * 7919 % 1009)
    pq.write_table(pa.Table.from_pylist(mixed), path / "part.parquet")
    return str(path)


def declare(past: str, source: str, counts: str, order: str) -> Flow:
    """Windows by event time, and a fold in the order of arrival, over a history and the bids after it."""
    flow = Flow("bids")
    topic = KafkaTopic(source, schema=BID, event_time="at", watermark=monotonous())
    history = flow.read("past", Parquet(past, schema=BID))
    bids = history.then(flow.read("bids", topic), at=SEAM, name="all_bids")
    found = bids.window(Tumbling(5), by="shop", late="side-output", name="per_shop")
    per_shop = found.aggregate(n="count(*)", total="sum(id)")
    per_shop.select("shop", "n", "total", "unix_millis(window_end) as end").write(
        "counts", KafkaTopic(counts)
    )
    per_shop.late.select("id").write("late", KafkaTopic(f"{counts}.late"))
    counted = bids.with_columns(n="1L", ordered="true")
    counted.reduce(_follow, by="shop", schema=f"{BID}, n BIGINT, ordered BOOLEAN", name="in_order").write(
        "order", KafkaTopic(order, key="shop")
    )
    return flow


def _follow(kept: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Count, and note whether a record of the history came after a later one; partitions are not ordered."""
    ordered = kept["id"] < new["id"] or new["id"] >= FIRST_LIVE
    return {**new, "n": kept["n"] + 1, "ordered": kept["ordered"] and ordered}


def _run_stages(live: Live, flow: Flow) -> None:
    from flowcore.spark.context import Context  # noqa: PLC0415 - as for `Live.run`
    from flowcore.spark.run.flow import run_plan  # noqa: PLC0415

    context = Context(live.spark, live.settings, flow.name)
    run_plan(replace(plan_flow(flow, "slice", live.settings), live=None), context)


def drive(servers: str, state: str, *arguments: str) -> None:
    settings = driver_settings(servers, state, batch_records=100)
    run_plan(plan_flow(declare(*arguments), "slice", settings), settings)


def _expected(rows: list[dict[str, Any]], until_ms: int) -> set[tuple[int, int, int, int]]:
    windows: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        windows.setdefault((row["shop"], (row["at"] // 5000 + 1) * 5000), []).append(row["id"])
    return {(shop, end, len(ids), sum(ids)) for (shop, end), ids in windows.items() if end - 1 <= until_ms}


def _counts(live: Live, topic: KafkaTopic) -> dict[str, tuple[int, int, int, int]]:
    found = {}
    for record in live.records(topic):
        row = record.json
        value = (row["shop"], row["end"], row["n"], row["total"])
        assert found.setdefault(record.id, value) == value
    return found


def _finish(run: LiveRun, live: Live, counts: KafkaTopic, windows: int) -> None:
    """Wait until all windows are written; a batch that was killed may have written some of them twice."""
    end = time.monotonic() + 300
    while len(_counts(live, counts)) < windows:
        assert time.monotonic() < end, _counts(live, counts)
        assert not run.wait(0.3)
    live.wait_for_records(run, counts, windows)


@pytest.mark.thorough
def test_state_begins_with_the_history_through_a_kill(live: Live, tmp_path: Path) -> None:
    """Records on the wrong side of the seam count once, and none is late or before an earlier one.

    A slice is killed in the middle of the history, and a run in micro-batches continues.
    """
    past = _write_past(tmp_path, _rows(0, 650))
    source, counts, order = live.topic("bids"), live.topic("counts"), live.topic("order")
    live.send(source, *_rows(550, 900), partitions=2)
    flow = declare(past, source.name, counts.name, order.name)
    _run_stages(live, flow)
    kill_driver(drive, live, past, source.name, counts.name, order.name, batches=2)
    assert {row["id"] for row in live.values(order)} < {*range(FIRST_LIVE)}
    wanted = _expected(_rows(0, 900), 89_800)
    live.run(flow, "micro-batch", until=lambda run: _finish(run, live, counts, len(wanted)))

    found = _counts(live, counts)
    assert {*found.values()} == wanted
    assert len(found) == len(wanted)
    assert live.records(f"{counts.name}.late") == []
    assert {row["shop"]: row["n"] for row in live.values(order)} == dict.fromkeys(range(3), 300)
    assert all(row["ordered"] for row in live.values(order))


@pytest.mark.parametrize("state", sample(["Spark's own", "by key group"], "by key group"))
def test_bad_records_of_a_history_are_dead_letters(live: Live, tmp_path: Path, state: str) -> None:
    """The query of Spark's own aggregate carries none, so another one reads the history for them."""
    schema, sale = f"{BID}, seen TIMESTAMP", {"shop": 1, "at": 100}
    times = pa.array(
        [1, 1_763_776_800_000_000_000], pa.timestamp("us", tz="UTC")
    )  # a year 57861 cannot leave
    rows = pa.Table.from_pylist([{"id": 1, **sale}, {"id": 2, **sale}]).append_column("seen", times)
    (tmp_path / "past").mkdir()
    pq.write_table(rows, tmp_path / "past" / "part.parquet")
    source, out = live.topic("bids"), live.topic("out")
    live.send(source, {"id": 3, "shop": 1, "at": 60_000}, {"id": 4, "shop": 1, "seen": 1_763_776_800_000})
    flow = Flow("bids")
    topic = KafkaTopic(source.name, schema=schema, event_time="at", watermark=monotonous())
    bids = flow.read("past", Parquet(str(tmp_path / "past"), schema=schema)).then(
        flow.read("bids", topic), at=SEAM
    )
    if state == "Spark's own":
        counted = bids.aggregate(by="shop", ids="sum(id)", last="max(seen)")
    else:
        counted = bids.reduce(_add, by="shop", schema=schema)
    counted.write("out", KafkaTopic(out.name, key="shop"))

    _run_stages(live, flow)
    live.run(flow)

    bad = [record.json["id"] for record in live.records(topic.dead_letter)]
    assert sorted(bad) == [2, 4]
    assert live.values(out)


def test_a_row_of_a_history_that_its_format_cannot_hold_is_a_dead_letter(live: Live, tmp_path: Path) -> None:
    """As JSON, which has as many bytes as a row of the topic, and would be read as one."""
    (tmp_path / "past").mkdir()
    rows = pa.Table.from_pylist([{"id": 123456789, "shop": None}, {"id": 2, "shop": 1}])
    pq.write_table(rows, tmp_path / "past" / "part.parquet")
    source, out = live.topic("bids"), live.topic("out")
    schema = "id BIGINT NOT NULL, shop BIGINT NOT NULL"
    topic = KafkaTopic(source.name, schema, format="fixed", start={0: 0})
    live.send(source, format_of(topic).encode({"id": 3, "shop": 1}))
    flow = Flow("bids")
    past = flow.read("past", Parquet(str(tmp_path / "past"), schema="id BIGINT, shop BIGINT"))
    bids = past.then(flow.read("bids", topic))
    bids.aggregate(by="shop", ids="sum(id)").write("out", KafkaTopic(out.name, key="shop"))

    _run_stages(live, flow)
    live.run(flow)

    (bad,) = live.records(topic.dead_letter)
    assert bad.value == b'{"id":123456789}'
    reason = b"cannot be written as fixed: column 'shop' is NOT NULL and holds a null"
    assert bad.headers["flowcore-reason"] == reason
    assert live.latest(out, "ids") == {1: 5}


def test_a_record_without_event_time_is_on_one_side_of_the_seam(live: Live, tmp_path: Path) -> None:
    """The history keeps it; the topic, which may have the same record, leaves it out."""
    untimed: dict[str, Any] = {"id": 1, "shop": 1, "at": None}
    past = _write_past(tmp_path, [untimed, {"id": 2, "shop": 1, "at": 100}])
    source, out = live.topic("bids"), live.topic("out")
    live.send(source, untimed, {"id": 2, "shop": 1, "at": 100}, {"id": 3, "shop": 1, "at": 60_000})
    flow = Flow("bids")
    topic = KafkaTopic(source.name, schema=BID, event_time="at", watermark=monotonous())
    history = flow.read("past", Parquet(past, schema=BID))
    history.then(flow.read("bids", topic), at=SEAM).write("out", out)

    _run_stages(live, flow)
    live.run(flow)

    assert sorted(row["id"] for row in live.values(out)) == [1, 2, 3]
    assert live.records(topic.dead_letter) == []


def _add(kept: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {**new, "id": kept["id"] + new["id"]}
