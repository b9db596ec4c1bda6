"""The bytes of elements, events and values do not change: other programs and older topics have them.

A golden file changes only together with a version.
"""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from flowcore.elements import LatencyMarker, LatencyMarkerEvent, Record
from flowcore.serializers import LatencyMarkerEventSerializer, Tag, TaggedSerializer, ValueOnlySerializer
from flowcore.serializers.formats import RawFormat, ValueFormat, build_format, format_names
from flowcore.testing.transcripts.elements import parse_element
from flowcore.testing.transcripts.load import read_yaml

GOLDEN = Path(__file__).parent / "golden"
ELEMENTS = read_yaml(GOLDEN / "elements.yaml")
EVENTS = read_yaml(GOLDEN / "events.yaml")
FORMATS = read_yaml(GOLDEN / "formats.yaml")
MESSAGES = {"google.protobuf.Timestamp": Timestamp}


def _element(case: dict[str, Any]) -> Any:
    element = parse_element(case["element"])
    if isinstance(element, Record):
        return Record(element.value.encode(), element.timestamp_ms)
    return element


@pytest.mark.parametrize("case", ELEMENTS, ids=lambda case: str(case["element"]))
def test_tagged_bytes_are_golden(case: dict[str, Any]) -> None:
    """They are encoded and decoded."""
    serializer = TaggedSerializer(RawFormat(), "op")

    assert serializer.encode(_element(case)).hex() == bytes.fromhex(case["tagged"]).hex()
    assert serializer.decode(bytes.fromhex(case["tagged"])) == _element(case)


@pytest.mark.parametrize(
    "case", [case for case in ELEMENTS if "value_only" in case], ids=lambda case: str(case["element"])
)
def test_value_only_bytes_are_golden(case: dict[str, Any]) -> None:
    """They are encoded and decoded; the timestamp is not kept."""
    serializer = ValueOnlySerializer(RawFormat(), "op")

    assert serializer.encode(_element(case)).hex() == bytes.fromhex(case["value_only"]).hex()
    assert serializer.decode(bytes.fromhex(case["value_only"])).value == _element(case).value


def test_golden_elements_have_every_tag() -> None:
    assert {bytes.fromhex(case["tagged"])[0] for case in ELEMENTS} == set(Tag)


@pytest.mark.parametrize("case", EVENTS, ids=lambda case: str(case["latency_marker"]))
def test_event_bytes_are_golden(case: dict[str, Any]) -> None:
    """They are encoded and decoded."""
    operator_id, subtask, marked_ms = case["latency_marker"]
    event = LatencyMarkerEvent.from_marker(LatencyMarker(marked_ms, operator_id, subtask))
    serializer = LatencyMarkerEventSerializer()

    assert serializer.encode(event).hex() == bytes.fromhex(case["event"]).hex()
    assert serializer.decode(bytes.fromhex(case["event"])) == event


def _format(case: dict[str, Any]) -> ValueFormat[Any]:
    columns = [(name, type_) for name, type_ in case["columns"]] if "columns" in case else None
    options = dict(case.get("options", {}))
    if "message" in case:
        options["message"] = MESSAGES[case["message"]]
    return build_format(case["format"], columns, **options)


def _value(case: dict[str, Any]) -> Any:
    if case["format"] == "raw":
        return bytes.fromhex(case["value"]["bytes"])
    if case["format"] == "protobuf":
        return MESSAGES[case["message"]](**case["value"])
    read = {"DATE": date.fromisoformat, "TIMESTAMP": datetime.fromisoformat}
    return {
        name: read[type_](case["value"][name]) if type_ in read else case["value"][name]
        for name, type_ in case["columns"]
    }


@pytest.mark.parametrize("case", FORMATS, ids=lambda case: case["name"])
def test_format_bytes_are_golden(case: dict[str, Any]) -> None:
    """They are encoded and decoded."""
    golden = case["text"].encode() if "text" in case else bytes.fromhex(case["bytes"])

    assert _format(case).encode(_value(case)) == golden
    assert _format(case).decode(golden) == _value(case)


@pytest.mark.parametrize("case", FORMATS, ids=lambda case: case["name"])
def test_value_only_adds_nothing_and_tagged_one_or_nine_bytes(case: dict[str, Any]) -> None:
    """The numbers are exact for every format."""
    own = len(_format(case).encode(_value(case)))
    tagged, value_only = TaggedSerializer(_format(case)), ValueOnlySerializer(_format(case))

    assert len(value_only.encode(Record(_value(case), 77))) == own
    assert len(tagged.encode(Record(_value(case)))) == own + 1
    assert len(tagged.encode(Record(_value(case), 77))) == own + 9


def test_golden_formats_have_every_format() -> None:
    assert {case["format"] for case in FORMATS} == set(format_names())
