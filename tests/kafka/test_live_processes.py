"""Keyed process functions of live queries: states, timers and side outputs, over restarts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pytest

from flowcore import Flow, KafkaTopic, KeyedProcessFunction
from flowcore.errors import RunError
from flowcore.spark.run.live_stage import LiveRun
from flowcore.watermarks import monotonous
from tests.kafka.conftest import Live

BID = "bidder STRING, price BIGINT, at BIGINT"
SEEN = "bidder STRING, what STRING, bids BIGINT, spent BIGINT"


class Silence(KeyedProcessFunction):
    """Counts bids, emits expensive bids, and reports bidders who were silent for ten seconds."""

    def open(self, context: Any) -> None:
        self.bids = context.value_state("bids", "BIGINT")
        self.spent = context.reducing_state("spent", "BIGINT", lambda kept, new: kept + new)
        self.last_ms = context.value_state("last", "BIGINT")

    def process(self, record: Mapping[str, Any], context: Any) -> Iterator[Mapping[str, Any]]:
        self.bids.set(self.bids.get(0) + 1)
        self.spent.add(record["price"])
        context.delete_event_timer(self.last_ms.get(0) + 10_000)
        self.last_ms.set(context.timestamp_ms)
        context.register_event_timer(context.timestamp_ms + 10_000)
        if record["price"] >= 100:
            context.side_output("dear", {"price": record["price"], "nth": self.bids.get()})
        for what in ("bid", "again"):
            yield self._seen(what, context)

    def on_timer(self, time_ms: int, context: Any) -> list[Mapping[str, Any]]:
        return [self._seen(f"silent at {time_ms}", context)]

    def _seen(self, what: str, context: Any) -> Mapping[str, Any]:
        return {"bidder": context.key, "what": what, "bids": self.bids.get(), "spent": self.spent.get()}


class Alarm(KeyedProcessFunction):
    """Registers a processing-time timer and counts bids."""

    def open(self, context: Any) -> None:
        self.bids = context.value_state("bids", "BIGINT")

    def process(self, _record: Mapping[str, Any], context: Any) -> None:
        self.bids.set(self.bids.get(0) + 1)
        context.register_processing_timer(context.processing_time_ms + 300)

    def on_timer(self, _time_ms: int, context: Any) -> list[Mapping[str, Any]]:
        return [{"bidder": context.key, "bids": self.bids.get()}]


class Sums(KeyedProcessFunction):
    """Processes whole batches."""

    def open(self, context: Any) -> None:
        self.sum = context.value_state("sum", "BIGINT")

    def process_batch(self, keys: Any, batch: pa.RecordBatch, context: Any) -> list[pa.RecordBatch]:
        sums = []
        for key, price in zip(keys, batch.column("price").to_pylist(), strict=True):
            context.key = key
            self.sum.set(self.sum.get(0) + price)
            sums.append(self.sum.get())
        return [pa.RecordBatch.from_pydict({"bidder": list(keys), "sum": sums})]


class Broken(KeyedProcessFunction):
    """Raises for every record."""

    def process(self, record: Mapping[str, Any], _context: Any) -> None:
        msg = f"no such price:\n{record['price']}"
        raise LookupError(msg)


def loud(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "what": record["what"].upper()}


def bids(live: Live, **settings: Any) -> KafkaTopic:
    return live.topic("bids", schema=BID, event_time="at", watermark=monotonous(), **settings)


def bid(bidder: str, price: int, at: int) -> dict[str, Any]:
    return {"bidder": bidder, "price": price, "at": at}


def outputs(live: Live, topic: KafkaTopic) -> dict[str, tuple[Any, ...]]:
    """Values of each output, by record id without writer, topic and operator."""
    records = live.records(topic)
    found = {each.id.split(":", 3)[3]: tuple(each.json.values()) for each in records}
    assert len(found) == len(records)
    return found


def test_states_and_timers_continue_after_a_restart(live: Live) -> None:
    """Three runs on one checkpoint give results, a side output and event-time timers, and map the results."""
    source, out, expensive = bids(live), live.topic("out"), live.topic("dear")
    flow = Flow("silence")
    found = flow.read("bids", source).process(
        Silence(), by="bidder", uses=["price"], schema=SEEN, name="silence",
        side_outputs={"dear": "price BIGINT, nth BIGINT"},
    )  # fmt: skip
    found.map(loud, schema=SEEN).write("out", out)
    found.side_output("dear").write("dear", expensive)
    at = "0"
    live.send(source, bid("ann", 5, 1_000), bid("bob", 100, 2_000))

    live.run(flow)

    first = {
        f"{at}:0:0": ("ann", "BID", 1, 5),
        f"{at}:0:1": ("ann", "AGAIN", 1, 5),
        f"{at}:1:0": ("bob", "BID", 1, 100),
        f"{at}:1:1": ("bob", "AGAIN", 1, 100),
    }
    assert outputs(live, out) == first
    live.send(source, bid("ann", 200, 11_000))  # her timer at 11000 is not due yet, and is deleted
    live.run(flow)
    second = {
        f"{at}:2:0": ("ann", "BID", 2, 205),
        f"{at}:2:1": ("ann", "AGAIN", 2, 205),
    }
    assert outputs(live, out) == {**first, **second}
    live.send(source, bid("bob", 1, 21_001))
    live.run(flow)
    third = {
        f"{at}:3:0": ("bob", "BID", 2, 101),
        f"{at}:3:1": ("bob", "AGAIN", 2, 101),
        '{"bidder": "ann"}:event:21000:0': ("ann", "SILENT AT 21000", 2, 205),
    }
    assert outputs(live, out) == {**first, **second, **third}
    assert outputs(live, expensive) == {"0:1:0": (100, 1), "0:2:0": (200, 2)}
    assert {each.id.split(":")[2].endswith(".dear") for each in live.records(expensive)} == {True}


@pytest.mark.thorough
def test_processing_time_timers_fire_without_input(live: Live) -> None:
    """A batch without input fires the timers that are due."""
    source, out = bids(live), live.topic("out")
    flow = Flow("alarm")
    flow.read("bids", source).process(
        Alarm(), by="bidder", schema="bidder STRING, bids BIGINT", name="alarm"
    ).write("out", out)
    live.send(source, bid("ann", 5, 1_000), bid("ann", 6, 1_000))

    def arrived(run: LiveRun) -> None:
        end = time.monotonic() + 300
        while not live.records(out):
            assert time.monotonic() < end, "the timer did not fire"
            assert not run.wait(0.2)

    live.run(flow, "micro-batch", until=arrived)

    ((record_id, seen),) = outputs(live, out).items()
    assert record_id.startswith('{"bidder": "ann"}:processing:')
    assert seen == ("ann", 2)


@pytest.mark.thorough
def test_process_of_batches_emits_batches(live: Live) -> None:
    """Output batches have no timestamps and the record ids of a batch's first record."""
    source, out = bids(live), live.topic("out")
    flow = Flow("sums")
    flow.read("bids", source).process(
        Sums(), by="bidder", schema="bidder STRING, sum BIGINT", name="sums"
    ).write("out", out)
    live.send(source, bid("ann", 5, 1_000), bid("ann", 6, 1_000))
    live.run(flow)
    live.send(source, bid("ann", 7, 1_000))
    live.run(flow)

    assert outputs(live, out) == {"0:0:0": ("ann", 5), "0:0:1": ("ann", 11), "0:2:0": ("ann", 18)}


