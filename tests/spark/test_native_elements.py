"""Elements and events in SQL have the bytes of the Python serializers and refuse the same bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flowcore.elements import (
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    LatencyMarker,
    LatencyMarkerEvent,
    Record,
    StreamElement,
    Watermark,
)
from flowcore.errors import SerializationError
from flowcore.serializers import LatencyMarkerEventSerializer, TaggedSerializer
from flowcore.serializers.formats import RawFormat
from flowcore.spark.topics import elements
from flowcore.testing.transcripts.load import read_yaml

pytestmark = pytest.mark.spark

GOLDEN = Path(__file__).parents[1] / "contract" / "golden"
TAGGED = TaggedSerializer(RawFormat())
EVENTS = LatencyMarkerEventSerializer()
TIMES = [None, MIN_TIMESTAMP_MS, -1, 0, 258, MAX_TIMESTAMP_MS]
VALUES = [b"", b"\x00\xff", "zażółć".encode(), bytes(1 << 20)]


def _hostile(good: Sequence[bytes]) -> list[bytes]:
    """Good elements, also cut anywhere, with extra and changed bytes; every tag with bodies of each size."""
    chance = random.Random(5)  # noqa: S311 - bytes for a test
    cut = [data[:end] for data in good for end in range(min(len(data), 30))]
    longer = [data + tail for data in good for tail in (b"\0", b"\x01", b"x" * 300)]
    flipped = [
        data[:place] + bytes((data[place] ^ 1 << bit,)) + data[place + 1 :]
        for data in good
        for place in range(min(len(data), 20))
        for bit in range(8)
    ]
    tags = [
        bytes((tag,)) + body
        for tag in range(256)
        for body in (b"", b"\0", b"\x01", b"\x02", bytes(7), bytes(8), bytes(9), bytes(13))
    ]
    noise = [chance.randbytes(chance.randrange(20)) for _ in range(500)]
    return [*good, *cut, *longer, *flipped, *tags, *noise]


def _decoded(data: bytes) -> StreamElement[bytes] | None:
    try:
        return TAGGED.decode(data)
    except SerializationError:
        return None


@pytest.mark.parametrize("ansi", [False, True], ids=["stream", "ansi"])
def test_tagged_records_are_written_as_python_does(live: SparkSession, ansi: bool) -> None:
    """With every timestamp and without, for any value; one or nine bytes are added."""
    pairs = [(time, value) for time in TIMES for value in VALUES]
    frame = live.createDataFrame(pairs, "time BIGINT, value BINARY")

    rows = frame.selectExpr(
        f"{elements.tagged_record('time', 'value', ansi=ansi)} AS timed",
        f"{elements.tagged_record(None, 'value', ansi=ansi)} AS untimed",
    ).collect()

    assert [bytes(row.timed) for row in rows] == [TAGGED.encode(Record(value, time)) for time, value in pairs]
    assert [bytes(row.untimed) for row in rows] == [TAGGED.encode(Record(value)) for _, value in pairs]


def test_tagged_elements_are_read_as_python_does(live: SparkSession) -> None:
    """Every golden element and tag, but not latency markers, since those travel as events."""
    golden = [bytes.fromhex(case["tagged"]) for case in read_yaml(GOLDEN / "elements.yaml")]
    given = list(dict.fromkeys(_hostile([*golden, *(TAGGED.encode(Record(b"x", time)) for time in TIMES)])))
    frame = live.createDataFrame([(data,) for data in given], "data BINARY")

    rows = frame.selectExpr(
        f"{elements.is_record('data')} AS record",
        f"{elements.is_head('data')} AS head",
        f"{elements.is_control('data')} AS control",
        f"{elements.timestamp_ms('data')} AS time",
        f"{elements.payload('data')} AS value",
    ).collect()

    for data, row in zip(given, rows, strict=True):
        element = _decoded(data)
        is_record = isinstance(element, Record)
        is_control = element is not None and not isinstance(element, (Record, LatencyMarker))
        assert (row.record or False, row.control or False) == (is_record, is_control), data
        if isinstance(element, Record):
            assert (row.time, bytes(row.value)) == (element.timestamp_ms, element.value), data
            assert row.head == (element.value == b""), data
        elif isinstance(element, Watermark):
            assert row.time == element.timestamp_ms, data


def test_events_are_read_as_python_does(live: SparkSession) -> None:
    """Whole events of this version and kind, with a name in UTF-8; written again they are the same bytes."""
    golden = [bytes.fromhex(case["event"]) for case in read_yaml(GOLDEN / "events.yaml")]
    more = [EVENTS.encode(LatencyMarkerEvent(time or 0, "x" * 255, 0)) for time in TIMES]
    given = list(dict.fromkeys(_hostile([*golden, *more])))
    frame = live.createDataFrame([(data,) for data in given], "data BINARY")
    again = elements.event(elements.marked_ms("data"), elements.sender("data"))

    rows = frame.selectExpr(
        f"{elements.is_event('data')} AS good",
        f"CASE WHEN {elements.is_event('data')} THEN {elements.marked_ms('data')} END AS time",
        f"CASE WHEN {elements.is_event('data')} THEN {again} END AS again",
    ).collect()

    for data, row in zip(given, rows, strict=True):
        try:
            event = EVENTS.decode(data)
        except SerializationError:
            assert not row.good, data
        else:
            assert (row.good, row.time, bytes(row.again)) == (True, event.marked_ms, data)
