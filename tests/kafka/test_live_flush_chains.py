"""Several operators with state in one live query, each with a flush buffer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, KeyedProcessFunction
from flowcore.planner import plan_flow
from flowcore.spark.run.live_stage import LiveRun
from tests.kafka.conftest import Live
from tests.kafka.driver import driver_settings, kill_driver, run_plan
from tests.kafka.test_live_buffers import Top
from tests.kafka.test_live_exchanges import LAST, bids, expected, hot_items, hottest, random_bids

INTERVAL = timedelta(seconds=1)


def drive(servers: str, state: str, *topics: str) -> None:
    """Run small batches until this process is killed."""
    settings = driver_settings(servers, state)
    flow = hot_items(*(KafkaTopic(name) for name in topics), INTERVAL)
    plan = plan_flow(flow, "micro-batch", settings)
    run_plan(plan, settings)


@pytest.mark.thorough
def test_buffered_windows_over_buffered_windows_survive_a_kill_of_the_driver(live: Live) -> None:
    """No result is lost in a buffer, and none is late because its channel's watermark overtook it."""
    topics = [bids(live), live.topic("counts"), live.topic("most")]
    records = random_bids(400)
    rows = [{"auction": auction, "at": at} for auction, at in records]
    live.send(topics[0], *rows, *LAST, partitions=2)
    names = [topic.name for topic in topics]
    kill_driver(drive, live, *names, batches=4, after_s=0.3)

    live.run(hot_items(*topics, INTERVAL))

    found: dict[bytes, dict[str, Any]] = {}
    for record in live.records(topics[2]):
        assert found.setdefault(record.headers["flowcore-id"], record.json) == record.json
    assert hottest(found.values()) == expected(records)


@pytest.mark.thorough
def test_each_buffer_of_a_chain_emits_once_per_interval(live: Live) -> None:
    """Downstream of the third buffer each shop emits at most once per interval; its last result arrives."""
    source = live.topic("bids", schema="shop BIGINT, top BIGINT")
    tops, shops, steps = live.topic("tops"), 4, 40
    flow = Flow("tops")
    stream = flow.read("bids", source)
    for number in range(3):
        stream = stream.process(
            Top("top"), by="shop", schema="shop BIGINT, top BIGINT", flush=INTERVAL, name=f"top_{number}"
        )
    stream.write("tops", tops)
    live.send(source, {"shop": 0, "top": 0})
    began = 0.0

    def feed(run: LiveRun) -> None:
        nonlocal began
        while not any(query.batches for query in run.progress()):  # the first batch compiles
            assert not run.wait(0.2)
        began = time.monotonic()
        for step in range(steps):
            live.send(source, *({"shop": shop, "top": step * shops + shop} for shop in range(shops)))
            time.sleep(0.1)
        live.wait_for(tops, "top", {shop: (steps - 1) * shops + shop for shop in range(shops)})

    live.run(flow, mode=None, until=feed)

    found = live.values(tops)
    intervals = (time.monotonic() - began) / INTERVAL.total_seconds()
    assert max(Counter(row["shop"] for row in found).values()) <= intervals + 2
    for shop in range(shops):
        mine = [row["top"] for row in found if row["shop"] == shop]
        assert mine == sorted(set(mine))


def add(kept: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    return {"shop": kept["shop"], "top": max(kept["top"], new["top"]), "n": kept["n"] + new["n"]}


@pytest.mark.thorough
def test_reduce_by_key_goes_on_after_a_restart_and_emits_the_last_fold_of_a_slice(live: Live) -> None:
    """Ten records of a shop are one output, under the key of the shop."""
    schema = "shop BIGINT, top BIGINT, n BIGINT"
    source, tops = live.topic("bids", schema=schema), live.topic("tops")
    flow = Flow("folded")
    read = flow.read("bids", source)
    read.reduce(add, schema=schema, by="shop", flush=INTERVAL, name="folded").write("tops", tops)

    for part in range(2):
        live.send(source, *({"shop": n % 2, "top": 10 * part + n, "n": 1} for n in range(10)))
        live.run(flow)

    found = [(row["shop"], row["top"], row["n"]) for row in live.values(tops)]
    assert sorted(found) == [(0, 8, 5), (0, 18, 10), (1, 9, 5), (1, 19, 10)]
    assert {record.key for record in live.records(tops)} == {b"0", b"1"}


class Changes(KeyedProcessFunction):
    """Emits the last change of a shop: its price, and whether the shop is gone."""

    def is_output_idempotent(self) -> bool:
        return True

    def process(self, record: Mapping[str, Any], context: Any) -> Iterator[Mapping[str, Any]]:
        yield {"shop": context.key, "top": record["top"], "gone": record["top"] is None}


def test_insert_update_and_delete_survive_two_buffers_in_order(live: Live) -> None:
    """Of the changes of a shop the last one arrives: a value, or a tombstone; also after a restart."""
    source, shops = live.topic("bids", schema="shop BIGINT, top BIGINT"), live.topic("shops")
    schema = "shop BIGINT, top BIGINT, gone BOOLEAN"
    flow = Flow("shops")
    changes = flow.read("bids", source)
    for name in ("first", "second"):
        changes = changes.process(Changes(), by="shop", schema=schema, flush=INTERVAL, name=name)
    changes.where("shop < 9").write("shops", shops, key="shop", deleted="gone")

    found: list[dict[bytes | None, Any]] = []
    for part in (
        [(1, 10), (2, 20), (2, 21), (1, None), (3, 30), (9, 90)],
        [(3, 31), (1, 11), (2, None), (3, None), (3, 32), (4, 40), (4, None)],
    ):
        before = sum(map(len, found))  # one record of each key
        live.send(source, *({"shop": shop, "top": top} for shop, top in part))
        live.run(flow)
        fresh = live.records(shops)[before:]
        assert len({record.key for record in fresh}) == len(fresh)
        found.append({record.key: record.json if record.value else None for record in fresh})

    assert found == [
        {b"1": None, b"2": {"shop": 2, "top": 21}, b"3": {"shop": 3, "top": 30}},
        {b"1": {"shop": 1, "top": 11}, b"2": None, b"3": {"shop": 3, "top": 32}, b"4": None},
    ]
