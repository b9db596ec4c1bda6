"""Several operators with state in one live query, each downstream of another one."""

from __future__ import annotations

import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Sliding, Tumbling
from flowcore.planner import plan_flow
from flowcore.process import KeyedProcessFunction
from flowcore.spark.checkpoint.plan_file import checkpoint_folder
from flowcore.spark.run.inspection import KeyGroupState, read_state
from flowcore.spark.run.live_stage import LiveRun
from flowcore.spark.run.session import live_session
from flowcore.watermarks import monotonous
from tests.kafka.conftest import Live

SCHEMA = "auction BIGINT, at BIGINT"
END_MS = 60_000
LAST = [{"auction": 99, "at": END_MS + 10_000}] * 2
"""The last record of each partition, which completes all windows before it."""


def bids(live: Live) -> KafkaTopic:
    return live.topic("bids", schema=SCHEMA, event_time="at", watermark=monotonous())


def random_bids(count: int) -> list[tuple[int, int]]:
    """Auctions and times, in order of time."""
    chance = random.Random(5)  # noqa: S311 - test data
    times = sorted(chance.randrange(0, END_MS) for _ in range(count))
    return [(chance.randrange(7), at) for at in times]


def hot_items(
    source: KafkaTopic, counts: KafkaTopic, most: KafkaTopic, flush: timedelta | None = None
) -> Flow:
    """Nexmark query 5: the bids of each auction in the last 10 s, then the most bids of any auction.

    With ``flush`` each of the two windows has a buffer.
    """
    source = replace(source, schema=SCHEMA, event_time="at", watermark=monotonous())
    flow = Flow("hot_items")
    counted = (
        flow.read("bids", source)
        .window(Sliding(10, slide=2), by="auction", name="bids_by_auction", flush=flush)
        .aggregate(n="count(*)")
    )
    counted.write("counts", counts)
    counted.filter(lambda row: row["n"] > 0, name="python").window(
        Tumbling(2), name="hottest", flush=flush
    ).aggregate(most="max(n)", auctions="count(*)", bids="sum(n)").write("most", most)
    return flow


def expected(times: Iterable[tuple[int, int]]) -> dict[int, tuple[int, int, int]]:
    """By end of window in ms: the most bids of an auction, the number of auctions, and that of bids."""
    found: dict[int, Counter[int]] = defaultdict(Counter)
    for auction, at in times:
        for end in range(at - at % 2000 + 2000, at - at % 2000 + 12_000, 2000):
            found[end][auction] += 1
    return {
        end: (max(each.values()), len(each), sum(each.values()))
        for end, each in found.items()
        if end <= END_MS
    }


def hottest(rows: Iterable[dict[str, Any]]) -> dict[int, tuple[int, int, int]]:
    """Results in the form of `expected`; each window has one."""
    found: dict[int, tuple[int, int, int]] = {}
    for row in rows:
        end = row["window_end"]
        end_ms = 1000 * (60 * int(end[14:16]) + int(end[17:19]))
        assert end_ms not in found
        found[end_ms] = (row["most"], row["auctions"], row["bids"])
    return {end_ms: each for end_ms, each in found.items() if end_ms <= END_MS}


