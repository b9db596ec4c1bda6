"""Payloads of each format, written and read by Spark and by the Python format."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from flowcore import Flow, KafkaTopic
from flowcore.api.operators import Read
from flowcore.api.value_formats import format_of, value_schema
from flowcore.errors import SerializationError
from flowcore.serializers.formats import ProtobufFormat
from flowcore.serializers.formats.protobuf import message_of, row_of_message
from flowcore.spark.frame.sql import quote
from flowcore.spark.topics.values import RECORD, is_bad_record, parse_value, register_format, write_value

Row = Mapping[str, Any]

NUMBERS = (
    "b BOOLEAN NOT NULL, i TINYINT NOT NULL, j SMALLINT NOT NULL, k INT NOT NULL, l BIGINT NOT NULL, "
    "f FLOAT NOT NULL, d DOUBLE NOT NULL, e DATE NOT NULL, t TIMESTAMP NOT NULL"
)
MORE = f"{NUMBERS.replace(' NOT NULL', '')}, s STRING, y BINARY, n TIMESTAMP_NTZ, r STRING NOT NULL"
_LAST = datetime(9999, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001 - a column without a zone


def _random_row(chance: random.Random, extreme: int | None) -> dict[str, Any]:
    def number(bits: int) -> int:
        limits = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return limits[extreme] if extreme is not None else chance.randint(*limits)

    single = struct.unpack(">f", chance.randbytes(4))[0]
    double = struct.unpack(">d", chance.randbytes(8))[0]
    first, span = datetime(1, 1, 1, tzinfo=UTC), timedelta(days=3_652_058).total_seconds()
    moment = first + timedelta(seconds=chance.randint(0, int(span)), microseconds=chance.randint(0, 999_999))
    if extreme is not None:
        single, double = (
            (-3.4028234663852886e38, 5e-324) if extreme else (float("inf"), -1.7976931348623157e308)
        )
        moment = (first, _LAST.replace(tzinfo=UTC))[extreme]
    text = "".join(map(chr, chance.choices([0, 10, 65, 0x17C, 0x2028, 0x1F600], k=chance.randint(0, 40))))
    return {
        "b": chance.random() < 0.5, "i": number(8), "j": number(16), "k": number(32), "l": number(64),
        "f": 0.5 if math.isnan(single) else single, "d": -0.0 if math.isnan(double) else double,
        "e": moment.date(), "t": moment, "s": text, "y": chance.randbytes(chance.randint(0, 40)),
        "n": moment.replace(tzinfo=None), "r": text[::-1],
    }  # fmt: skip


def random_rows(schema: str, *, nulls: bool) -> list[Row]:
    """Rows with every extreme, and 200 random rows."""
    chance = random.Random(4)  # noqa: S311 - rows for a test
    names = [part.split()[0] for part in schema.split(", ")]
    rows = [_random_row(chance, extreme) for extreme in (0, 1, *[None] * 200)]
    rows = [{name: row[name] for name in names} for row in rows]
    if nulls:
        rows += [{name: None if name != "r" else "" for name in names}]
        rows += [
            {n: None if n != "r" and chance.random() < 0.3 else v for n, v in row.items()} for row in rows
        ]
    return rows


def evolved_schema() -> dict[str, Any]:
    """An Avro schema that has more types than columns declare, and defaults."""
    return {
        "type": "record", "name": "Bid", "fields": [
            {"name": "more", "type": ["null", "string"], "default": None},
            {"name": "price", "type": "double"},
            {"name": "id", "type": ["null", "long"], "default": None},
            {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}, "default": "A"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
            {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        ],
    }  # fmt: skip


EVOLVED_BIDS: list[Row] = [
    {"price": 1.5, "id": None, "kind": "B", "at": datetime(2026, 1, 1, tzinfo=UTC), "tags": ["x", "ż"]},
    {"price": -0.0, "id": 2**63 - 1, "kind": "A", "at": datetime(1, 1, 1, tzinfo=UTC), "tags": []},
]


def encode(topic: KafkaTopic, row: Row) -> bytes:
    """The bytes of the Python format."""
    one = format_of(topic)
    if isinstance(one, ProtobufFormat):
        return one.encode(message_of(one.message, row))
    if topic.format == "raw":
        (value,) = row.values()
        return value if isinstance(value, bytes) else str(value).encode()
    return one.encode(row)


def decode(topic: KafkaTopic, data: bytes | None) -> Row | None:
    """The row of the Python format, with the declared columns."""
    schema = value_schema(topic)
    assert schema
    one = format_of(topic)
    try:
        if data is None:
            return None
        found = one.decode(data)
        if isinstance(one, ProtobufFormat):
            found = row_of_message(found, schema.names)
        elif topic.format == "raw":
            found = {schema.names[0]: data if schema.columns[0].type == "BINARY" else data.decode()}
    except (SerializationError, UnicodeDecodeError):
        return None
    if any(found[column.name] is None for column in schema.columns if not column.nullable):
        return None
    return {name: found[name] for name in schema.names}


def frame_of(spark: SparkSession, topic: KafkaTopic, rows: Sequence[Row]) -> DataFrame:
    """The rows with the columns of a topic."""
    schema = value_schema(topic)
    assert schema
    ddl = ", ".join(f"`{column.name}` {column.type}" for column in schema.columns)
    return spark.createDataFrame([tuple(row[name] for name in schema.names) for row in rows], ddl)


def written(topic: KafkaTopic, frame: DataFrame) -> list[bytes]:
    """The payloads that Spark writes."""
    text, _ = write_value(topic, {name: quote(name) for name in frame.columns}, frame)
    return [bytes(row.value) for row in frame.selectExpr(f"{text} AS value").collect()]


def read_payloads(
    spark: SparkSession, topic: KafkaTopic, payloads: Sequence[bytes | None]
) -> list[dict[str, Any] | None]:
    """The rows that Spark reads, None for bad ones."""
    schema = value_schema(topic)
    assert schema
    read = Flow("f").read("r", topic if topic.schema else _with_schema(topic, schema.ddl)).operator
    assert isinstance(read, Read)
    register_format(topic, spark)
    frame = spark.createDataFrame([(data,) for data in payloads], "value BINARY")
    frame = frame.selectExpr("value", parse_value(read)).selectExpr("*", f"{is_bad_record(read)} AS bad")
    fields = [f"CASE WHEN NOT bad THEN {RECORD}.{quote(name)} END AS {quote(name)}" for name in schema.names]
    found = frame.selectExpr("bad", *fields).toArrow().to_pylist()
    assert all(row["bad"] in (True, False) for row in found)
    return [None if row.pop("bad") else row for row in found]


def _with_schema(topic: KafkaTopic, ddl: str) -> KafkaTopic:
    return KafkaTopic(topic.name, ddl, format=topic.format, format_options=topic.format_options)


def comparable(row: Row | None) -> str:
    """Text that is equal for equal rows: UTC has several objects, and NaN is not equal to itself."""
    if row is None:
        return "bad"
    return str({
        name: value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value
        for name, value in row.items()
    })  # fmt: skip


def fuzzed(good: Sequence[bytes]) -> list[bytes | None]:
    """Payloads that are cut, too long or changed, that claim lengths they do not have, and random bytes."""
    chance = random.Random(7)  # noqa: S311 - bytes for a test
    some = list(good[:4])
    flipped = []
    for data in [each for each in some if each] * 30:
        place = chance.randrange(len(data))
        flipped.append(data[:place] + bytes([data[place] ^ (1 << chance.randrange(8))]) + data[place + 1 :])
    # Lengths of 2 GB and more, which a reader might make room for.
    lengths = [
        bytes.fromhex(text) for text in ("80e0c0cb0b", "feffffff0f", "eeffffff0f", "ffffffffffffffffff01")
    ]
    claims = [data[:place] + length for data in some for place in range(len(data)) for length in lengths]
    return [
        None, b"", *(data[:end] for data in some for end in range(len(data))),
        *(data + b"\0" for data in some),
        *flipped, *claims, *lengths, b"\0" * (1 << 20), chance.randbytes(1 << 20), b"\xff" * (1 << 20),
        *(chance.randbytes(chance.randrange(60)) for _ in range(300)),
    ]  # fmt: skip