def test_failing_process_stops_the_query_with_on_error_fail(live: Live) -> None:
    """The one-line error names the operator, the exception and the record."""
    source, out = bids(live, on_error="fail"), live.topic("out")
    flow = Flow("broken")
    flow.read("bids", source).process(Broken(), by="bidder", schema="price BIGINT", name="broken").write(
        "out", out
    )
    live.send(source, bid("ann", 5, 1_000))

    with pytest.raises(RunError) as raised:
        live.run(flow)

    expected_error = "operator 'broken': its function raised LookupError: no such price: 5"
    expected_error += f" for key 'ann' at {source.name}[0]@0"
    assert expected_error in str(raised.value)
    assert "\n" not in str(raised.value)


class Total(KeyedProcessFunction):
    """Adds prices up."""

    def open(self, context: Any) -> None:
        self.sum = context.value_state("sum", "BIGINT")

    def process(self, record: Mapping[str, Any], context: Any) -> Iterator[Mapping[str, Any]]:
        self.sum.set(self.sum.get(0) + record["price"])
        yield {"bidder": context.key, "sum": self.sum.get()}


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.concat_batches([batch, batch])


@pytest.mark.thorough
def test_process_reads_the_records_of_a_function_of_batches(live: Live) -> None:
    """Their partitions are unknown, and their state continues after a restart."""
    source, out = live.topic("bids", schema=BID), live.topic("out")
    flow = Flow("batches")
    columns = "bidder STRING, price BIGINT"
    doubled = flow.read("bids", source).map_batches(twice, schema=columns, uses=["bidder", "price"])
    doubled.process(Total(), by="bidder", schema="bidder STRING, sum BIGINT", name="total").write("out", out)

    live.send(source, bid("ann", 4, 1), bid("bob", 2, 2), bid("ann", 6, 3), partitions=2)
    live.run(flow)
    live.send(source, bid("ann", 1, 4), partitions=2)
    live.run(flow)

    sums = {each["bidder"]: each["sum"] for each in sorted(live.values(out), key=itemgetter("sum"))}
    assert sums == {"ann": 22, "bob": 4}
    assert len(live.values(out)) == 8


