"""Several operators with state of the same depth in one live query, which reads their source once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Stream, Tumbling
from flowcore.process import KeyedProcessFunction
from flowcore.spark.run.live_stage import LiveRun
from flowcore.watermarks import monotonous
from tests.kafka.conftest import Live
from tests.kafka.driver import kill_driver, run_slice
from tests.kafka.test_live_exchanges import END_MS, LAST, bids, random_bids, state_operators


def count(stream: Stream, seconds: int, name: str, topic: KafkaTopic) -> Stream:
    found = stream.window(Tumbling(seconds), by="auction", name=name).aggregate(n="count(*)")
    found.write(f"to_{name}", topic)
    return found


def by_window(rows: Iterable[Mapping[str, Any]], value: str = "n") -> dict[tuple[int, int], int]:
    """Of each auction and end of a window up to `END_MS`, the value; each window has one."""
    found: dict[tuple[int, int], int] = {}
    for row in rows:
        end = row["window_end"]
        end_ms = 1000 * (60 * int(end[14:16]) + int(end[17:19]))
        assert (row["auction"], end_ms) not in found
        found[row["auction"], end_ms] = row[value]
    return {key: n for key, n in found.items() if key[1] <= END_MS}


def counted(records: Iterable[tuple[int, int]], size_ms: int) -> Counter[tuple[int, int]]:
    return Counter((auction, at - at % size_ms + size_ms) for auction, at in records)


def test_windows_over_one_source_share_a_read_and_come_and_go(live: Live) -> None:
    """A third window joins the checkpoint, and another one leaves; the state of the others stays."""
    source = bids(live)
    topics = {name: live.topic(name) for name in ("short", "long", "third", "odd")}
    records = sorted(random_bids(300), key=lambda each: each[1])
    parts = [records[:100], records[100:200], records[200:]]
    sources: list[list[str]] = []

    def run(part: list[Any], sizes: Mapping[str, int]) -> set[str]:
        flow = Flow("windows")
        read = flow.read("bids", source)
        for name, seconds in sizes.items():
            count(read, seconds, name, topics[name])
        read.filter(lambda row: row["auction"] % 2 == 1, name="is_odd").write("odd", topics["odd"])

        def finish(running: LiveRun) -> None:
            assert running.wait(300)
            (query,) = running.running.values()
            batch = next(each for each in query.recentProgress if each.numInputRows > 2)
            sources.append([each.description for each in batch.sources if "Kafka" in each.description])

        live.send(source, *part, partitions=2)
        live.run(flow, "slice", finish)
        return state_operators(live, flow)

    rows = [[{"auction": auction, "at": at} for auction, at in part] for part in parts]
    assert run([*rows[0], b"bad"], {"short": 2, "long": 6}) == {"short", "long"}
    assert run(rows[1], {"short": 2, "long": 6, "third": 4}) == {"short", "long", "third"}
    assert run([*rows[2], *LAST], {"third": 4, "short": 2}) == {"short", "third"}

    assert [len(each) for each in sources] == [1, 1, 1]
    assert by_window(live.values(topics["short"])) == counted(records, 2000)
    assert by_window(live.values(topics["third"])) == counted(parts[1] + parts[2], 4000)
    until_ms = parts[1][-1][1]
    assert by_window(live.values(topics["long"])).items() <= counted(records, 6000).items()
    assert max(end for _, end in by_window(live.values(topics["long"]))) > until_ms - 8000
    odd = Counter(auction for auction, _ in records if auction % 2)
    assert Counter(row["auction"] for row in live.values(topics["odd"]) if row["auction"] < 99) == odd
    assert [record.value for record in live.records(source.dead_letter)] == [b"bad"]


class Total(KeyedProcessFunction):
    """Emits the sum of the counts of an auction so far."""

    def open(self, context: Any) -> None:
        self.total = context.value_state("total", "BIGINT")

    def process(self, record: Any, context: Any) -> Any:
        self.total.set(self.total.get(0) + record["n"])
        return [{"auction": context.key, "total": self.total.get(0)}]


def fan_out(source: KafkaTopic, short: KafkaTopic, longer: KafkaTopic, totals: KafkaTopic) -> Flow:
    """A window that is read by another window and by a process function."""
    source = replace(source, schema="auction BIGINT, at BIGINT", event_time="at", watermark=monotonous())
    flow = Flow("fan_out")
    first = count(flow.read("bids", source), 2, "short", short)
    first.window(Tumbling(6), by="auction", name="longer").aggregate(n="sum(n)").write("to_longer", longer)
    summed = first.process(Total(), by="auction", schema="auction BIGINT, total BIGINT", name="totals")
    summed.write("to_totals", totals)
    return flow


def drive(servers: str, state: str, *topics: str) -> None:
    """Run a slice of small batches until this process is killed."""
    run_slice(fan_out, servers, state, topics)


@pytest.mark.thorough
def test_results_of_a_window_go_to_a_window_and_a_function_over_a_kill(live: Live) -> None:
    """Repeated batches give the same results under the same ids."""
    source, *sinks = bids(live), *(live.topic(name) for name in ("short", "longer", "totals"))
    records = random_bids(400)
    live.send(source, *({"auction": auction, "at": at} for auction, at in records), *LAST, partitions=2)
    names = [topic.name for topic in (source, *sinks)]
    kill_driver(drive, live, *names, batches=3, after_s=0.3)

    live.run(fan_out(source, *sinks))

    rows = []
    for topic in sinks:
        found: dict[bytes, dict[str, Any]] = {}
        for record in live.records(topic):
            assert found.setdefault(record.headers["flowcore-id"], record.json) == record.json
        rows.append(list(found.values()))
    assert by_window(rows[0]) == counted(records, 2000)
    assert by_window(rows[1]) == counted(records, 6000)
    finals: Counter[int] = Counter()
    for row in rows[2]:
        finals[row["auction"]] = max(finals[row["auction"]], row["total"])
    assert finals == Counter(auction for auction, _ in records)
    assert len(rows[2]) >= len(rows[0])


@pytest.mark.thorough
def test_results_of_two_operators_and_a_topic_are_united_for_a_second_one(live: Live) -> None:
    """The watermark of each of the three holds the second operator; all their records have an id."""
    source, out = bids(live), live.topic("out")
    other = live.topic("other", schema="auction BIGINT, at BIGINT", event_time="at", watermark=monotonous())
    flow = Flow("united")
    read = flow.read("bids", source)
    short, long = (
        read.window(Tumbling(seconds), by="auction", name=name).aggregate(n="count(*)").select("auction", "n")
        for name, seconds in (("short", 2), ("long", 4))
    )
    single = flow.read("other", other).select("auction", "100L AS n").where("auction < 9")
    both = short.union(long).union(single)
    both.window(Tumbling(12), by="auction", name="sums").aggregate(n="sum(n)").write("out", out)
    passed = live.topic("passed")
    both.where("auction = 1").write("passed", passed)
    records = random_bids(200)
    beside = [(auction, at) for auction, at in random_bids(100) if at < 40_000]
    rows = [{"auction": auction, "at": at} for auction, at in records]

    live.send(source, *rows, *LAST, partitions=2)
    live.send(other, *({"auction": auction, "at": at} for auction, at in beside))
    live.run(flow, "slice")
    held_ms = beside[-1][1]
    assert max(end for _, end in by_window(live.values(out))) <= held_ms
    live.send(other, {"auction": 99, "at": END_MS + 10_000})
    live.run(flow, "slice")

    wanted = counted(records, 12_000)
    hundreds = counted(beside, 12_000)
    expected = {key: 2 * wanted[key] + 100 * hundreds[key] for key in {*wanted, *hundreds}}
    assert by_window(live.values(out)) == expected
    ids = [record.headers["flowcore-id"] for record in live.records(passed)]
    assert len({*ids}) == len(ids)
    assert len({each.split(b":")[2] for each in ids}) == 3  # the labels of two operators, and the topic's id
