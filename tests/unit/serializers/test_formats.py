"""Every value format round-trips its values and refuses other values with a message."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st

from flowcore.api.schema import Schema
from flowcore.errors import FormatError, SerializationError
from flowcore.serializers.formats import (
    AvroFormat,
    ConfluentAvroFormat,
    FixedFormat,
    JsonFormat,
    ProtobufFormat,
    RawFormat,
    ValueFormat,
)

SCALARS = "a BIGINT, b INT, c DOUBLE, d BOOLEAN, e STRING NOT NULL"

MIB = 1 << 20

bigints = st.integers(-(2**63), 2**63 - 1)

ints = st.integers(-(2**31), 2**31 - 1)

text = st.text(st.characters(exclude_categories=["Cs"]))

scalars = st.fixed_dictionaries(
    {
        "a": st.none() | bigints,
        "b": st.none() | ints,
        "c": st.none() | st.floats(allow_nan=False),
        "d": st.none() | st.booleans(),
        "e": text,
    }
)


@pytest.fixture(params=[JsonFormat, AvroFormat], ids=["json", "avro"])
def of_scalars(request: pytest.FixtureRequest) -> ValueFormat[Any]:
    """A format that holds text and nulls."""
    made: ValueFormat[Any] = request.param.of(Schema.parse(SCALARS).columns)
    return made


@given(value=scalars)
@pytest.mark.parametrize("kind", [JsonFormat, AvroFormat], ids=["json", "avro"])
def test_scalars_round_trip(kind: Any, value: dict[str, Any]) -> None:
    """This covers every limit, null and character."""
    value_format = kind.of(Schema.parse(SCALARS).columns)

    assert value_format.decode(value_format.encode(value)) == value


def test_text_of_a_mebibyte_round_trips(of_scalars: ValueFormat[Any]) -> None:
    """Long text is not cut."""
    value = {"a": None, "b": None, "c": None, "d": None, "e": "ż" * (MIB // 2)}

    assert of_scalars.decode(of_scalars.encode(value)) == value


def test_nullable_columns_may_be_left_out(of_scalars: ValueFormat[Any]) -> None:
    """Missing columns are null."""
    assert of_scalars.encode({"e": "x"}) == of_scalars.encode(
        {"a": None, "b": None, "c": None, "d": None, "e": "x"}
    )


@pytest.mark.parametrize(
    "value",
    [
        {"e": None}, {}, {"e": 5}, {"e": "x", "a": "1"}, {"e": "x", "a": True}, {"e": "x", "a": 1.5},
        {"e": "x", "a": 2**63}, {"e": "x", "b": 2**31}, {"e": "x", "c": "1"}, {"e": "x", "d": 1},
        {"e": "x", "z": 1}, {"e": "\ud800"}, None, 3, ["x"],
    ],
    ids=repr,
)  # fmt: skip
def test_values_that_do_not_fit_are_refused(of_scalars: ValueFormat[Any], value: Any) -> None:
    """Values are not converted silently."""
    with pytest.raises(SerializationError):
        of_scalars.encode(value)


def test_truncated_at_every_byte_is_refused(of_scalars: ValueFormat[Any]) -> None:
    """A part of a value is not a value."""
    data = of_scalars.encode({"a": 300, "b": -1, "c": 1.5, "d": True, "e": "zażółć"})

    for size in range(len(data)):
        with pytest.raises(SerializationError):
            of_scalars.decode(data[:size])


def test_bytes_left_over_are_refused(of_scalars: ValueFormat[Any]) -> None:
    """A second value after the first is not ignored."""
    data = of_scalars.encode({"e": "x"})

    with pytest.raises(SerializationError):
        of_scalars.decode(data + data)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """A format raises no other error than its own."""
    for value_format in (
        JsonFormat.of([("a", "BIGINT")]),
        AvroFormat.of(Schema.parse(SCALARS).columns),
        AvroFormat.of([("d", "DATE"), ("t", "TIMESTAMP"), ("n", "TIMESTAMP_NTZ"), ("x", "BINARY")]),
        ConfluentAvroFormat('"string"', 0),
        FixedFormat.of([("d", "DATE"), ("t", "TIMESTAMP"), ("o", "BOOLEAN")]),
        ProtobufFormat(Struct),
    ):
        for given_ in (data, b"\0" * 5 + data):
            try:
                value_format.decode(given_)
            except SerializationError:
                continue


def test_raw_is_the_bytes_themselves() -> None:
    """Other values than bytes are refused."""
    assert RawFormat().decode(RawFormat().encode(b"\0\xff")) == b"\0\xff"
    with pytest.raises(SerializationError, match="'x' is str, not bytes"):
        RawFormat().encode("x")


@pytest.mark.parametrize("kind", [JsonFormat, AvroFormat, FixedFormat], ids=lambda kind: kind.name)
def test_columns_are_checked(kind: Any) -> None:
    """They are checked before the first write."""
    with pytest.raises(FormatError, match=r"column 'x ARRAY<INT>.*' has a type that the .* does not support"):
        kind.of([("x", "ARRAY<INT>")])
    with pytest.raises(FormatError, match="was given 'x' twice"):
        kind.of([("x", "INT"), ("x", "INT")])
    with pytest.raises(FormatError, match="was given no column"):
        kind.of([])


def test_columns_have_one_spelling_of_each_type() -> None:
    """Two spellings of a type are one schema."""
    assert JsonFormat.of([("x", "long")]) == JsonFormat.of([("x", "BIGINT")])