class Picky(KeyedProcessFunction):
    """Adds prices up; raises after all its changes for odd prices and for timers of 7."""

    def open(self, context: Any) -> None:
        self.sum = context.value_state("sum", "BIGINT")

    def process(self, record: Mapping[str, Any], context: Any) -> Iterator[Mapping[str, Any]]:
        self.sum.set(self.sum.get(0) + record["price"])
        context.register_event_timer(record["price"])
        yield {"bidder": context.key, "what": "bid", "sum": self.sum.get()}
        if record["price"] % 2 and record["price"] != 7:
            raise ValueError(record["price"])

    def on_timer(self, time_ms: int, context: Any) -> list[Mapping[str, Any]]:
        if time_ms == 7:
            raise KeyError(time_ms)
        return [{"bidder": context.key, "what": "timer", "sum": self.sum.get()}]


def test_record_or_timer_whose_process_raises_is_a_dead_letter(live: Live) -> None:
    """The call's changes are undone, the dead letter has its coordinates, and the query continues."""
    source, out = bids(live), live.topic("out")
    flow = Flow("picky")
    flow.read("bids", source).process(
        Picky(), by="bidder", uses=["price"], schema="bidder STRING, what STRING, sum BIGINT", name="picky"
    ).map(loud, schema="bidder STRING, what STRING, sum BIGINT").write("out", out)
    live.send(
        source, bid("ann", 4, 1_000), bid("ann", 5, 1_001), bid("ann", 6, 1_002), b"bad", bid("bob", 7, 9)
    )
    live.run(flow)
    live.send(source, bid("ann", 9, 1_003), bid("ann", 8, 1_004))
    live.run(flow)

    seen = [(each["what"], each["bidder"], each["sum"]) for each in live.values(out)]
    assert sorted(seen) == [
        ("BID", "ann", 4), ("BID", "ann", 10), ("BID", "ann", 18), ("BID", "bob", 7),
        ("TIMER", "ann", 10), ("TIMER", "ann", 10), ("TIMER", "ann", 18),
    ]  # fmt: skip
    dead_letters = {each.headers["flowcore-offset"]: each for each in live.records(source.dead_letter)}
    assert sorted(dead_letters) == [b"", b"1", b"3", b"5"]
    assert dead_letters[b"3"].value == b"bad"
    assert dead_letters[b"1"].json == {"bidder": "ann", "price": 5}
    assert dead_letters[b"5"].json == {"bidder": "ann", "price": 9}
    assert dead_letters[b""].json == {"key": {"bidder": "bob"}, "time": "event", "time_ms": 7}
    assert dead_letters[b"1"].headers["flowcore-topic"].decode() == source.name
    assert dead_letters[b"1"].headers["flowcore-operator"] == b"picky"
    assert dead_letters[b"1"].headers["flowcore-stage"] == b"function"
    assert dead_letters[b"1"].headers["flowcore-reason"].decode() == (
        f"operator 'picky': its function raised ValueError: 5 for key 'ann' at {source.name}[0]@1"
    )


def copies(record: dict[str, Any]) -> list[dict[str, Any]]:
    if record["sum"] == 12:
        raise LookupError(record["sum"])
    return [record, {**record, "what": "copy"}]


@pytest.mark.thorough
def test_functions_downstream_of_a_process_run_in_its_call(live: Live) -> None:
    """The plan has no Python node for them; their outputs have record ids, their failures dead letters."""
    source, out = bids(live), live.topic("out")
    columns = "bidder STRING, what STRING, sum BIGINT"
    flow = Flow("downstream")
    summed = flow.read("bids", source).process(
        Picky(), by="bidder", uses=["price"], schema=columns, name="sums"
    )
    summed.map(loud, schema=columns).flat_map(copies, schema=columns, name="copies").write("out", out)
    live.send(source, bid("ann", 4, 1_000), bid("ann", 8, 1_001), bid("bob", 2, 900))
    plans: list[str] = []

    def arrived(run: LiveRun) -> None:
        end = time.monotonic() + 300
        while len(live.records(out)) < 6:
            assert time.monotonic() < end, "not all records arrived"
            assert not run.wait(0.2)
        plans.append(run.running["bids-batches"]._jsq.explainInternal(False))

    live.run(flow, "micro-batch", until=arrived)

    (plan,) = plans
    functions = [
        name for name in ("TransformWithState", "MapInArrow", "ArrowEval") for _ in range(plan.count(name))
    ]
    assert functions.count("MapInArrow") == 2
    assert functions.count("ArrowEval") == 0
    found = {place: each for place, each in outputs(live, out).items() if place.startswith("0:")}
    firsts = {"0:0:0": ("ann", "BID", 4), "0:2:0": ("bob", "BID", 2)}
    assert {record_id: found[record_id] for record_id in firsts} == firsts
    assert sorted(each for record_id, each in found.items() if record_id not in firsts) == [
        ("ann", "copy", 4), ("bob", "copy", 2),
    ]  # fmt: skip
    dead_letters = live.records(source.dead_letter)
    of_record = next(each for each in dead_letters if each.headers["flowcore-offset"] == b"1")
    assert of_record.json == {"bidder": "ann", "what": "bid", "sum": 12}  # the output of the process
    assert of_record.headers["flowcore-operator"] == b"copies"
    assert all(each.json["sum"] == 12 for each in dead_letters)
