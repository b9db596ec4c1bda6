"""Avro accepts bounded schemas, derived or written by hand, with or without a registry's header."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.api.schema import Schema
from flowcore.errors import FormatError, SerializationError
from flowcore.serializers.formats import (
    AvroFormat,
    ConfluentAvroFormat,
)
from flowcore.serializers.formats.avro_schemas import avro_columns


def test_avro_takes_a_schema_of_any_shape() -> None:
    """A schema written by hand may have types that derived schemas do not have."""
    lists = AvroFormat('{"type": "array", "items": "long"}')

    assert lists.encode([1, -1]).hex() == "04020100"
    assert lists.decode(bytes.fromhex("04020100")) == [1, -1]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "cannot be used"),
        ('"nothing"', "cannot be used"),
        ({"type": "record", "name": "n", "namespace": "x", "fields": [{"name": "n", "type": ["null", "n"]}]},
         "holds 'x.n' inside 'x.n'"),
        ({"type": "record", "name": "r", "fields": [
            {"name": "c", "type": {"type": "array", "items": "r"}}]}, "holds 'r' inside 'r'"),
        ({"type": "record", "name": "r", "fields": [
            {"name": "c", "type": {"type": "map", "values": "r"}}]}, "holds 'r' inside 'r'"),
        ({"type": "array", "items": "null"}, "items that take no bytes"),
        ({"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}}, "items that take no bytes"),
        ({"type": "record", "name": "r", "fields": [
            {"name": "e", "type": {"type": "record", "name": "e", "fields": [{"name": "z", "type": "null"}]}},
            {"name": "es", "type": {"type": "array", "items": "e"}}]}, "items that take no bytes"),
    ],
    ids=["json", "type", "itself", "itself-in-list", "itself-in-map", "nulls", "fixed-0", "empty-records"],
)  # fmt: skip
def test_avro_refuses_schemas_without_bounds(schema: Any, message: str) -> None:
    """Some bytes of them end the process or fill the memory."""
    with pytest.raises(FormatError, match=message):
        AvroFormat(schema)


def test_avro_takes_one_type_in_many_places() -> None:
    """A named type that is used again is not recursive."""
    point = {"type": "record", "name": "p", "fields": [{"name": "x", "type": "int"}]}
    fields = [
        {"name": "a", "type": point},
        {"name": "b", "type": "p"},
        {"name": "c", "type": {"type": "array", "items": "p"}},
    ]
    shape = AvroFormat({"type": "record", "name": "s", "fields": fields})
    value = {"a": {"x": 1}, "b": {"x": 2}, "c": [{"x": 3}]}

    assert shape.decode(shape.encode(value)) == value


def test_avro_refuses_what_its_writer_would_change() -> None:
    """A required long accepts neither 1.5 nor true."""
    required = AvroFormat.of(Schema.parse("a BIGINT NOT NULL").columns)

    for wrong in (1.5, True, None):
        with pytest.raises(SerializationError, match="does not fit its Avro schema"):
            required.encode({"a": wrong})


def test_avro_names_only_what_avro_can_name() -> None:
    """Names are checked before the first write."""
    with pytest.raises(FormatError, match="column 'a b' cannot be a field of Avro"):
        AvroFormat.of([("a b", "BIGINT")])


def test_avro_gives_spark_the_schema_it_writes_with() -> None:
    """The schema is JSON without the library's own entries."""
    given_ = json.loads(AvroFormat.of(Schema.parse("a BIGINT, t TIMESTAMP NOT NULL").columns).schema_json)

    assert given_ == {
        "type": "record",
        "name": "topLevelRecord",
        "fields": [
            {"name": "a", "type": ["long", "null"]},
            {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        ],
    }


@pytest.mark.parametrize(
    "entry",
    [
        {"logicalType": "time-micros"}, {"logicalType": "timestamp-nanos"}, {"logicalType": "custom-decimal"},
        {"logicalType": "local-timestamp-nanos"}, {"spark.sql.catalyst.type": "interval day to second"},
    ],
    ids=str,
)  # fmt: skip
def test_avro_gives_spark_a_number_where_its_column_is_one(entry: dict[str, str]) -> None:
    """Spark would read another type; the format itself keeps it, by which a registry compares schemas."""
    number = {"type": "long", **entry}
    record = {"type": "record", "name": "r", "fields": [{"name": "at", "type": ["null", number]}]}
    one = AvroFormat(record)

    assert json.loads(one.schema_json)["fields"] == [{"name": "at", "type": ["null", {"type": "long"}]}]
    assert avro_columns(one.schema)["at"].type == "BIGINT"
    assert all(text in str(one.schema) for text in entry.values())


def test_avro_gives_spark_defaults_as_they_are() -> None:
    """A default may have names that mean something in a schema."""
    default = {"__x": "1", "logicalType": "time-micros", "y": "2"}
    tags = {"name": "tags", "type": {"type": "map", "values": "string"}, "default": default}
    one = AvroFormat({"type": "record", "name": "r", "fields": [tags]})

    assert json.loads(one.schema_json) == {"type": "record", "name": "r", "fields": [tags]}


def test_avro_reads_other_writers_by_their_number() -> None:
    """A value of an older schema is read as the newer schema."""
    old = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}
    new = {
        "type": "record", "name": "r",
        "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string", "default": "-"}],
    }  # fmt: skip
    writer = ConfluentAvroFormat(old, 7)
    reader = ConfluentAvroFormat(new, 8, writers={7: old})

    assert reader.decode(writer.encode({"a": 1})) == {"a": 1, "b": "-"}
    assert reader.decode(reader.encode({"a": 1, "b": "x"})) == {"a": 1, "b": "x"}
    with pytest.raises(SerializationError, match=r"schema 8 is not known \(known: 7\)"):
        writer.decode(reader.encode({"a": 1, "b": "x"}))


@pytest.mark.parametrize("data", [b"", b"\0\0\0\0", b"\1\0\0\0\7\2"], ids=["empty", "short", "magic"])
def test_avro_refuses_bytes_without_the_registry_header(data: bytes) -> None:
    """The message names the format for bare Avro."""
    with pytest.raises(SerializationError, match="read them with the format 'avro'"):
        ConfluentAvroFormat('"long"', 7).decode(data)


@pytest.mark.parametrize("number", [-1, 2**31])
def test_avro_refuses_numbers_that_no_registry_gives(number: int) -> None:
    """They would not fit the header."""
    with pytest.raises(FormatError, match=f"schema_id={number}"):
        ConfluentAvroFormat('"long"', number)


@given(st.integers(-(10**20), 10**20) | st.sampled_from([-(1 << bits) for bits in range(64)]))
def test_decimals_have_as_few_bytes_as_in_java(unscaled: int) -> None:
    """Spark refuses a value that it would write in other bytes."""
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 21, "scale": 2}
    schema = {"type": "record", "name": "R", "fields": [{"name": "price", "type": kind}]}
    size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1

    found = AvroFormat(schema).encode({"price": Decimal(unscaled).scaleb(-2)})

    assert found == bytes([2 * size]) + unscaled.to_bytes(size, "big", signed=True)
