"""Running aggregates upstream and downstream of other operators with state, in one live query."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import Any

from flowcore import Flow, KafkaTopic, Tumbling
from flowcore.planner import plan_flow
from flowcore.process import KeyedProcessFunction
from flowcore.watermarks import monotonous
from tests.kafka.conftest import Live

SCHEMA = "auction BIGINT, bidder STRING, price DECIMAL(12,2), at BIGINT"
END_MS = 60_000
LAST = {"auction": 99, "bidder": "none", "price": 1, "at": END_MS}
"""The last record of each partition, which completes all windows before it."""


class Steps(KeyedProcessFunction):
    """Emits how much a bidder's total has grown since its last row."""

    def open(self, context: Any) -> None:
        self.last = context.value_state("last", "DOUBLE")

    def process(self, record: Any, context: Any) -> Any:
        before = self.last.get(0.0)
        self.last.set(float(record["spent"]))
        yield {"bidder": context.key, "grown": float(record["spent"]) - before}


def build(
    source: KafkaTopic, busy: KafkaTopic, spent: KafkaTopic, steps: KafkaTopic, seconds: KafkaTopic
) -> Flow:
    """The busiest window of each auction, totals of bidders with their steps, and of windows."""
    flow = Flow("around")
    bids = flow.read("bids", source)
    counted = bids.window(Tumbling(2), by="auction", name="counted").aggregate(n="count(*)")
    counted.where("auction < 99").aggregate(
        by="auction", most="max(n)", windows="count(*)", mean="avg(n)", name="busiest"
    ).write("busy", busy)
    counted.where("auction < 99").aggregate(by="window_start", n="sum(n)", name="in_window").write(
        "seconds", seconds
    )
    totals = bids.where("auction < 99").aggregate(
        by="bidder", spent="sum(price)", first="min_by(auction, at)", name="totals"
    )
    totals.write("spent", spent)
    totals.process(Steps(), by="bidder", schema="bidder STRING, grown DOUBLE", name="steps").write(
        "grown", steps, key="bidder"
    )
    return flow


def test_aggregates_around_other_state_are_exact_over_restarts_and_a_repeated_batch(live: Live) -> None:
    """In two modes; the repeated batch writes the same rows under the same ids."""
    source = live.topic("bids", schema=SCHEMA, event_time="at", watermark=monotonous())
    busy, spent, steps, seconds = (live.topic(each) for each in ("busy", "spent", "steps", "seconds"))
    flow = build(source, busy, spent, steps, seconds)
    chance = random.Random(11)  # noqa: S311 - test data
    times = sorted(chance.randrange(0, END_MS) for _ in range(400))
    rows = [
        {
            "auction": chance.randrange(5),
            "bidder": chance.choice("abc"),
            "price": chance.randrange(1, 99),
            "at": at,
        }
        for at in times
    ]

    live.send(source, *rows[:120], partitions=2)
    live.run(flow)
    live.forget_last_batch(flow.name, "bids-batches")
    live.send(source, *rows[120:300], partitions=2)
    live.run(flow)
    live.send(source, *rows[300:], LAST, LAST, partitions=2)

    def last(topic: KafkaTopic, key: str) -> dict[Any, dict[str, Any]]:
        return {row[key]: row for row in live.values(topic)}

    def done(run: Any) -> None:
        end = time.monotonic() + 200
        while (found := {key: row["windows"] for key, row in last(busy, "auction").items()}) != windows:
            assert time.monotonic() < end, (found, windows)
            assert not run.wait(0.5)

    by_window: dict[int, Counter[int]] = defaultdict(Counter)
    for row in rows:
        by_window[row["auction"]][row["at"] // 2000] += 1
    windows = {auction: len(found) for auction, found in by_window.items()}
    live.run(flow, "micro-batch", done)

    assert {auction: (row["most"], row["windows"]) for auction, row in last(busy, "auction").items()} == {
        auction: (max(found.values()), len(found)) for auction, found in by_window.items()
    }
    in_windows = Counter(datetime.fromtimestamp(row["at"] // 2000 * 2, UTC) for row in rows)
    assert {
        datetime.fromisoformat(start): row["n"] for start, row in last(seconds, "window_start").items()
    } == in_windows
    totals: Counter[str] = Counter()
    for row in rows:
        totals[row["bidder"]] += row["price"]
    assert {bidder: row["spent"] for bidder, row in last(spent, "bidder").items()} == totals
    grown: Counter[str] = Counter()
    for record in {record.id: record for record in live.records(steps)}.values():
        grown[record.json["bidder"]] += record.json["grown"]
    assert grown == totals
    for topic in (busy, spent, steps, seconds):
        contents: dict[str, set[tuple[bytes | None, bytes | None]]] = defaultdict(set)
        records = live.records(topic)
        for record in records:
            contents[record.id].add((record.key, record.value))
        assert all(len(each) == 1 for each in contents.values())
        assert len(contents) < len(records)  # some were repeated
    assert {key.key["bidder"] for key in live.held_keys(flow, "totals")} == {"a", "b", "c"}
    (query,) = (each for each in plan_flow(flow, settings=live.settings).live_queries if each.sinks)
    assert [[node.name for node in each] for each in query.exchanges] == [
        ["counted", "totals"],
        ["busiest", "in_window", "steps"],
    ]
