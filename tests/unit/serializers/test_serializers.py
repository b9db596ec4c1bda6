"""Tagged, value-only and event bytes round-trip; other bytes are refused with a message."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.elements import (
    MAX_SUBTASK,
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    EndOfInput,
    LatencyMarker,
    LatencyMarkerEvent,
    Record,
    RecordAttributes,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from flowcore.errors import NoTimestampError, OnlyRecordsError, SerializationError
from flowcore.serializers import (
    LatencyMarkerEventSerializer,
    Tag,
    TaggedSerializer,
    ValueOnlyRecord,
    ValueOnlySerializer,
)
from flowcore.serializers.events import MAX_EVENT_BYTES
from flowcore.serializers.formats import JsonFormat, RawFormat

laws = settings(deadline=None)  # how long an example takes says more of the machine
TAGGED = TaggedSerializer(RawFormat(), "clicks")
VALUE_ONLY = ValueOnlySerializer(RawFormat(), "clicks")
EVENTS = LatencyMarkerEventSerializer()
MIB = bytes(range(256)) * 4096

times = st.integers(MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS) | st.sampled_from(
    [MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS]
)
operator_ids = st.text(min_size=1).filter(lambda text: len(text.encode()) <= 255)
records = st.builds(Record, st.binary(max_size=50), st.none() | times)
markers = st.builds(LatencyMarker, times, operator_ids, st.integers(0, MAX_SUBTASK))
others = st.one_of(
    st.builds(Watermark, times), st.builds(WatermarkStatus, st.booleans()), markers,
    st.builds(RecordAttributes, st.booleans()), st.just(EndOfInput()),
)  # fmt: skip

EVERY_ELEMENT: list[StreamElement[bytes]] = [
    Record(b"value", 258), Record(b"value"), Watermark(258), LatencyMarker(258, "op", 3),
    WatermarkStatus(True), RecordAttributes(False), EndOfInput(),
]  # fmt: skip


@laws
@given(records | others)
def test_tagged_round_trips(element: StreamElement[bytes]) -> None:
    """This covers every element and the limits of time."""
    assert TAGGED.decode(TAGGED.encode(element)) == element


@laws
@given(records)
def test_value_only_is_the_value(record: Record[bytes]) -> None:
    """It has no additional byte; a tagged element has one or nine more."""
    tagged = TAGGED.encode(record)

    assert VALUE_ONLY.encode(record) == record.value
    assert VALUE_ONLY.decode(record.value).value == record.value
    assert len(tagged) - len(record.value) == (1 if record.timestamp_ms is None else 9)


@pytest.mark.parametrize("value", [b"", MIB], ids=["empty", "1-MiB"])
@pytest.mark.parametrize("timestamp_ms", [None, MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS])
def test_values_of_any_size_round_trip(value: bytes, timestamp_ms: int | None) -> None:
    """An empty value and a mebibyte are valid."""
    record = Record(value, timestamp_ms)

    assert TAGGED.decode(TAGGED.encode(record)) == record
    assert VALUE_ONLY.encode(record) == value


def test_non_ascii_text_round_trips() -> None:
    """The format encodes text."""
    record = Record({"name": "zażółć 🦆"}, 1)
    tagged = TaggedSerializer(JsonFormat.of([("name", "STRING")]))

    assert tagged.decode(tagged.encode(record)) == record


@laws
@given(
    st.binary(max_size=40) | st.builds(lambda tag, rest: bytes((tag,)) + rest, st.integers(0, 7), st.binary())
)
def test_tagged_reads_only_what_it_would_write(data: bytes) -> None:
    """Any bytes are refused, or are an element that is written as the same bytes."""
    try:
        element = TAGGED.decode(data)
    except SerializationError:
        return

    assert TAGGED.encode(element) == data


@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 9, 13, 14, 20])
def test_tagged_every_tag_is_read_or_refused(size: int) -> None:
    """Bodies of all sizes are tried."""
    fits = {
        Tag.RECORD_WITH_TIMESTAMP: size >= 8,
        Tag.RECORD: True,
        Tag.WATERMARK: size == 8,
        Tag.WATERMARK_STATUS: size == 1,
        Tag.RECORD_ATTRIBUTES: size == 1,
        Tag.END_OF_INPUT: size == 0,
    }
    readable = [tag for tag, fit in fits.items() if fit]

    for tag in range(256):
        data = bytes((tag,)) + bytes(size)
        if tag in readable:
            assert TAGGED.encode(TAGGED.decode(data)) == data
        else:
            with pytest.raises(SerializationError, match="element of operator 'clicks'"):
                TAGGED.decode(data)


@pytest.mark.parametrize("element", EVERY_ELEMENT, ids=lambda element: type(element).__name__)
def test_tagged_truncated_at_every_byte(element: StreamElement[bytes]) -> None:
    """It is refused, or is the record with a shorter value, since values have no length field."""
    data = TAGGED.encode(element)

    for size in range(len(data)):
        try:
            found = TAGGED.decode(data[:size])
        except SerializationError:
            assert not isinstance(element, Record) or size < len(data) - len(element.value)
        else:
            assert isinstance(element, Record)
            assert isinstance(found, Record)
            assert found.timestamp_ms == element.timestamp_ms
            assert element.value.startswith(found.value)


@pytest.mark.parametrize("element", EVERY_ELEMENT[2:], ids=lambda element: type(element).__name__)
def test_tagged_refuses_bytes_left_over(element: StreamElement[bytes]) -> None:
    """Every element but a record has a fixed end."""
    with pytest.raises(SerializationError):
        TAGGED.decode(TAGGED.encode(element) + b"\0")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "clicks[3]@812 has 0 bytes, a tagged element needs at least 1"),
        ("00 0000", "clicks[3]@812 has 3 bytes, a tagged record with timestamp has at least 9"),
        ("02 0000", "clicks[3]@812 has 3 bytes, a tagged watermark has 9"),
        ("04", "clicks[3]@812 has 1 bytes, a tagged watermark status has 2"),
        ("05 02", "clicks[3]@812 holds 2 where a record attributes has 0 or 1"),
        ("06 00", "clicks[3]@812 has 2 bytes, the end of input has 1"),
        ("7b 22", "clicks[3]@812 begins with tag 123, the tags are 0 to 6 (7b 22)"),
        ("03 00", "clicks[3]@812 has 1 bytes of a latency marker, which needs 14"),
        ("03 0000000000000000 00000000 02 6f", "has 1 bytes of operator id where its length says 2"),
        ("03 0000000000000000 00000000 00", "has a latency marker without operator id"),
        ("03 0000000000000000 ffffffff 01 6f", "has subtask -1 in a latency marker"),
        ("03 0000000000000000 00000000 01 ff", "has an operator id that is not UTF-8"),
    ],
)
def test_tagged_errors_name_coordinates(data: str, message: str) -> None:
    """They also name the bytes found."""
    with pytest.raises(SerializationError, match=re.escape(message)):
        TAGGED.decode(bytes.fromhex(data), "clicks[3]@812")


def test_tagged_errors_name_the_other_form() -> None:
    """The likely cause is that the topic holds plain values."""
    with pytest.raises(SerializationError, match='read a topic of plain values with elements="plain"'):
        TAGGED.decode(b'{"id":1}')


@pytest.mark.parametrize("serializer", [TaggedSerializer, ValueOnlySerializer])
def test_errors_of_values_name_operator_or_coordinates(
    serializer: type[TaggedSerializer[Any] | ValueOnlySerializer[Any]],
) -> None:
    """The format does not have this information."""
    json = serializer(JsonFormat.of([("id", "BIGINT")]), "clicks")

    with pytest.raises(
        SerializationError, match="a record of operator 'clicks' cannot be written: column 'id'"
    ):
        json.encode(Record({"id": "x"}))
    with pytest.raises(SerializationError, match=r"clicks\[3\]@812 cannot be read: 1 bytes are not JSON"):
        json.decode(b"\x01{" if serializer is TaggedSerializer else b"{", "clicks[3]@812")


@laws
@given(others)
def test_value_only_refuses_all_but_records(element: StreamElement[bytes]) -> None:
    """The error names operator, element and fix."""
    with pytest.raises(OnlyRecordsError) as raised:
        VALUE_ONLY.encode(element)

    message = str(raised.value)
    assert f"operator 'clicks' sends {element!r}" in message
    assert "turn off watermarks for this flow" in message
    assert "set pipeline.force-timestamp-support to true" in message


def test_value_only_record_has_no_timestamp() -> None:
    """The error names the operator and the fix."""
    record = VALUE_ONLY.decode(VALUE_ONLY.encode(Record(b"x", 7)))

    with pytest.raises(NoTimestampError, match=r"operator 'clicks'.*set a watermark strategy"):
        _ = record.timestamp_ms
    with pytest.raises(NoTimestampError):
        TAGGED.encode(record)


def test_value_only_record_is_a_record_otherwise() -> None:
    """It can be matched, compared, hashed, copied, pickled, shown and written again."""
    record = VALUE_ONLY.decode(b"x")

    match record:
        case Record(value=value):
            assert value == b"x"
        case _:
            pytest.fail("it is a record")
    assert record == ValueOnlyRecord(b"x", "another reader")
    assert record != ValueOnlyRecord(b"y", "clicks")
    assert record != Record(b"x")
    assert Record(b"x") != record
    assert len({record, VALUE_ONLY.decode(b"x")}) == 1
    assert repr(record) == "ValueOnlyRecord(value=b'x')"
    for same in (copy.copy(record), copy.deepcopy(record), pickle.loads(pickle.dumps(record))):  # noqa: S301
        assert same == record
        with pytest.raises(NoTimestampError, match="'clicks'"):
            _ = same.timestamp_ms
    assert VALUE_ONLY.encode(record) == b"x"
    with pytest.raises(AttributeError):
        record.value = b"y"  # type: ignore[misc]


@laws
@given(st.builds(LatencyMarkerEvent, times, operator_ids, st.integers(0, MAX_SUBTASK)))
def test_events_round_trip(event: LatencyMarkerEvent) -> None:
    """They are never longer than their declared length."""
    data = EVENTS.encode(event)

    assert EVENTS.decode(data) == event
    assert len(data) <= MAX_EVENT_BYTES


@laws
@given(
    st.binary(max_size=40) | st.builds(lambda rest: b"\x01\x01" + rest, st.binary(min_size=13, max_size=300))
)
def test_events_reads_only_what_it_would_write(data: bytes) -> None:
    """Any bytes are refused, or are an event that is written as the same bytes."""
    try:
        event = EVENTS.decode(data)
    except SerializationError:
        return

    assert EVENTS.encode(event) == data


def test_events_truncated_at_every_byte_or_too_long() -> None:
    """All of them are refused."""
    data = EVENTS.encode(LatencyMarkerEvent(258, "op", 3))

    for bad in (*(data[:size] for size in range(len(data))), data + b"x", data + MIB):
        with pytest.raises(SerializationError):
            EVENTS.decode(bad)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"bids\.events\[0\]@12 has 0 bytes, an event has 2 to 270"),
        (bytes(271), r"bids\.events\[0\]@12 has 271 bytes, an event has 2 to 270"),
        (b"\x02\x01", r"bids\.events\[0\]@12 has version 2, this flowcore reads version 1"),
        (b"\x00\x01", r"bids\.events\[0\]@12 has version 0"),
        (b"\x01\x02", r"bids\.events\[0\]@12 is an event of kind 2, this flowcore reads kind 1"),
        (b"\x01\x01" + bytes(12), r"bids\.events\[0\]@12 has 12 bytes of a latency marker, which needs 14"),
        (
            b"\x01\x01" + bytes(12) + b"\xff" + b"x" * 254,
            r"has 254 bytes of operator id where its length says 255",
        ),
    ],
    ids=["empty", "too-long", "newer", "older", "kind", "truncated", "length-too-large"],
)
def test_events_errors_name_coordinates(data: bytes, message: str) -> None:
    """They also name the unknown version or kind."""
    with pytest.raises(SerializationError, match=message):
        EVENTS.decode(data, "bids.events[0]@12")


def test_events_longest() -> None:
    """An operator id of 255 bytes fills an event."""
    assert len(EVENTS.encode(LatencyMarkerEvent(0, "x" * 255, 0))) == MAX_EVENT_BYTES
