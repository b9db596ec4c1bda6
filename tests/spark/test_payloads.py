"""Spark writes the bytes of the Python format and reads its rows, in each format.

The Python formats are anchored by golden files; see `tests/contract`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.timestamp_pb2 import Timestamp
from pyspark.sql import SparkSession

from flowcore import Flow, KafkaTopic
from flowcore.api.operators import Read
from flowcore.serializers.formats import JsonFormat, registry
from flowcore.spark.frame.sql import quote
from flowcore.spark.topics.values import RECORD, is_bad_record, parse_value, register_format, write_value
from flowcore.testing.transcripts.load import read_yaml
from tests.sampling import sample
from tests.spark.payloads import (
    EVOLVED_BIDS,
    MORE,
    NUMBERS,
    Row,
    comparable,
    decode,
    encode,
    evolved_schema,
    frame_of,
    fuzzed,
    random_rows,
    read_payloads,
    written,
)

pytestmark = pytest.mark.spark

GOLDEN = read_yaml(Path(__file__).parents[1] / "contract" / "golden" / "formats.yaml")
_LABELS: list[Row] = [
    {"name": "n", "number": -1, "label": "LABEL_REPEATED", "proto3_optional": True},
    {"name": None, "number": None, "label": None, "proto3_optional": None},
]
TABLES: dict[str, tuple[KafkaTopic, Sequence[Row]]] = {
    "fixed": (KafkaTopic("t", NUMBERS, format="fixed"), random_rows(NUMBERS, nulls=False)),
    "avro": (KafkaTopic("t", MORE, format="avro"), random_rows(MORE, nulls=True)),
    "avro-not-null": (KafkaTopic("t", NUMBERS, format="avro"), random_rows(NUMBERS, nulls=False)),
    "avro-of-a-schema": (KafkaTopic("t", format="avro", format_options={"schema": evolved_schema()}), []),
    "avro-confluent": (
        KafkaTopic("t", MORE, format="avro-confluent", format_options={"schema_id": 2**31 - 1}),
        random_rows(MORE, nulls=True),
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
TABLES["avro-of-a-schema"] = (TABLES["avro-of-a-schema"][0], [{"more": None, **row} for row in EVOLVED_BIDS])


@pytest.mark.parametrize("case", TABLES)
def test_format_is_written_and_read_by_spark_as_by_python(case: str, live: SparkSession) -> None:
    """Every extreme, nulls, and random rows."""
    topic, rows = TABLES[case]

    payloads = written(topic, frame_of(live, topic, rows))

    assert payloads == [encode(topic, row) for row in rows]
    assert list(map(comparable, read_payloads(live, topic, payloads))) == list(map(comparable, rows))


STRICTER = {"avro-not-null": 30, "avro": 30, "avro-confluent": 30}
"""Payloads that Spark may refuse and Python accepts: numbers too large for TINYINT, booleans of 2."""


@pytest.mark.parametrize("case", sample(TABLES, *(set(TABLES) - {"avro", "avro-not-null"})))
def test_format_finds_the_same_payloads_bad_as_python(case: str, live: SparkSession) -> None:
    """No bad payload affects the others; a good payload becomes the same row."""
    topic, rows = TABLES[case]
    payloads = fuzzed([encode(topic, row) for row in rows])

    found = read_payloads(live, topic, payloads)

    expected = [decode(topic, data) for data in payloads]
    refused = [
        data for data, row, theirs in zip(payloads, found, expected, strict=True) if row is None and theirs
    ]
    pairs = [
        (comparable(row), comparable(theirs))
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

    assert written(topic, frame_of(live, topic, [row])) == [golden]
    assert list(map(comparable, read_payloads(live, topic, [golden]))) == [comparable(row)]


def test_json_of_spark_differs_from_python_in_the_digits_of_numbers_alone(live: SparkSession) -> None:
    """Java before 19 writes more digits of some numbers than necessary; they are read as the same numbers."""
    topic = KafkaTopic("t", "f FLOAT, d DOUBLE, s STRING, l BIGINT")
    rows = [{name: row[name] for name in "fdsl"} for row in random_rows(MORE, nulls=True)]
    rows.append({"f": 1.0e23, "d": 2.0e-3, "s": "", "l": 0})
    one = JsonFormat.of([("f", "FLOAT"), ("d", "DOUBLE"), ("s", "STRING"), ("l", "BIGINT")])
    # As Spark holds it: single precision.
    rows = [row | {"f": row["f"] and struct.unpack(">f", struct.pack(">f", row["f"]))[0]} for row in rows]
    schema = "f FLOAT, d DOUBLE, s STRING, l BIGINT"
    frame = live.createDataFrame([tuple(row.values()) for row in rows], schema)

    found = written(topic, frame)

    assert [one.decode(data) for data in found] == rows
    expected = [one.encode(row) for row in rows]
    same = [json.loads(data)["s"] == json.loads(mine)["s"] for data, mine in zip(found, expected, strict=True)
            if b'"s"' in data]  # fmt: skip
    assert all(same)
    assert sum(mine == theirs for mine, theirs in zip(expected, found, strict=True)) > len(rows) / 2


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

    payloads = written(topic, frame_of(live, topic, rows))

    assert payloads == [b"1;2", ";ż".encode()]
    assert read_payloads(live, topic, [*payloads, b"none", b"\xff;", None]) == [*rows, None, None, None]


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
    payloads = live.createDataFrame([(encode(topic, row),) for row in rows], "value BINARY")
    records = payloads.selectExpr("value", parse_value(read)).selectExpr("*", f"{is_bad_record(read)} AS bad")
    good = records.where("NOT bad").selectExpr(*(f"{RECORD}.{quote(name)}" for name in read.columns))
    text, _ = write_value(topic, {name: quote(name) for name in read.columns}, good)

    plan = good.selectExpr(f"{text} AS value")._jdf.queryExecution().executedPlan().toString()

    assert plan.count("ArrowEvalPython") == 2, plan
    assert plan.count("flowcore_read_") == plan.count("flowcore_write_")
