"""Spark writes the bytes of the Python format and reads its rows, in each format.

The Python formats are anchored by golden files; see `tests/contract`.
"""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.timestamp_pb2 import Timestamp
from pyspark.sql import DataFrame, SparkSession

from flowcore import Flow, KafkaTopic
from flowcore.api.operators import Read
from flowcore.api.value_formats import format_of, value_schema
from flowcore.errors import SerializationError
from flowcore.serializers.formats import JsonFormat, ProtobufFormat, build_format, registry
from flowcore.serializers.formats.avro_schemas import avro_schema
from flowcore.serializers.formats.protobuf import message_of, row_of_message
from flowcore.settings import Settings
from flowcore.spark.frame.sql import quote
from flowcore.spark.run.session import live_session
from flowcore.spark.topics.values import (
    RECORD,
    is_bad_record,
    parse_value,
    register_format,
    write_value,
)
from flowcore.testing.transcripts.load import read_yaml
from tests.sampling import sample

pytestmark = pytest.mark.spark

Row = Mapping[str, Any]

GOLDEN = read_yaml(Path(__file__).parents[1] / "contract" / "golden" / "formats.yaml")
NUMBERS = (
    "b BOOLEAN NOT NULL, i TINYINT NOT NULL, j SMALLINT NOT NULL, k INT NOT NULL, l BIGINT NOT NULL, "
    "f FLOAT NOT NULL, d DOUBLE NOT NULL, e DATE NOT NULL, t TIMESTAMP NOT NULL"
)
MORE = f"{NUMBERS.replace(' NOT NULL', '')}, s STRING, y BINARY, n TIMESTAMP_NTZ, r STRING NOT NULL"
_LAST = datetime(9999, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001 - a column without a zone


@pytest.fixture(scope="module")
def live(spark: SparkSession) -> SparkSession:
    """A session with the configuration of live queries."""
    return live_session(spark, Settings.of({}, environment={}))


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


def _table(schema: str, *, nulls: bool) -> list[Row]:
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


def _evolved() -> dict[str, Any]:
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


_BIDS: list[Row] = [
    {"price": 1.5, "id": None, "kind": "B", "at": datetime(2026, 1, 1, tzinfo=UTC), "tags": ["x", "ż"]},
    {"price": -0.0, "id": 2**63 - 1, "kind": "A", "at": datetime(1, 1, 1, tzinfo=UTC), "tags": []},
]
_LABELS: list[Row] = [
    {"name": "n", "number": -1, "label": "LABEL_REPEATED", "proto3_optional": True},
    {"name": None, "number": None, "label": None, "proto3_optional": None},
]
TABLES: dict[str, tuple[KafkaTopic, Sequence[Row]]] = {
    "fixed": (KafkaTopic("t", NUMBERS, format="fixed"), _table(NUMBERS, nulls=False)),
    "avro": (KafkaTopic("t", MORE, format="avro"), _table(MORE, nulls=True)),
    "avro-not-null": (KafkaTopic("t", NUMBERS, format="avro"), _table(NUMBERS, nulls=False)),
    "avro-of-a-schema": (KafkaTopic("t", format="avro", format_options={"schema": _evolved()}), []),
    "avro-confluent": (
        KafkaTopic("t", MORE, format="avro-confluent", format_options={"schema_id": 2**31 - 1}),
        _table(MORE, nulls=True),
    ),
    "protobuf": (
        KafkaTopic(
            "t",
            "name STRING, number INT, label STRING, proto3_optional BOOLEAN",
            format="protobuf",
            format_options={"message": FieldDescriptorProto},
        ),
        _LABELS,
    ),
    "protobuf-numbers": (
        KafkaTopic(
            "t", "seconds BIGINT NOT NULL, nanos INT NOT NULL",
            format="protobuf", format_options={"message": Timestamp},
        ),
        [{"seconds": -(2**63), "nanos": 2**31 - 1}, {"seconds": 0, "nanos": 0}],
    ),
    "raw": (KafkaTopic("t", "y BINARY", format="raw"), [{"y": b""}, {"y": b"\x00\xff"}]),
    "raw-text": (KafkaTopic("t", "y STRING", format="raw"), [{"y": ""}, {"y": "\x00ż"}]),
}  # fmt: skip
TABLES["avro-of-a-schema"] = (TABLES["avro-of-a-schema"][0], [{"more": None, **row} for row in _BIDS])


def _encode(topic: KafkaTopic, row: Row) -> bytes:
    one = format_of(topic)
    if isinstance(one, ProtobufFormat):
        return one.encode(message_of(one.message, row))
    if topic.format == "raw":
        (value,) = row.values()
        return value if isinstance(value, bytes) else str(value).encode()
    return one.encode(row)


def _decode(topic: KafkaTopic, data: bytes | None) -> Row | None:
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


def _frame(spark: SparkSession, topic: KafkaTopic, rows: Sequence[Row]) -> DataFrame:
    schema = value_schema(topic)
    assert schema
    ddl = ", ".join(f"`{column.name}` {column.type}" for column in schema.columns)
    return spark.createDataFrame([tuple(row[name] for name in schema.names) for row in rows], ddl)


def _written(topic: KafkaTopic, frame: DataFrame) -> list[bytes]:
    text, _ = write_value(topic, {name: quote(name) for name in frame.columns}, frame)
    return [bytes(row.value) for row in frame.selectExpr(f"{text} AS value").collect()]


def _read(
    spark: SparkSession, topic: KafkaTopic, payloads: Sequence[bytes | None]
) -> list[dict[str, Any] | None]:
    """The rows, None for bad ones."""
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


def _same(row: Row | None) -> str:
    """Text that is equal for equal rows: UTC has several objects, and NaN is not equal to itself."""
    if row is None:
        return "bad"
    return str({
        name: value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value
        for name, value in row.items()
    })  # fmt: skip


@pytest.mark.parametrize("case", TABLES)
def test_format_is_written_and_read_by_spark_as_by_python(case: str, live: SparkSession) -> None:
    """Every extreme, nulls, and random rows."""
    topic, rows = TABLES[case]

    payloads = _written(topic, _frame(live, topic, rows))

    assert payloads == [_encode(topic, row) for row in rows]
    assert list(map(_same, _read(live, topic, payloads))) == list(map(_same, rows))


def _fuzzed(good: Sequence[bytes]) -> list[bytes | None]:
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


STRICTER = {"avro-not-null": 30, "avro": 30, "avro-confluent": 30}
"""Payloads that Spark may refuse and Python accepts: numbers too large for TINYINT, booleans of 2."""


@pytest.mark.parametrize("case", sample(TABLES, *(set(TABLES) - {"avro", "avro-not-null"})))
def test_format_finds_the_same_payloads_bad_as_python(case: str, live: SparkSession) -> None:
    """No bad payload affects the others; a good payload becomes the same row."""
    topic, rows = TABLES[case]
    payloads = _fuzzed([_encode(topic, row) for row in rows])

    found = _read(live, topic, payloads)

    expected = [_decode(topic, data) for data in payloads]
    refused = [
        data for data, row, theirs in zip(payloads, found, expected, strict=True) if row is None and theirs
    ]
    pairs = [
        (_same(row), _same(theirs))
        for row, theirs in zip(found, expected, strict=True)
        if row is not None or theirs is None
    ]
    assert [mine for mine, _ in pairs] == [theirs for _, theirs in pairs]
    assert len(refused) <= STRICTER.get(case, 0)
    assert any(row is None for row in found)


def _golden_topic(case: dict[str, Any]) -> KafkaTopic:
    options = {**case.get("options", {}), **({"message": Timestamp} if case["format"] == "protobuf" else {})}
    required = " NOT NULL" if case["format"] == "fixed" else ""
    columns = case.get("columns") or ([["bytes", "BINARY"]] if case["format"] == "raw" else [])
    schema = ", ".join(f"{name} {kind}{required}" for name, kind in columns)
    schema = schema or "seconds BIGINT NOT NULL, nanos INT NOT NULL"
    return KafkaTopic("t", schema, format=case["format"], format_options=options)


def _golden_row(case: dict[str, Any]) -> Row:
    if case["format"] == "raw":
        return {"bytes": bytes.fromhex(case["value"]["bytes"])}
    read = {"DATE": date.fromisoformat, "TIMESTAMP": datetime.fromisoformat}
    kinds = dict(case.get("columns", ()))
    return {name: read.get(kinds.get(name), lambda v: v)(value) for name, value in case["value"].items()}


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_golden_bytes_are_those_that_spark_writes_and_reads(case: dict[str, Any], live: SparkSession) -> None:
    """JSON is checked too, for the numbers of the golden file."""
    golden = case["text"].encode() if "text" in case else bytes.fromhex(case["bytes"])
    topic, row = _golden_topic(case), _golden_row(case)

    assert _written(topic, _frame(live, topic, [row])) == [golden]
    assert list(map(_same, _read(live, topic, [golden]))) == [_same(row)]


def test_json_of_spark_differs_from_python_in_the_digits_of_numbers_alone(live: SparkSession) -> None:
    """Java before 19 writes more digits of some numbers than necessary; they are read as the same numbers."""
    topic = KafkaTopic("t", "f FLOAT, d DOUBLE, s STRING, l BIGINT")
    rows = [{name: row[name] for name in "fdsl"} for row in _table(MORE, nulls=True)]
    rows.append({"f": 1.0e23, "d": 2.0e-3, "s": "", "l": 0})
    one = JsonFormat.of([("f", "FLOAT"), ("d", "DOUBLE"), ("s", "STRING"), ("l", "BIGINT")])
    # As Spark holds it: single precision.
    rows = [row | {"f": row["f"] and struct.unpack(">f", struct.pack(">f", row["f"]))[0]} for row in rows]
    schema = "f FLOAT, d DOUBLE, s STRING, l BIGINT"
    frame = live.createDataFrame([tuple(row.values()) for row in rows], schema)

    found = _written(topic, frame)

    assert [one.decode(data) for data in found] == rows
    expected = [one.encode(row) for row in rows]
    same = [json.loads(data)["s"] == json.loads(mine)["s"] for data, mine in zip(found, expected, strict=True)
            if b'"s"' in data]  # fmt: skip
    assert all(same)
    assert sum(mine == theirs for mine, theirs in zip(expected, found, strict=True)) > len(rows) / 2


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
    good = [_encode(topic, row) for row in rows]
    bad = [
        b"\x02\x01", b"\x01\x02", b"\x04\x00", b"\xff\xff", good[0] + b"\0", good[0][:-1], b"\x00\x02\x01",
    ]  # fmt: skip

    found = _read(live, topic, [*good, *bad, *_fuzzed(good[:1])])

    for row in filter(None, found):
        row["tags"] = row["tags"] if row["tags"] is None else dict(row["tags"])
    assert found[: len(rows)] == rows
    assert found[len(rows) : len(rows) + len(bad)] == [None] * len(bad)
    expected = [_decode(topic, data) for data in _fuzzed(good[:1])]
    pairs = list(zip(found[len(rows) + len(bad) :], expected, strict=True))
    assert [mine for mine, theirs in pairs if mine is not None] == [
        theirs for mine, theirs in pairs if mine is not None
    ]


def test_confluent_avro_is_read_by_the_schema_that_its_header_names(live: SparkSession) -> None:
    """Older writers' values get defaults; an unknown schema number, or a misfit of its schema, is bad."""
    older = avro_schema([("price", "DOUBLE"), ("extra", "STRING")])
    older["name"] = "Bid"
    older["fields"][0]["type"] = "double"
    topic = KafkaTopic(
        "t", "id BIGINT, price DOUBLE NOT NULL, tags ARRAY<STRING>", format="avro-confluent",
        format_options={"schema": _evolved(), "schema_id": 9, "writers": {7: older}},
    )  # fmt: skip
    old = build_format("avro-confluent", schema=older, schema_id=7).encode({"price": 2.5, "extra": "x"})
    new = build_format("avro-confluent", schema=_evolved(), schema_id=9).encode(_BIDS[1])

    found = _read(live, topic, [old, new, old + b"\0", old[:-1], b"\0\0\0\0\x08" + old[5:], b"\1" + new[1:]])

    first = {"id": None, "price": 2.5, "tags": []}
    second = {"id": 2**63 - 1, "price": -0.0, "tags": []}
    assert found == [first, second, None, None, None, None]


def test_users_format_is_written_and_read_in_python(
    live: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The format is used under its registered name, and an error concerns one record."""
    monkeypatch.setattr(registry, "_FORMATS", dict(registry._FORMATS))
    registry.register("test-lines", lambda columns, sep: Lines([column.name for column in columns], sep))
    topic = KafkaTopic(
        "t", "a STRING, b STRING NOT NULL", format="test-lines", format_options={"sep": ";"}
    )  # fmt: skip
    rows = [{"a": "1", "b": "2"}, {"a": "", "b": "ż"}]

    payloads = _written(topic, _frame(live, topic, rows))

    assert payloads == [b"1;2", ";ż".encode()]
    assert _read(live, topic, [*payloads, b"none", b"\xff;", None]) == [*rows, None, None, None]


class Lines:
    """Encodes texts with a separator."""

    name, version, fingerprint = "test-lines", 1, ""

    def __init__(self, names: list[str], sep: str) -> None:
        self.names, self.sep = names, sep

    def encode(self, value: Any, /) -> bytes:
        """Encode all fields."""
        return self.sep.join(value[name] for name in self.names).encode()

    def decode(self, data: bytes, /) -> Any:
        """Decode as many fields as there are columns."""
        return dict(zip(self.names, data.decode().split(self.sep), strict=True))


@pytest.mark.parametrize("case", ["fixed", "protobuf"])
def test_python_is_called_once_for_each_record(case: str, live: SparkSession) -> None:
    """One call serves all columns and conditions, for reading and for writing."""
    topic, rows = TABLES[case]
    read = Flow("f").read("r", topic).operator
    assert isinstance(read, Read)
    register_format(topic, live)
    payloads = live.createDataFrame([(_encode(topic, row),) for row in rows], "value BINARY")
    records = payloads.selectExpr("value", parse_value(read)).selectExpr("*", f"{is_bad_record(read)} AS bad")
    good = records.where("NOT bad").selectExpr(*(f"{RECORD}.{quote(name)}" for name in read.columns))
    text, _ = write_value(topic, {name: quote(name) for name in read.columns}, good)

    plan = good.selectExpr(f"{text} AS value")._jdf.queryExecution().executedPlan().toString()

    assert plan.count("ArrowEvalPython") == 2, plan
    assert plan.count("flowcore_read_") == plan.count("flowcore_write_")
