"""Idempotent results are emitted once per interval for any input, and none is lost."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from flowcore import Flow, KafkaTopic
from flowcore.elements import LatencyMarkerEvent
from flowcore.kafka.markers import ensure_companion
from flowcore.kafka.topics import ensure_topics
from flowcore.serializers import LatencyMarkerEventSerializer
from tests.sampling import sample

if TYPE_CHECKING:
    from flowcore.spark.run.live_stage import LiveRun

pytestmark = pytest.mark.kafka

Live = Any
EVENTS = LatencyMarkerEventSerializer()
INTERVAL = timedelta(seconds=3)
STEPS = 25
KEYS = 4
BID = "shop BIGINT, price BIGINT, kind STRING"


def _topics(live: Live) -> tuple[KafkaTopic, KafkaTopic]:
    """A source topic, and a sink topic that exists before the first poll."""
    bids, top = live.topic("bids", schema=BID), live.topic("top")
    ensure_topics(live.servers, {top.name: 1})
    return bids, top


def _flow(bids: KafkaTopic, top: KafkaTopic, **flush: timedelta) -> Flow:
    flow = Flow("f")
    highest = flow.read("bids", bids).aggregate(by="shop", top="max(price)", n="count(*)", **flush)
    highest.where("top >= 0").write("top", top)
    return flow


def _bids(first: int, number: int) -> list[dict[str, Any]]:
    return [{"shop": n % KEYS, "price": n, "kind": "a"} for n in range(first, first + number)]


def test_live_aggregate_emits_once_per_interval(live: Live) -> None:
    """Input arrives in many steps; each shop emits at most one result per interval, and the last is right.

    The last results are emitted although no more input arrives.
    """
    bids, top = _topics(live)
    live.send(bids, *_bids(0, KEYS))
    began = 0.0

    def feed(_: object) -> None:
        nonlocal began
        began = time.monotonic()
        for step in range(STEPS):
            live.send(bids, *_bids(KEYS + step * KEYS, KEYS))
            time.sleep(0.2)
        live.wait_for(top, "n", dict.fromkeys(range(KEYS), 1 + STEPS))

    live.run(_flow(bids, top, flush=INTERVAL), mode=None, until=feed)

    found = live.values(top)
    assert {row["shop"]: row["top"] for row in found} == {shop: STEPS * KEYS + shop for shop in range(KEYS)}
    intervals = (time.monotonic() - began) / INTERVAL.total_seconds() + 2
    assert max(Counter(row["shop"] for row in found).values()) <= intervals


def test_lone_record_does_not_wait_for_the_next_batch(live: Live) -> None:
    """When nothing more is available, a batch begins after a tenth of the interval, with the state."""
    bids, top = _topics(live)
    now_s = time.time()
    seconds = min(range(80, 160), key=lambda length: now_s % length)  # the next multiple is far away
    live.send(bids, *_bids(0, KEYS))

    def feed(run: LiveRun) -> None:
        for n in (1, 2, 3):
            while live.latest(top, "n") != {0: n, 1: 1, 2: 1, 3: 1}:
                assert not run.wait(0.5)
                assert time.time() < now_s + seconds - 5
            if n < 3:
                live.send(bids, {"shop": 0, "price": n, "kind": "a"})

    live.run(_flow(bids, top, flush=timedelta(seconds=seconds)), mode=None, until=feed)

    assert [row["n"] for row in live.values(top) if row["shop"] == 0] == [1, 2, 3]


@pytest.mark.parametrize("mode", sample([None, "slice"], "slice"))
def test_live_backlog_is_emitted_once(live: Live, mode: Any) -> None:
    """The records available at the start are one batch, although the batch size is small."""
    settings = replace(live.settings, max_batch_records=7, flush_interval=timedelta(hours=1))
    live = type(live)(live.servers, settings, live.spark)
    bids, top = _topics(live)
    live.send(bids, *_bids(0, 20 * KEYS), partitions=2)
    wanted = dict.fromkeys(range(KEYS), 20)

    until = None if mode else (lambda _: live.wait_for(top, "n", wanted))
    live.run(_flow(bids, top), mode=mode, until=until)

    assert sorted((row["shop"], row["n"]) for row in live.values(top)) == sorted(wanted.items())


@pytest.mark.thorough
def test_live_flush_emits_the_earliest_marker(live: Live) -> None:
    """Of each batch and sender, the earliest marker has the latency of the record that waited longest.

    State made with an interval is read without one, and the other way round.
    """
    now_ms = time.time_ns() // 1_000_000
    bids, top = _topics(live)
    one = replace(live.settings, latency_interval=timedelta(hours=1))
    ensure_topics(live.servers, {bids.name: 1})
    for topic in (bids, top):
        ensure_companion(live.servers, topic.name)

    def marked(*, ago_ms: list[int], interval_s: int) -> list[int]:
        before = len(_markers(live, top))
        live.send(bids, *_bids(0, KEYS))
        live.send(
            KafkaTopic(bids.events),
            *(EVENTS.encode(LatencyMarkerEvent(now_ms - ago, "test", n % 2)) for n, ago in enumerate(ago_ms)),
        )
        settings = replace(one, flush_interval=timedelta(seconds=interval_s))
        type(live)(live.servers, settings, live.spark).run(_flow(bids, top))
        return sorted(now_ms - each for each in _markers(live, top)[before:])

    assert marked(ago_ms=[9000, 9500, 5000, 5500, 7000, 7500], interval_s=0) == [5000, 5500]
    assert marked(ago_ms=[4000, 4500, 900, 950], interval_s=60) == [4000, 4500]
    assert marked(ago_ms=[3000, 3500, 800, 850], interval_s=60) == [3000, 3500]
    assert marked(ago_ms=[700, 750, 600, 650], interval_s=0) == [600, 650]


def _markers(live: Live, topic: KafkaTopic) -> list[int]:
    """Creation times of the markers that this test has sent."""
    events = [EVENTS.decode(record.value) for record in live.records(topic.events)]
    return [event.marked_ms for event in events if event.operator_id == "test"]


@pytest.mark.thorough
def test_live_chain_of_flushes_emits_once_per_interval(live: Live) -> None:
    """Of three aggregates with topics between them, the last emits the right result, and no more often."""
    bids = live.topic("bids", schema=BID)
    names = [live.topic(name, schema="shop BIGINT, top BIGINT") for name in ("one", "two", "three")]
    live.send(bids, *_bids(0, KEYS))
    ensure_topics(live.servers, {topic.name: 1 for topic in names})
    flow = Flow("f")
    reads = flow.read("bids", bids).select("shop", "price as top")
    for number, topic in enumerate(names):
        highest = reads.aggregate(by="shop", top="max(top)", flush=INTERVAL, name=f"highest_{number}")
        highest.write(f"to_{number}", topic)
        reads = flow.read(f"from_{number}", topic) if number < len(names) - 1 else reads
    began = 0.0

    def feed(_: object) -> None:
        nonlocal began
        began = time.monotonic()
        for step in range(STEPS):
            live.send(bids, *_bids(KEYS + step * KEYS, KEYS))
            time.sleep(0.2)
        live.wait_for(names[-1], "top", {shop: STEPS * KEYS + shop for shop in range(KEYS)})

    live.run(flow, mode=None, until=feed)

    intervals = (time.monotonic() - began) / INTERVAL.total_seconds() + 2
    most = [max(Counter(row["shop"] for row in live.values(topic)).values()) for topic in names]
    assert most[0] <= intervals
    assert most[2] <= 2 * intervals


def test_live_buffered_results_are_emitted_after_the_next_start(live: Live) -> None:
    """A stop loses nothing and does not wait: unread records stay in the topic.

    Records that wait for the interval do not count as backlog.
    """
    live = type(live)(live.servers, replace(live.settings, backlog_enter=2, backlog_leave=0), live.spark)
    bids, top = _topics(live)
    live.send(bids, *_bids(0, KEYS))
    flow = _flow(bids, top, flush=timedelta(hours=1))

    def more(run: LiveRun) -> None:
        live.wait_for(top, "n", dict.fromkeys(range(KEYS), 1))
        live.send(bids, *_bids(KEYS, KEYS))
        while (query := run.progress()[0]).lag != KEYS:
            time.sleep(0.2)
        assert query.backlog is False

    live.run(flow, mode=None, until=more)
    live.run(flow, mode=None, until=lambda _: live.wait_for(top, "n", dict.fromkeys(range(KEYS), 2)))

    assert sorted((row["shop"], row["n"]) for row in live.values(top)) == [
        (shop, n) for shop in range(KEYS) for n in (1, 2)
    ]
