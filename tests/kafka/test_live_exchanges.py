"""Several operators with state in one live query, each downstream of another one."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from flowcore import Flow, KafkaTopic, Sliding, Tumbling
from flowcore.planner import plan_flow
from flowcore.process import KeyedProcessFunction
from flowcore.spark.checkpoint.plan_file import checkpoint_folder
from flowcore.spark.run.inspection import KeyGroupState, read_state
from flowcore.spark.run.session import live_session
from flowcore.watermarks import monotonous
from tests.kafka.conftest import Live

SCHEMA = "auction BIGINT, at BIGINT"
END_MS = 60_000


def bids(live: Live, **settings: Any) -> KafkaTopic:
    return live.topic("bids", schema=SCHEMA, event_time="at", watermark=monotonous(), **settings)


def hot_items(live: Live, source: KafkaTopic) -> tuple[Flow, KafkaTopic, KafkaTopic]:
    """Nexmark query 5: the bids of each auction in the last 10 s, then the most bids of any auction."""
    counts, most = live.topic("counts"), live.topic("most")
    flow = Flow("hot_items")
    counted = (
        flow.read("bids", source)
        .window(Sliding(10, slide=2), by="auction", name="bids_by_auction")
        .aggregate(n="count(*)")
    )
    counted.write("counts", counts)
    counted.filter(lambda row: row["n"] > 0, name="python").window(Tumbling(2), name="hottest").aggregate(
        most="max(n)", auctions="count(*)", bids="sum(n)"
    ).write("most", most)
    return flow, counts, most


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


def seconds(text: str) -> int:
    return 60 * int(text[14:16]) + int(text[17:19])


def test_windows_over_windows_over_restarts(live: Live) -> None:
    """Each slice continues both operators' state; the results are those of a plain computation."""
    source = bids(live)
    flow, counts, most = hot_items(live, source)
    random_ = random.Random(5)  # noqa: S311 - test data
    times = sorted(random_.randrange(0, END_MS) for _ in range(600))
    records = [(random_.randrange(7), at) for at in times]
    rows = [{"auction": auction, "at": at} for auction, at in records]
    end = [{"auction": 99, "at": END_MS + 10_000}] * 2
    queries: list[str] = []

    for part in (rows[:150], rows[150:400], [*rows[400:], *end]):
        live.send(source, *part, partitions=2)
        live.run(flow, "slice", lambda run: (queries.extend(run.running), run.wait(300)))

    assert queries.count("counts") == 3
    assert set(queries) == {"counts", "bids"}  # no bad message passes a Python function
    found = {
        seconds(row["window_end"]) * 1000: (row["most"], row["auctions"], row["bids"])
        for row in live.values(most)
    }
    wanted = expected(records)
    assert {end: each for end, each in found.items() if end <= END_MS} == wanted
    assert len(live.values(most)) == len(found)
    assert sum(row["n"] for row in live.values(counts) if row["auction"] != 99) >= sum(
        each[2] for each in wanted.values()
    )
    ids = [record.headers["flowcore-id"] for record in live.records(most)]
    assert len(set(ids)) == len(ids)
    assert all(each.startswith(b"hottest:{}:") for each in ids)
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
    assert record.headers["flowcore-id"].decode() == f"{source.name}:0:5:0"
    letters = live.records(source.dead_letter)
    assert {record.value for record in letters if b"bad" in (record.value or b"")} == {b"bad 1", b"bad 2"}
    (failed,) = (record for record in letters if b"bad" not in (record.value or b""))
    assert failed.headers["flowcore-operator"] == b"rising"
    assert failed.headers["flowcore-id"].startswith(b'windows:{"auction":3}:4000:6000:1')
    assert b"too many" in failed.headers["flowcore-reason"]
