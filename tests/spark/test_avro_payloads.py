"""Spark reads Avro as Python does where one value has several encodings, or its writer another schema."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flowcore import KafkaTopic
from flowcore.serializers.formats import build_format
from flowcore.serializers.formats.avro_schemas import avro_schema
from tests.spark.payloads import (
    EVOLVED_BIDS,
    decode,
    encode,
    evolved_schema,
    frame_of,
    fuzzed,
    read_payloads,
    written,
)

pytestmark = pytest.mark.spark


def test_entries_of_an_avro_map_may_have_any_order(live: SparkSession) -> None:
    """Each writer has its own order. What does not fit is bad, also if nulls are as long."""
    fields = [
        {"name": "id", "type": ["null", "long"], "default": None},
        {"name": "tags", "type": ["null", {"type": "map", "values": {"type": "array", "items": "long"}}]},
    ]
    schema = {"type": "record", "name": "Bid", "fields": fields}
    topic = KafkaTopic("t", format="avro", format_options={"schema": schema})
    tags = {f"tag-{number}": [number] for number in range(20)}
    rows = [{"id": 1, "tags": tags}, {"id": None, "tags": None}, {"id": 2**62, "tags": {}}]
    rows.append({"id": 1, "tags": dict(reversed(tags.items()))})
    good = [encode(topic, row) for row in rows]
    bad = [
        b"\x02\x01", b"\x01\x02", b"\x04\x00", b"\xff\xff", good[0] + b"\0", good[0][:-1], b"\x00\x02\x01",
    ]  # fmt: skip

    found = read_payloads(live, topic, [*good, *bad, *fuzzed(good[:1])])

    for row in filter(None, found):
        row["tags"] = row["tags"] if row["tags"] is None else dict(row["tags"])
    assert found[: len(rows)] == rows
    assert found[len(rows) : len(rows) + len(bad)] == [None] * len(bad)
    expected = [decode(topic, data) for data in fuzzed(good[:1])]
    pairs = list(zip(found[len(rows) + len(bad) :], expected, strict=True))
    assert [mine for mine, theirs in pairs if mine is not None] == [
        theirs for mine, theirs in pairs if mine is not None
    ]


def test_avro_decimals_and_blocks_are_read_in_the_encoding_that_spark_writes(live: SparkSession) -> None:
    """Others are refused, as formats.md says: decimals with more bytes, arrays in blocks with their size."""
    price = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
    tags = {"type": "array", "items": "string"}
    fields = [{"name": "price", "type": price}, {"name": "tags", "type": tags}]
    schema = {"type": "record", "name": "Bid", "fields": fields}
    topic = KafkaTopic("t", format="avro", format_options={"schema": schema})
    prices = [Decimal(text) for text in ("-1.28", "-327.68", "1.28", "-1.27", "0.00", "-0.01")]
    rows = [{"price": each, "tags": ["x"]} for each in prices]
    others = ["04ff80 02027800", "0280 0104027800", "0280 02027802027800"]

    found = read_payloads(live, topic, [*(encode(topic, row) for row in rows), *map(bytes.fromhex, others)])

    assert found == [*rows, None, None, None]
    assert all(decode(topic, bytes.fromhex(each)) for each in others)


def test_avro_numbers_with_a_type_that_no_column_has_are_numbers(live: SparkSession) -> None:
    """Spark has types of nanoseconds, which it does not read, and a property by which it takes another."""
    kinds: dict[str, dict[str, str]] = {
        "at": {"logicalType": "timestamp-nanos"},
        "local": {"logicalType": "local-timestamp-nanos"},
        "day": {"logicalType": "time-micros"},
        "length": {"spark.sql.catalyst.type": "interval day to second"},
    }
    fields = [{"name": name, "type": {"type": "long", **entry}} for name, entry in kinds.items()]
    topic = KafkaTopic(
        "t", format="avro", format_options={"schema": {"type": "record", "name": "Bid", "fields": fields}}
    )
    rows = [dict.fromkeys(kinds, 64), dict.fromkeys(kinds, -1)]

    payloads = written(topic, frame_of(live, topic, rows))

    assert payloads == [b"\x80\x01" * len(kinds), b"\x01" * len(kinds)]
    assert read_payloads(live, topic, payloads) == rows


def test_number_of_another_writer_that_is_too_large_for_its_column_is_bad(live: SparkSession) -> None:
    """It is no null, also where the column may be null."""
    writer = {"type": "record", "name": "Bid", "fields": [{"name": "a", "type": "int"}]}
    reader = {"type": "record", "name": "Bid", "fields": [{"name": "a", "type": ["null", "int"]}]}
    options = {"schema": reader, "schema_id": 9, "writers": {7: writer}}
    topic = KafkaTopic("t", "a TINYINT", format="avro-confluent", format_options=options)
    old = build_format("avro-confluent", schema=writer, schema_id=7)
    rows = [{"a": 127}, {"a": 128}]

    found = read_payloads(live, topic, [*map(old.encode, rows), *(encode(topic, row) for row in rows)])

    assert found == [rows[0], None] * 2


def test_avro_ints_may_be_smaller_columns(live: SparkSession) -> None:
    """Of some fields of a schema, in any order; a number that is too large is bad."""
    kinds: dict[str, Any] = {"b": "int", "more": ["null", "string"], "a": ["null", "int"]}
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    schema = {"type": "record", "name": "Bid", "fields": fields}
    topic = KafkaTopic("t", "a TINYINT, b SMALLINT", format="avro", format_options={"schema": schema})
    good = [{"a": -128, "b": 32_767}, {"a": None, "b": -1}]
    bad = [{"a": 128, "b": 0}, {"a": 0, "b": 32_768}]

    payloads = written(topic, frame_of(live, topic, good))

    assert payloads == [encode(topic, row) for row in good]
    mixed = [*payloads, *(encode(topic, row) for row in bad), encode(topic, {**good[0], "more": "x"})]
    assert read_payloads(live, topic, mixed) == [*good, None, None, good[0]]


def test_confluent_avro_is_read_by_the_schema_that_its_header_names(live: SparkSession) -> None:
    """Older writers' values get defaults; an unknown schema number, or a misfit of its schema, is bad."""
    older = avro_schema([("price", "DOUBLE"), ("extra", "STRING")])
    older["name"] = "Bid"
    older["fields"][0]["type"] = "double"
    topic = KafkaTopic(
        "t", "id BIGINT, price DOUBLE NOT NULL, tags ARRAY<STRING>", format="avro-confluent",
        format_options={"schema": evolved_schema(), "schema_id": 9, "writers": {7: older}},
    )  # fmt: skip
    old = build_format("avro-confluent", schema=older, schema_id=7).encode({"price": 2.5, "extra": "x"})
    new = build_format("avro-confluent", schema=evolved_schema(), schema_id=9).encode(EVOLVED_BIDS[1])

    found = read_payloads(
        live, topic, [old, new, old + b"\0", old[:-1], b"\0\0\0\0\x08" + old[5:], b"\1" + new[1:]]
    )

    first = {"id": None, "price": 2.5, "tags": []}
    second = {"id": 2**63 - 1, "price": -0.0, "tags": []}
    assert found == [first, second, None, None, None, None]
