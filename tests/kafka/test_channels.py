"""Anyone who may write to a tagged topic may forge channels; they neither move event time nor fill memory."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable
from typing import Any

import pytest
from confluent_kafka import Producer

from flowcore import Flow, KafkaTopic, Tumbling
from flowcore.elements import (
    MAX_TIMESTAMP_MS,
    EndOfInput,
    Record,
    RecordAttributes,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from flowcore.kafka.topics import ensure_topics
from flowcore.serializers import TaggedSerializer
from flowcore.serializers.formats import RawFormat
from tests.sampling import sample
from tests.waiting import run_until

pytestmark = pytest.mark.kafka

Live = Any
TAGGED: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())
TRUSTED = "sales/bids"
_FLOOD, _LONG = 10_000, 900_000
_QUEUED = 200
"""How many messages wait to be sent, of which each may have a megabyte."""
Sent = tuple[StreamElement[bytes], str | bytes | None]


def _bid(number: int, at_ms: int) -> Sent:
    return Record(json.dumps({"id": number}).encode(), at_ms), None


def _send(
    live: Live,
    topic: KafkaTopic,
    elements: Iterable[Sent],
    partitions: int = 1,
    *,
    packed: str = "none",
    together: bool = False,
) -> None:
    """Send elements to the first partition, each with the header of its channel if it has one.

    If ``together``, one batch reads them all, however slowly they are sent.
    """
    ensure_topics(live.servers, {topic.name: partitions})
    settings = {"bootstrap.servers": live.servers, "log_level": 0, "compression.type": packed}
    if together:
        settings |= {"transactional.id": topic.name, "transaction.timeout.ms": 300_000}
    producer = Producer(settings)
    if together:
        producer.init_transactions()
        producer.begin_transaction()
    for element, channel in elements:
        headers: list[Any] = [] if channel is None else [("flowcore-channel", channel)]
        content, value = TAGGED.encode(element), None
        if not topic.headers:
            value = content
        elif isinstance(element, Record):
            value, content = element.value, content[: len(content) - len(element.value)]
        headers += [("flowcore-element", content)] if topic.headers else []
        while len(producer) > _QUEUED:
            producer.poll(0.1)
        producer.produce(topic.name, value, partition=0, headers=headers)
        producer.poll(0)
    assert producer.flush(300) == 0
    if together:
        producer.commit_transaction()


def _counting(live: Live, source: KafkaTopic) -> tuple[Flow, KafkaTopic]:
    """A flow that counts the records of windows of ten seconds, and writes watermarks to a topic."""
    out = live.topic("out", elements="tagged", partitions=1)
    flow = Flow("f")
    flow.read("bids", source).window(Tumbling(10)).aggregate(n="count(*)").select("n").write("out", out)
    return flow, out


def _written(live: Live, out: KafkaTopic) -> list[StreamElement[bytes]]:
    return [TAGGED.decode(record.value) for record in live.records(out)]


def _counts(elements: Iterable[StreamElement[bytes]]) -> list[int]:
    return [json.loads(each.value)["n"] for each in elements if isinstance(each, Record)]


def _reasons(live: Live, source: KafkaTopic) -> list[str]:
    return [record.headers["flowcore-reason"].decode() for record in live.records(source.dead_letter)]


@pytest.mark.parametrize("headers", sample([False, True], False), ids=["in-front-of-the-value", "in-headers"])
def test_control_elements_of_other_channels_than_the_declared_are_dead_letters(
    live: Live, headers: bool
) -> None:
    """Neither a forged end of input nor the end of time ends event time, and records need no channel."""
    source = live.topic(
        "bids", schema="id BIGINT", elements="tagged", headers=headers, channels=(TRUSTED, "it's")
    )
    flow, out = _counting(live, source)
    forged: list[Sent] = [
        (Watermark(MAX_TIMESTAMP_MS), "eve"), (EndOfInput(), "e\x1b[2J\u202eve"), (EndOfInput(), None),
        (EndOfInput(), b""), (Watermark(50_000), f"{TRUSTED}/"), (WatermarkStatus(idle=True), b"\xff\xfe"),
        (RecordAttributes(backlog=True), "e" * 100_000),
    ]  # fmt: skip
    trusted: list[Sent] = [(Watermark(10_000), TRUSTED), (Watermark(12_000), "it's")]
    record, other = _bid(4, 3_000)
    assert other is None
    bids = [_bid(1, 1_000), _bid(2, 12_000), _bid(3, 2_000), (record, b"\xff")]
    _send(live, source, [*bids, *forged, *trusted])

    live.run(flow)

    found = _written(live, out)
    assert _counts(found) == [3]
    assert found[-1] == Watermark(10_000)
    dead_letters = live.records(source.dead_letter)
    assert [int(record.headers["flowcore-offset"]) for record in dead_letters] == [*range(4, 4 + len(forged))]
    reasons = _reasons(live, source)
    assert reasons[0].startswith(f"is Watermark(timestamp_ms={MAX_TIMESTAMP_MS}) of channel 'eve', which is ")
    assert reasons[1].startswith(
        "is EndOfInput of channel 'e [2J ve', which is not among the declared channels"
    )
    assert "add it to channels=" in reasons[1]
    assert [each.startswith("is EndOfInput without the header flowcore-channel") for each in reasons] == [
        False, False, True, True, False, False, False,
    ]  # fmt: skip
    assert reasons[6].startswith(f"is RecordAttributes of channel '{'e' * 100}', which")
    assert max(map(len, reasons)) < 1_000


def test_without_declared_channels_long_and_garbled_names_are_dead_letters(live: Live) -> None:
    """A name of 255 bytes counts, as does an element without a channel; an end of input of none does."""
    source = live.topic("bids", schema="id BIGINT", elements="tagged")
    flow, out = _counting(live, source)
    refused: list[Sent] = [
        (EndOfInput(), "ü" * 128), (EndOfInput(), b"\xff\xfe"), (WatermarkStatus(idle=True), "e" * 100_000),
    ]  # fmt: skip
    taken: list[Sent] = [(Watermark(15_000), "e" * 255), (Watermark(11_000), None)]
    ends: list[Sent] = [
        (EndOfInput(), "e" * 255), (EndOfInput(), None), (Watermark(MAX_TIMESTAMP_MS), None),
        (EndOfInput(), "eve"),
    ]  # fmt: skip
    _send(live, source, [_bid(1, 1_000), *refused, *taken, *ends])

    live.run(flow)

    assert (_counts(_written(live, out)), _written(live, out)[-1]) == ([1], Watermark(11_000))
    reasons = _reasons(live, source)
    assert reasons[0].startswith("is EndOfInput of a channel whose name has 256 bytes, more than 255")
    assert reasons[1].startswith("is EndOfInput of a channel whose name is not UTF-8")
    assert reasons[2].startswith("is WatermarkStatus of a channel whose name has 100000 bytes")
    assert reasons[3].startswith("is EndOfInput, and neither are the channels of topic")
    assert reasons[5].startswith(f"is Watermark(timestamp_ms={MAX_TIMESTAMP_MS}), and neither are")
    assert "declare channels=, or let it sign" in reasons[6]
    assert len(reasons) == len(refused) + len(ends)


@pytest.mark.parametrize(
    "channels", [(TRUSTED,), pytest.param(None, marks=pytest.mark.thorough)], ids=["declared", "any"]
)
def test_flood_of_large_forged_channels_does_not_stop_a_live_query(
    live: Live, channels: tuple[str, ...] | None
) -> None:
    """Windows fire by the channel that is trusted, and nothing is kept of the others.

    They are packed: a megabyte of the topic is nine gigabytes for its reader, more than twice its heap.
    """
    source = live.topic("bids", schema="id BIGINT", elements="tagged", channels=channels)
    flow, out = _counting(live, source)
    _send(live, source, [_bid(1, 1_000), (Watermark(1_000), TRUSTED)])
    heap_bytes: list[int] = []

    def attack(run: Any) -> None:
        run_until(run, lambda: Watermark(1_000) in _written(live, out))
        heap_bytes.append(_heap_bytes(live))
        lies = (EndOfInput(), Watermark(MAX_TIMESTAMP_MS), Watermark(9_000), RecordAttributes(backlog=True))
        name = "e" * _LONG
        flood = ((lies[number % len(lies)], f"{number:06}{name}") for number in range(_FLOOD))
        _send(live, source, flood, packed="zstd")
        _send(live, source, [_bid(2, 2_000), (Watermark(10_000), TRUSTED)])
        run_until(run, lambda: Watermark(10_000) in _written(live, out))
        heap_bytes.append(_heap_bytes(live))

    live.run(flow, mode="micro-batch", until=attack)

    found = _written(live, out)
    assert _counts(found) == [2]
    assert [each for each in found if not isinstance(each, Record)] == [Watermark(1_000), Watermark(10_000)]
    dead_letters = live.records(source.dead_letter)
    assert len(dead_letters) == _FLOOD
    assert max(len(each.headers["flowcore-reason"]) for each in dead_letters) < 1_000
    assert sum(len(value) for each in dead_letters for value in each.headers.values()) < _FLOOD * 1_000
    (kept,) = (live.settings.state_dir / "f" / "checkpoints").glob("*/watermarks.json")
    assert kept.stat().st_size < 10_000
    before, after = heap_bytes
    # Classes are loaded meanwhile, and a consumer that waits for the next batch keeps what it has read last.
    assert after - before < 500 * _LONG + (200 << 20), heap_bytes


@pytest.mark.parametrize(
    ("has_state", "headers"), sample(itertools.product([True, False], [False, True]), (True, False))
)
def test_watermark_that_arrives_far_ahead_of_the_clock_is_a_dead_letter(
    live: Live, has_state: bool, headers: bool
) -> None:
    """Also one of a declared channel, and the last but one of all; one within the limit counts."""
    source = live.topic("bids", schema="id BIGINT", elements="tagged", headers=headers, channels=(TRUSTED,))
    flow, out = _counting(live, source)
    if not has_state:
        flow, out = Flow("f"), live.topic("copy", elements="tagged", partitions=1)
        flow.read("bids", source).write("out", out)
    day_ms, now_ms = 86_400_000, time.time_ns() // 1_000_000
    near, far = now_ms + day_ms // 2, now_ms + 2 * day_ms
    forged = [Watermark(far), Watermark(MAX_TIMESTAMP_MS - 1)]
    _send(live, source, [_bid(1, 1_000), (Watermark(500), TRUSTED), *((each, TRUSTED) for each in forged)])
    live.run(flow)
    before = _written(live, out)
    _send(live, source, [_bid(2, 2_000), (Watermark(near), TRUSTED)])

    live.run(flow)

    assert [each for each in before if isinstance(each, Watermark)][-1] == Watermark(500)
    if has_state:
        assert (_counts(before), _counts(_written(live, out))) == ([], [2])  # the second bid was not late
    assert [each for each in _written(live, out) if isinstance(each, Watermark)][-1] == Watermark(near)
    first, last = _reasons(live, source)
    assert first.startswith("has the event time 20")
    assert "over 1 d ahead of the clock when it was written (watermark.max-ahead)" in first
    assert last.startswith(f"has the event time {MAX_TIMESTAMP_MS - 1} ms")


@pytest.mark.parametrize("has_state", sample([True, False], True), ids=["key-groups", "driver"])
def test_channels_that_came_first_are_heard_in_a_flood_of_forged_ones(live: Live, has_state: bool) -> None:
    """Those of the flood that count are idle; the others are counted.

    Of a flood in two batches, those of the first may be active as far as the second knows, until they expire.
    """
    source = live.topic("bids", schema="id BIGINT", elements="tagged")
    flow, out = _counting(live, source)
    if not has_state:
        flow, out = Flow("f"), live.topic("copy", elements="tagged", partitions=1)
        flow.read("bids", source).write("out", out)
    _send(live, source, [_bid(1, 1_000), (Watermark(1_000), TRUSTED)])

    def attack(run: Any) -> None:
        run_until(run, lambda: Watermark(1_000) in _written(live, out))
        idle = WatermarkStatus(idle=True)
        flood: list[Sent] = [(idle, f"{'e' * 200}{number}") for number in range(10_000)]
        given = [*flood, _bid(2, 2_000), (Watermark(10_000), TRUSTED), *flood]
        _send(live, source, given, together=True)
        run_until(run, lambda: Watermark(10_000) in _written(live, out))
        _send(live, source, [(Watermark(11_000), TRUSTED)])
        run_until(run, lambda: Watermark(11_000) in _written(live, out))

    live.run(flow, mode="micro-batch", until=attack)

    found = _written(live, out)
    if has_state:
        assert _counts(found) == [2]
    assert Watermark(MAX_TIMESTAMP_MS) not in found
    assert live.records(source.dead_letter) == []
    (kept,) = (live.settings.state_dir / "f" / "checkpoints").glob("*/watermarks.json")
    assert kept.stat().st_size < 50_000
    senders = kept.parent / "senders" / "bids-0"
    assert has_state == senders.exists()
    assert all(each.stat().st_size < 20_000 for each in senders.glob("*"))


def _heap_bytes(live: Live) -> int:
    """What the JVM keeps: the least of some moments, since a batch may run at each of them."""
    jvm = live.spark._jvm.java.lang
    runtime = jvm.Runtime.getRuntime()
    found = []
    for _ in range(5):
        jvm.System.gc()
        found.append(int(runtime.totalMemory() - runtime.freeMemory()))
        time.sleep(0.2)
    return min(found)