def test_windows_over_windows_over_restarts(live: Live) -> None:
    """Each slice continues both operators' state; the results are those of a plain computation.

    Tasks read several partitions each: there are more of these than key groups.
    """
    partitions = 20
    source, counts, most = bids(live), live.topic("counts"), live.topic("most")
    flow = hot_items(source, counts, most)
    records = random_bids(600)
    rows = [{"auction": auction, "at": at} for auction, at in records]
    queries: list[str] = []

    def finish(run: LiveRun) -> None:
        queries.extend(run.running)
        assert run.wait(300)

    for part in (rows[:150], rows[150:400], [*rows[400:], *LAST * (partitions // 2)]):
        live.send(source, *part, partitions=partitions)
        live.run(flow, "slice", finish)

    assert queries == ["bids-batches"] * 3
    wanted = expected(records)
    assert hottest(live.values(most)) == wanted
    assert sum(row["n"] for row in live.values(counts) if row["auction"] != 99) >= sum(
        each[2] for each in wanted.values()
    )
    ids = [record.id for record in live.records(most)]
    assert len(set(ids)) == len(ids)
    assert all(re.match(r"\w+/\w+:[\w-]{22}:[\w-]{8}:{}:\d", each) for each in ids)
    assert state_operators(live, flow) == {"bids_by_auction", "hottest"}


def state_operators(live: Live, flow: Flow) -> set[str]:
    query = next(each for each in plan_flow(flow, settings=live.settings).live_queries if each.sinks)
    checkpoint = checkpoint_folder(query, flow.name, live.settings)
    found = read_state(live_session(live.spark, live.settings), checkpoint)
    return {each.held.operator for each in found if isinstance(each, KeyGroupState)}


class Rising(KeyedProcessFunction):
    """Emits the difference to the last count of an auction, and at an event timer that nothing came."""

    def open(self, context: Any) -> None:
        self.last = context.value_state("last", "BIGINT")

    def process(self, record: Any, context: Any) -> Any:
        if record["n"] > 90:
            msg = "too many"
            raise ValueError(msg)
        before = self.last.get(0)
        self.last.set(record["n"])
        context.register_event_timer(context.timestamp_ms + 5000)
        return [{"auction": context.key, "change": record["n"] - before, "at": context.timestamp_ms}]

    def on_timer(self, time_ms: int, context: Any) -> Any:
        return [{"auction": context.key, "change": 0, "at": time_ms}]


@pytest.mark.thorough
def test_a_process_over_windows_fires_by_their_watermark_and_lets_other_rows_pass(live: Live) -> None:
    """Bad messages and late records of the first operator pass the second, whose failures have an id."""
    source = bids(live)
    counts, late, changes = live.topic("counts"), live.topic("late"), live.topic("changes")
    flow = Flow("rising")
    windows = flow.read("bids", source).window(Tumbling(2), by="auction", late="side-output", name="windows")
    counted = windows.aggregate(n="count(*)")
    counted.where("n > 1").write("counts", counts)
    counted.late.write("late", late)
    tenfold = counted.select("auction", "n * 10 as n")
    changed = tenfold.process(
        Rising(), by="auction", schema="auction BIGINT, change BIGINT, at BIGINT", name="rising"
    )
    changed.write("changes", changes)

    def bid(auction: int, at: int) -> dict[str, int]:
        return {"auction": auction, "at": at}

    live.send(source, bid(1, 0), bid(1, 1), b"bad 1", bid(2, 100), bid(1, 2500))
    live.run(flow, "slice")
    assert sorted((row["auction"], row["change"], row["at"]) for row in live.values(changes)) == [
        (1, 20, 1999), (2, 10, 1999),
    ]  # fmt: skip
    live.send(source, bid(1, 3), b"bad 2", *[bid(3, 5000)] * 10, bid(1, 7000))
    live.run(flow, "slice")

    assert sorted((row["at"], row["auction"], row["change"]) for row in live.values(changes)) == [
        (1999, 1, 20), (1999, 2, 10), (3999, 1, -10), (6999, 1, 0), (6999, 2, 0),
    ]  # fmt: skip
    assert sorted((row["auction"], row["n"]) for row in live.values(counts)) == [(1, 2), (3, 10)]
    (record,) = live.records(late)
    topic = live.topic_id(source)
    assert record.id == f"{flow.name}/late:{topic}:0:5:0"
    letters = live.records(source.dead_letter)
    assert {record.value for record in letters if b"bad" in (record.value or b"")} == {b"bad 1", b"bad 2"}
    (failed,) = (record for record in letters if b"bad" not in (record.value or b""))
    assert failed.headers["flowcore-operator"] == b"rising"
    assert re.match(rf'{flow.name}/\w+:{topic}:[\w-]{{8}}:{{"auction":3}}:4000:6000:1', failed.id)
    assert b"too many" in failed.headers["flowcore-reason"]


@pytest.mark.thorough
def test_records_and_bad_messages_that_no_operator_reads_arrive_once(live: Live) -> None:
    """A branch of the source passes both operators and is united with their results."""
    source, out = bids(live), live.topic("out")
    flow = Flow("bypass")
    read = flow.read("bids", source)
    first = read.window(Tumbling(2), by="auction", name="first").aggregate(n="count(*)")
    second = first.window(Tumbling(4), by="auction", name="second").aggregate(n="sum(n)")
    passing = read.where("auction > 1").select("auction", "-1L AS n")
    second.select("auction", "n").union(passing).write("out", out)
    rows = [{"auction": auction, "at": at} for auction, at in ((1, 0), (2, 100), (1, 2500), (2, 9000))]
    live.send(source, *rows[:2], b"bad", *rows[2:])

    live.run(flow)

    found = sorted((row["auction"], row["n"]) for row in live.values(out))
    assert found == [(1, 2), (2, -1), (2, -1), (2, 1)]
    assert [record.value for record in live.records(source.dead_letter)] == [b"bad"]


class Quiet(KeyedProcessFunction):
    """Emits the number of a user's records when a user has had none for 100 ms."""

    def open(self, context: Any) -> None:
        self.count = context.value_state("count", "BIGINT")

    def process(self, record: Any, context: Any) -> Any:  # noqa: ARG002 - its signature
        self.count.set(self.count.get(0) + 1)
        context.register_processing_timer(context.processing_time_ms + 100)
        return []

    def on_timer(self, time_ms: int, context: Any) -> Any:  # noqa: ARG002 - its signature
        n = self.count.get(0)
        self.count.clear()
        return [{"user": context.key, "n": n}] if n else []


class Sum(KeyedProcessFunction):
    """Emits the sum of all records so far."""

    def open(self, context: Any) -> None:
        self.total = context.value_state("total", "BIGINT")

    def process(self, record: Any, context: Any) -> Any:  # noqa: ARG002 - its signature
        self.total.set(self.total.get(0) + record["n"])
        return [{"total": self.total.get(0)}]


@pytest.mark.thorough
def test_processes_without_watermarks_and_latency_markers_run_in_a_chain(live: Live) -> None:
    """Timers of processing time fire without input, and markers leave after both operators."""
    live.settings = replace(live.settings, latency_interval=timedelta(milliseconds=200))
    clicks, totals = live.topic("clicks", schema="user STRING"), live.topic("totals")
    flow = Flow("quiet")
    counts = flow.read("clicks", clicks).process(
        Quiet(), by="user", schema="user STRING, n BIGINT", name="quiet"
    )
    counts.process(Sum(), schema="total BIGINT", name="sum").write("totals", totals)
    live.send(clicks, *({"user": user} for user in "aabcaab"), partitions=2)

    def seen(run: LiveRun) -> None:
        end = time.monotonic() + 300
        while not (records := live.records(totals)) or records[-1].json["total"] < 7 or not run.latency():
            assert not run.wait(0.3)
            assert time.monotonic() < end, (records, run.latency())
        assert {each.sink for each in run.latency()} == {"quiet/totals"}

    live.run(flow, "micro-batch", seen)

    ids = [record.headers["flowcore-id"].decode() for record in live.records(totals)]
    assert len(set(ids)) == len(ids)
    assert all(re.match(r'\w+/\w+:[\w-]{22}:[\w-]{8}:[\w-]{8}:{"user": "', each) for each in ids)
