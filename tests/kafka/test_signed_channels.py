"""Control elements of a signed topic count if their writer has the key, and only where they were written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from flowcore import Flow, KafkaTopic, Tumbling, monotonous
from flowcore.elements import EndOfInput, Record, Watermark
from flowcore.errors import ConfigurationError
from flowcore.kafka.elements import ElementWriter
from flowcore.kafka.topics import ensure_topics
from flowcore.serializers import TaggedSerializer
from flowcore.serializers.formats import RawFormat
from flowcore.signatures import sign
from tests.sampling import sample

pytestmark = pytest.mark.kafka

Live = Any
TAGGED: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())
KEY = "a secret of two flows"
CHANNEL = b"sales/bids"


def _bid(number: int, at_ms: int) -> bytes:
    return TAGGED.encode(Record(json.dumps({"id": number}).encode(), at_ms))


def _counting(live: Live, source: KafkaTopic) -> tuple[Flow, KafkaTopic]:
    out = live.topic("out", elements="tagged", partitions=1)
    flow = Flow("f")
    flow.read("bids", source).window(Tumbling(10)).aggregate(n="count(*)").select("n").write("out", out)
    return flow, out


@pytest.mark.parametrize("headers", sample([False, True], False), ids=["in-front-of-the-value", "in-headers"])
def test_forged_control_elements_are_dead_letters(live: Live, headers: bool) -> None:
    """Those signed with another key, or for another partition, topic, channel or element, are forged, too."""
    source = live.topic("bids", schema="id BIGINT", elements="tagged", signed=True, headers=headers)
    flow, out = _counting(live, source)
    ensure_topics(live.servers, {source.name: 1})
    end = TAGGED.encode(EndOfInput())
    key = KEY.encode()
    proofs: list[bytes | None] = [
        None, b"", b"x" * 900_000, sign(b"another key", source.name, 0, CHANNEL, end),
        sign(key, source.name, 1, CHANNEL, end), sign(key, "other", 0, CHANNEL, end),
        sign(key, source.name, 0, b"sales/others", end),
        sign(key, source.name, 0, CHANNEL, TAGGED.encode(Watermark(0))),
    ]  # fmt: skip
    producer = Producer({"bootstrap.servers": live.servers, "log_level": 0})
    for number, at_ms in enumerate((1_000, 2_000, 12_000)):
        content = _bid(number, at_ms)
        value, head = (content[9:], [("flowcore-element", content[:9])]) if headers else (content, [])
        producer.produce(source.name, value, partition=0, headers=head)
    for proof in proofs:
        shown = [("flowcore-element", end)] if headers else []
        signature = [] if proof is None else [("flowcore-signature", proof)]
        producer.produce(
            source.name,
            None if headers else end,
            partition=0,
            headers=[("flowcore-channel", CHANNEL), *shown, *signature],
        )
    assert producer.flush(60) == 0
    with ElementWriter(live.servers, {source: 1}, CHANNEL.decode(), key) as writer:
        writer.write([Watermark(10_000)])

    live.settings = replace(live.settings, control_key=KEY)
    live.run(flow)

    found = [TAGGED.decode(record.value) for record in live.records(out)]
    assert [json.loads(each.value)["n"] for each in found if isinstance(each, Record)] == [2]
    assert found[-1] == Watermark(10_000)
    dead_letters = live.records(source.dead_letter)
    assert [int(each.headers["flowcore-offset"]) for each in dead_letters] == [*range(3, 3 + len(proofs))]
    assert {each.headers["flowcore-reason"].decode().partition(":")[0] for each in dead_letters} == {
        "is EndOfInput without a valid signature in the header flowcore-signature"
    }


def test_flow_with_the_key_reads_what_a_flow_with_the_key_writes(live: Live) -> None:
    """The watermarks of the first close the windows of the second; without the key a start is refused."""
    clicks = live.topic("clicks", schema="id BIGINT, at BIGINT", event_time="at", watermark=monotonous())
    passed = live.topic("passed", schema="id BIGINT", elements="tagged", signed=True, partitions=2)
    live.send(clicks, *({"id": number, "at": at_ms} for number, at_ms in enumerate((1_000, 2_000, 15_000))))
    writer = Flow("writer")
    writer.read("clicks", clicks).select("id").write("passed", passed)
    reader, out = _counting(live, passed)

    with pytest.raises(ConfigurationError, match=r"signed=True and kafka.control-key is not set: .*forged"):
        live.run(writer)
    live.settings = replace(live.settings, control_key=KEY)
    live.run(writer)
    live.run(reader)

    found = [TAGGED.decode(record.value) for record in live.records(out)]
    assert [json.loads(each.value)["n"] for each in found if isinstance(each, Record)] == [2]
    assert live.records(passed.dead_letter) == []
