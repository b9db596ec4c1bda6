"""Record attributes and the end of input of a tagged topic reach functions, buffers and the next flow."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Producer

from flowcore import Flow, KafkaTopic, KeyedProcessFunction, RichFunction, monotonous
from flowcore.api.attributes import OperatorAttributes
from flowcore.elements import MAX_TIMESTAMP_MS, EndOfInput, Record, RecordAttributes, StreamElement, Watermark
from flowcore.kafka.topics import ensure_topics
from flowcore.planner import plan_flow
from flowcore.serializers import TaggedSerializer
from flowcore.serializers.formats import RawFormat

pytestmark = pytest.mark.kafka

Live = Any
TAGGED: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())
BEGIN, END = RecordAttributes(backlog=True), RecordAttributes(backlog=False)


class _WithStatus(KeyedProcessFunction):
    def process(self, record: Mapping[str, Any], context: Any) -> Iterator[Mapping[str, Any]]:
        yield {**record, "backlog": context.is_backlog}


def _bid(number: int, user: str) -> Record[bytes]:
    return Record(json.dumps({"id": number, "user": user}).encode(), number)


def test_attributes_and_the_end_of_input_pass_two_operators_in_the_order_of_the_records(live: Live) -> None:
    """The first one buffers; what it emits at the end of the backlog is backlog for the second one."""
    live.settings = replace(live.settings, key_groups=1, shuffle_partitions=1)
    bids = live.topic(
        "bids", schema="id BIGINT, user STRING", elements="tagged", watermark=monotonous(), channels=("all",)
    )
    out = live.topic("out", elements="tagged", partitions=1)
    flow = Flow("f")
    buffered = flow.read("bids", bids).process(
        _WithStatus(), by="user", schema="id BIGINT, user STRING", name="latest", flush=timedelta(hours=1),
        attributes=OperatorAttributes(output_idempotent=True),
    )  # fmt: skip
    schema = "id BIGINT, user STRING, backlog BOOLEAN"
    buffered.process(_WithStatus(), by="user", schema=schema, name="marked").write("out", out)
    backlog = (BEGIN, _bid(2, "ann"), _bid(3, "ann"), _bid(4, "bob"), END)
    ensure_topics(live.servers, {bids.name: 1})
    producer = Producer({"bootstrap.servers": live.servers, "log_level": 0})
    for element in (_bid(1, "ann"), *backlog, _bid(5, "ann"), EndOfInput()):
        producer.produce(bids.name, TAGGED.encode(element), headers=[("flowcore-channel", b"all")])
    assert producer.flush(60) == 0
    found: list[StreamElement[bytes]] = []

    def until_the_end(run: Any) -> None:
        deadline = time.monotonic() + 300
        while Watermark(MAX_TIMESTAMP_MS) not in found:
            assert time.monotonic() < deadline, found
            run.wait(0.5)
            found[:] = _written(live, out)

    live.run(flow, mode="micro-batch", until=until_the_end)

    assert _rows(found) == [(1, False), (3, True), (4, True), (5, False)]
    assert [each for each in found if isinstance(each, RecordAttributes)] == [BEGIN, END]

    # A slice emits what it has read, though the topic says that its backlog has not ended.
    live.send(bids, *map(TAGGED.encode, (BEGIN, _bid(6, "ann"))))
    live.run(flow)
    assert [number for number, _ in _rows(_written(live, out))] == [1, 3, 4, 5, 6]


class _Labels(RichFunction):
    """Adds to each record the attributes that it received last."""

    def __init__(self, column: str) -> None:
        self.column = column
        self.status: bool | None = None

    def process_record_attributes(self, attributes: RecordAttributes) -> None:
        """Keep the status of the records that follow."""
        self.status = attributes.backlog

    def __call__(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**record, self.column: self.status}


class _Twice(_Labels):
    """A `_Labels` for ``flat_map``, whose second record has a negative id."""

    def __call__(self, record: Mapping[str, Any]) -> Any:
        labelled = super().__call__(record)
        yield labelled
        yield {**labelled, "id": -1}


LABELLED = "id BIGINT, user STRING, backlog BOOLEAN"


@pytest.mark.thorough
def test_functions_of_chains_see_attributes_between_records(live: Live) -> None:
    """A partition keeps its status from batch to batch and over restarts; a slice is backlog."""
    bids = live.topic("bids", schema="id BIGINT, user STRING", elements="tagged")
    out = live.topic("out")
    flow = Flow("f")
    read = flow.read("bids", bids).filter(lambda record: record["user"] != "eve")
    read.flat_map(_Twice("backlog"), schema=LABELLED).where("id > 0").write("out", out)
    # Partition 0 begins backlog, partition 1 has no attributes.
    live.send(
        bids, *map(TAGGED.encode, (BEGIN, _bid(11, "ann"), _bid(2, "ann"), _bid(13, "eve"))), partitions=2
    )
    live.run(flow, mode="micro-batch", until=lambda run: live.wait_for_records(run, out, 2))
    zero = [_bid(4, "ann"), END, _bid(6, "ann"), BEGIN, _bid(8, "bob")]
    one = [_bid(number, "bob") for number in (15, 17, 19, 21, 23)]
    mixed = [element for pair in zip(zero, one, strict=True) for element in pair]
    live.send(bids, *map(TAGGED.encode, mixed), partitions=2)
    live.run(flow, mode="micro-batch", until=lambda run: live.wait_for_records(run, out, 10))
    live.send(bids, *map(TAGGED.encode, (_bid(10, "ann"), _bid(25, "ann"))), partitions=2)
    live.run(flow)
    live.send(bids, *map(TAGGED.encode, (_bid(12, "ann"), _bid(27, "ann"))), partitions=2)
    live.run(flow, mode="micro-batch", until=lambda run: live.wait_for_records(run, out, 14))

    found = {row["id"]: row["backlog"] for row in live.values(out)}
    odd = dict.fromkeys((11, 15, 17, 19, 21, 23, 27), False)
    slices = {10: True, 25: True}
    assert found == {2: True, 4: True, 6: False, 8: True, 12: True, **slices, **odd}


@pytest.mark.thorough
def test_functions_after_state_see_the_attributes_of_key_groups(live: Live) -> None:
    """Functions after a process run in its key groups, those after a deduplication in calls of their own."""
    live.settings = replace(live.settings, key_groups=2, shuffle_partitions=1)
    bids = live.topic("bids", schema="id BIGINT, user STRING", elements="tagged")
    first, second = live.topic("first", partitions=1), live.topic("second", partitions=1)
    flow = Flow("f")
    read = flow.read("bids", bids)
    watched = read.process(_WithStatus(), by="user", schema=LABELLED, name="watched")
    more = f"{LABELLED}, same BOOLEAN"
    watched.map(_Labels("same"), schema=more, name="after").write("first", first)
    kept = read.deduplicate(by="id", within=None, name="kept")
    kept.map(_Labels("backlog"), schema=LABELLED, name="labels").write("second", second)
    elements = (_bid(1, "ann"), BEGIN, _bid(2, "ann"), _bid(3, "bob"), END, _bid(4, "bob"), BEGIN)
    live.send(bids, *map(TAGGED.encode, elements))
    live.run(flow, mode="micro-batch", until=lambda run: live.wait_for_records(run, second, 4))
    live.send(bids, *map(TAGGED.encode, (_bid(5, "ann"), END, _bid(6, "bob"))))
    live.run(flow, mode="micro-batch", until=lambda run: live.wait_for_records(run, second, 6))

    expected = {1: False, 2: True, 3: True, 4: False, 5: True, 6: False}
    assert {row["id"]: row["backlog"] for row in live.values(first)} == expected
    assert all(row["backlog"] == row["same"] for row in live.values(first))
    assert {row["id"]: row["backlog"] for row in live.values(second)} == expected


@pytest.mark.thorough
def test_functions_of_chains_see_the_own_backlog_of_the_query(live: Live) -> None:
    """The query starts again where its lag falls, so that a batch has one status."""
    live.settings = replace(live.settings, backlog_enter=20, backlog_leave=5, max_batch_records=10)
    bids, out = live.topic("bids", schema="id BIGINT"), live.topic("out", partitions=1)
    flow = Flow("f")
    flow.read("bids", bids).map(_Labels("backlog"), schema="id BIGINT, backlog BOOLEAN").write("out", out)
    live.send(bids, *({"id": number} for number in range(40)))
    sent = 40

    def until_live(run: Any) -> None:
        nonlocal sent
        deadline = time.monotonic() + 300
        while len(rows := live.values(out)) < sent or rows[-1]["backlog"]:
            assert time.monotonic() < deadline, rows
            run.wait(0.5)
            if len(rows) == sent:
                live.send(bids, {"id": sent})
                sent += 1

    live.run(flow, mode="micro-batch", until=until_live)

    statuses = [row["backlog"] for row in live.values(out)]
    assert all(statuses[:40])
    assert statuses == sorted(statuses, reverse=True)
    assert [row["id"] for row in live.values(out)] == [*range(sent)]

    # A batch that runs again has the status that it had, though the query lags now.
    (query,) = plan_flow(flow, "micro-batch", live.settings).live_queries
    live.forget_last_batch("f", query.name)
    first_run = sent
    live.send(bids, *({"id": number} for number in range(sent, sent + 200)))
    sent += 200

    def until_backlog(run: Any) -> None:
        """Sends again whenever all are written, in case the next check of the lag came after that."""
        nonlocal sent
        deadline = time.monotonic() + 300
        while not any(row["backlog"] for row in live.values(out)[first_run + 1 :]):
            assert time.monotonic() < deadline
            run.wait(0.3)
            if len(live.values(out)) > sent:
                live.send(bids, *({"id": number} for number in range(sent, sent + 200)))
                sent += 200

    live.run(flow, mode="micro-batch", until=until_backlog)
    assert live.values(out)[first_run] == {"id": first_run - 1, "backlog": False}


def test_own_backlog_is_before_the_records_that_it_describes(live: Live) -> None:
    """A reader of the tagged topic sees of each record what functions saw; a slice writes no status."""
    live.settings = replace(live.settings, backlog_enter=20, backlog_leave=5, max_batch_records=10)
    bids = live.topic("bids", schema="id BIGINT", event_time="id", watermark=monotonous())
    out = live.topic("out", elements="tagged", partitions=1)
    flow = Flow("f")
    flow.read("bids", bids).map(_Labels("backlog"), schema="id BIGINT, backlog BOOLEAN").write("out", out)
    live.send(bids, *({"id": number} for number in range(40)))
    sent = 40

    def until_live(run: Any) -> None:
        """Sends a record whenever all are written, until one is live."""
        nonlocal sent
        deadline = time.monotonic() + 300
        while len(rows := _rows(_written(live, out))) < sent or not rows[-1:] or rows[-1][1]:
            assert time.monotonic() < deadline, rows
            run.wait(0.3)
            if len(rows) == sent:
                live.send(bids, {"id": sent})
                sent += 1

    live.run(flow, mode="micro-batch", until=until_live)

    elements = _written(live, out)
    assert _changes(elements) == [BEGIN, END]
    assert _statuses(elements) == [status for _, status in _rows(elements)]
    assert [number for number, _ in _rows(elements)] == [*range(sent)]

    # A start writes the status again, and a slice has none of its own.
    live.run(flow, mode="micro-batch", until=lambda run: run.wait(1))
    restarted = _written(live, out)[len(elements) :]
    assert [each for each in restarted if isinstance(each, RecordAttributes)] == [END]
    live.send(bids, *({"id": number} for number in range(sent, sent + 40)))
    live.run(flow)
    assert _changes(_written(live, out)) == [BEGIN, END]


def _changes(elements: Iterable[StreamElement[bytes]]) -> list[RecordAttributes]:
    """The record attributes without those that repeat the one before."""
    found = [each for each in elements if isinstance(each, RecordAttributes)]
    return [each for each, before in zip(found, [None, *found], strict=False) if each != before]


def _statuses(elements: Iterable[StreamElement[bytes]]) -> list[bool]:
    """Whether each record is backlog for a reader of one partition with one sender."""
    found, status = [], False
    for each in elements:
        if isinstance(each, RecordAttributes):
            status = each.backlog
        elif isinstance(each, Record):
            found.append(status)
    return found


def _written(live: Live, out: KafkaTopic) -> list[StreamElement[bytes]]:
    return [TAGGED.decode(record.value) for record in live.records(out)]


def _rows(elements: Iterable[StreamElement[bytes]]) -> list[tuple[int, bool]]:
    """Id and backlog status of each record."""
    rows = (json.loads(each.value) for each in elements if isinstance(each, Record))
    return [(row["id"], row["backlog"]) for row in rows]
