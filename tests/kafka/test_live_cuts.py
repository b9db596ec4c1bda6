"""Operators that cannot share a query follow each other in one flow, with a cut between them."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Tumbling
from flowcore.spark.run.live_stage import LiveRun
from flowcore.watermarks import monotonous
from tests.kafka.conftest import Live

LAST = [{"auction": 9, "at": 100_000}] * 2
"""The last record of each partition, which completes all windows before it."""


def _bids(first: int, last: int) -> list[dict[str, int]]:
    return [{"auction": at % 3, "at": at * 100} for at in range(first, last)]


def _totals(rows: list[dict[str, Any]]) -> dict[int, int]:
    """The bids of each window of 10 s, by its number."""
    return dict(Counter(row["at"] // 10_000 for row in rows))


def test_event_time_ids_and_state_continue_downstream_of_a_cut(live: Live) -> None:
    """Slices and live runs continue from each other's checkpoints; a repeated batch counts once."""
    source = live.topic("bids", schema="auction BIGINT, at BIGINT", event_time="at", watermark=monotonous())
    cut = live.topic("cut", delivery="exactly-once")
    totals, tops = live.topic("totals"), live.topic("tops")
    copies = live.topic("copies", elements="tagged")  # so that it shares a query with the window
    flow = Flow("cut")
    windows = flow.read("bids", source).window(Tumbling(1), by="auction", name="counted")
    counted = windows.aggregate(n="count(*)").select("auction", "n")
    counts = counted.through(cut, schema="auction BIGINT, n BIGINT", name="counts")
    total = counts.window(Tumbling(10), name="totals").aggregate(n="sum(n)")
    total.select("n", "unix_millis(window_start) DIV 10000 AS window").write("total", totals)
    counts.aggregate(by="auction", most="max(n)", name="top").write("tops", tops)
    counts.where("n > 0").write("copies", copies)
    bids = _bids(0, 300)

    live.send(source, *bids[:120], partitions=2)
    live.run(flow, "slice")
    assert _found(live, totals) == {0: 100}
    live.forget_last_batch(flow.name, "bids-batches")
    live.send(source, *bids[120:], *LAST, partitions=2)

    def arrived(run: LiveRun) -> None:
        end = time.monotonic() + 300
        while _found(live, totals) != _totals(bids):
            run.wait(0.2)
            assert time.monotonic() < end, live.values(totals)

    live.run(flow, "micro-batch", arrived)

    assert {row["auction"]: row["most"] for row in live.values(tops)} == {0: 4, 1: 4, 2: 4}
    written, copied = _ids(live, cut), _ids(live, copies)
    assert len(copied) == len(set(copied)) == 90
    assert {each.split(":", 2)[2] for each in copied} == {each.split(":", 1)[1] for each in written}


@pytest.mark.parametrize(
    "delivery", ["exactly-once", pytest.param("at-least-once", marks=pytest.mark.thorough)]
)
def test_rows_of_the_null_group_stay_in_order_in_a_cut(live: Live, delivery: Any) -> None:
    """They have no Kafka key, and are in one partition; what is written of other groups is by key."""
    live.settings = replace(live.settings, max_batch_records=2)
    source = live.topic("bids", schema="shop STRING, at BIGINT")
    cut, out = live.topic("cut", delivery=delivery, partitions=5), live.topic("out")
    flow = Flow("null_group")
    counted = flow.read("bids", source).aggregate(by="shop", n="count(*)", ttl=timedelta(days=1), name="n")
    counts = counted.through(cut, schema="shop STRING, n BIGINT", name="counts")
    counts.aggregate(groups="count(*)", total="sum(n)", name="all").write("out", out)
    live.send(source, *({"shop": shop, "at": at} for at in range(10) for shop in (None, f"s{at % 3}")))

    live.run(flow)

    rows = [record for record in live.records(cut) if "flowcore-id" in record.headers]
    by_shop: dict[bytes | None, list[tuple[int, int]]] = {}
    for record in rows:
        by_shop.setdefault(record.key, []).append((record.partition, record.offset))
    assert {key: len({place for place, _ in places}) for key, places in by_shop.items()} == dict.fromkeys(
        (None, b"s0", b"s1", b"s2"), 1
    )
    assert [place for place, _ in by_shop[None]] == [0] * 10
    assert live.values(out)[-1] == {"groups": 4, "total": 20}


def _ids(live: Live, topic: KafkaTopic) -> list[str]:
    """The ids of the records of a topic, without its control elements."""
    return [record.id for record in live.records(topic) if "flowcore-id" in record.headers]


def _found(live: Live, topic: KafkaTopic) -> dict[int, int]:
    return {row["window"]: row["n"] for row in live.values(topic)}
