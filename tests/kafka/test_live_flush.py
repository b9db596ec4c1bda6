"""Results that replace themselves leave once in an interval, whatever comes, and none is kept back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic

pytestmark = pytest.mark.kafka

Live = Any
INTERVAL = timedelta(seconds=8)
KEYS = 4
BID = "shop BIGINT, price BIGINT, kind STRING"


def _flow(bids: KafkaTopic, top: KafkaTopic, **flush: timedelta) -> Flow:
    flow = Flow("f")
    highest = flow.read("bids", bids).aggregate(by="shop", top="max(price)", n="count(*)", **flush)
    highest.where("top >= 0").write("top", top)
    return flow


def _bids(first: int, number: int) -> list[dict[str, Any]]:
    return [{"shop": n % KEYS, "price": n, "kind": "a"} for n in range(first, first + number)]


def _until(live: Live, topic: KafkaTopic, wanted: dict[int, int]) -> Iterator[None]:
    """Goes on until each shop has had its last result."""
    while {row["shop"]: row["n"] for row in live.values(topic)} != wanted:
        yield
        time.sleep(0.2)


def test_live_aggregate_leaves_once_an_interval_whatever_comes(live: Live) -> None:
    """Input comes in 60 steps; results are the same, and at most one for each shop and interval.

    The last ones leave though nothing comes any more.
    """
    bids, top = live.topic("bids", schema=BID), live.topic("top")
    live.send(bids, *_bids(0, KEYS))
    began = 0.0

    def feed(_: object) -> None:
        nonlocal began
        began = time.monotonic()
        for step in range(60):
            live.send(bids, *_bids(KEYS + step * KEYS, KEYS))
            time.sleep(0.2)
        for _ in _until(live, top, dict.fromkeys(range(KEYS), 61)):
            pass

    live.run(_flow(bids, top, flush=INTERVAL), mode=None, until=feed)

    found = live.values(top)
    assert {row["shop"]: row["top"] for row in found} == {shop: 60 * KEYS + shop for shop in range(KEYS)}
    intervals = (time.monotonic() - began) / INTERVAL.total_seconds() + 2
    assert max(Counter(row["shop"] for row in found).values()) <= intervals


@pytest.mark.parametrize("mode", [None, "slice"])
def test_live_backlog_leaves_once(live: Live, mode: Any) -> None:
    """What is there at the start is one batch, however small batches are otherwise."""
    settings = replace(live.settings, max_batch_records=7, flush_interval=timedelta(hours=1))
    live = type(live)(live.servers, settings, live.spark)
    bids, top = live.topic("bids", schema=BID), live.topic("top")
    live.send(bids, *_bids(0, 20 * KEYS), partitions=2)
    wanted = dict.fromkeys(range(KEYS), 20)

    until = None if mode else (lambda _: [None for _ in _until(live, top, wanted)])
    live.run(_flow(bids, top), mode=mode, until=until)

    assert sorted((row["shop"], row["n"]) for row in live.values(top)) == sorted(wanted.items())


def test_live_chain_of_flushes_leaves_once_an_interval(live: Live) -> None:
    """Three aggregates, a topic between each two: the last result is right, and leaves no more often."""
    bids = live.topic("bids", schema=BID)
    names = [live.topic(name, schema="shop BIGINT, top BIGINT") for name in ("one", "two", "three")]
    live.send(bids, *_bids(0, KEYS))
    flow = Flow("f")
    reads = flow.read("bids", bids).select("shop", "price as top")
    for number, topic in enumerate(names):
        source = topic if number == len(names) - 1 else replace(topic, partitions=1)
        highest = reads.aggregate(by="shop", top="max(top)", flush=INTERVAL, name=f"highest_{number}")
        highest.write(f"to_{number}", topic)
        reads = flow.read(f"from_{number}", source) if number < len(names) - 1 else reads
    began = 0.0

    def feed(_: object) -> None:
        nonlocal began
        began = time.monotonic()
        for step in range(40):
            live.send(bids, *_bids(KEYS + step * KEYS, KEYS))
            time.sleep(0.2)
        wanted = {shop: 40 * KEYS + shop for shop in range(KEYS)}
        while {row["shop"]: row["top"] for row in live.values(names[-1])} != wanted:
            time.sleep(0.2)

    live.run(flow, mode=None, until=feed)

    intervals = (time.monotonic() - began) / INTERVAL.total_seconds() + 2
    most = [max(Counter(row["shop"] for row in live.values(topic)).values()) for topic in names]
    assert most[0] <= intervals
    assert most[2] <= 2 * intervals
