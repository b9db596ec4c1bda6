"""Errors about payloads name the column and the cast to add, or show the value."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import SparkSession

from flowcore import Flow, KafkaTopic
from flowcore.api.operators import Read
from flowcore.errors import PlanError
from flowcore.spark.topics.messages import kafka_key
from flowcore.spark.topics.values import (
    describe_misfit,
    fail_with_payload,
    is_bad_record,
    parse_value,
    show_payload,
    write_value,
)
from tests.spark.payloads import written

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("kind", ["avro", "fixed"])
@pytest.mark.parametrize(
    ("given", "wanted", "ok"),
    [
        ("CAST(1 AS INT)", "BIGINT", True), ("CAST(1 AS TINYINT)", "SMALLINT", True),
        ("1.5F", "DOUBLE", True),
        ("CAST(1 AS BIGINT)", "INT", False), ("'1'", "INT", False), ("1.5D", "FLOAT", False),
        ("true", "INT", False), ("TIMESTAMP'2026-01-01'", "DATE", False),
    ],
)  # fmt: skip
def test_sink_takes_columns_that_fit_its_types(
    kind: str, given: str, wanted: str, ok: bool, live: SparkSession
) -> None:
    """A column whose values could be cut is refused before the first write, with the cast to add."""
    topic = KafkaTopic("out", f"c {wanted} NOT NULL", format=kind)
    frame = live.sql(f"SELECT {given} AS c")

    if ok:
        assert len(written(topic, frame)) == 1
    else:
        with pytest.raises(
            PlanError, match=rf"topic 'out': column 'c' is .* as {wanted}: .*CAST\(c AS {wanted}\)"
        ):
            written(topic, frame)


@pytest.mark.parametrize("kind", ["avro", "fixed", "avro-confluent"])
def test_sink_names_the_column_that_is_null(kind: str, live: SparkSession) -> None:
    """The row is written as JSON, for the dead letters, and not as another value."""
    options = {"schema_id": 1} if kind == "avro-confluent" else {}
    topic = KafkaTopic("out", "id INT NOT NULL, price INT NOT NULL", format=kind, format_options=options)
    frame = live.sql("SELECT 1 AS id, CAST(NULL AS INT) AS price")

    value, reason = write_value(topic, {"id": "id", "price": "price"}, frame)
    (row,) = frame.selectExpr(f"CAST({value} AS STRING) AS value", f"{reason} AS reason").collect()

    assert row.value == '{"id":1}'
    assert re.match(rf"cannot be written as {kind}: .*'price' is", row.reason)


def test_raw_sink_refuses_a_number(live: SparkSession) -> None:
    """Only strings and binary values can be written as raw bytes."""
    with pytest.raises(PlanError, match="column 'c' is INT and would be written as BINARY"):
        written(KafkaTopic("out", format="raw"), live.sql("SELECT 1 AS c"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b'{"id":\n\t"x"}', '{"id": "x"}'),
        (b"\xff\0\1", "bytes FF0001"),
        (b"", ""),
        (None, "nothing"),
        ("ż".encode() * 300, "ż" * 200),
        (b"\xff" * 300, "bytes " + "FF" * 100),
        ("a\x1b[2Jb\x9b2J\x7f\u202ec\u2028d\u200be".encode(), "a [2Jb 2J c d e"),
    ],
    ids=["lines", "binary", "empty", "null", "long-text", "long-binary", "controls"],
)
def test_failure_shows_the_value_on_one_line(value: bytes | None, text: str, live: SparkSession) -> None:
    """Valid UTF-8 is shown as text."""
    names = "value BINARY, topic STRING, partition INT, offset BIGINT"
    frame = live.createDataFrame([(value, "bids", 3, 12)], names)

    assert frame.selectExpr(f"{show_payload('value')} AS text").collect()[0].text == text
    with pytest.raises(Exception, match=r"bids\[3\]@12 does not fit the schema") as error:
        frame.where(fail_with_payload("'does not fit the schema'")).collect()
    assert text in str(error.value)


WRONG = {
    b'{"id": 1, "at": 1763776800000}': "field 'at' holds +57861-",
    b'{"id": 1, "at": "0000-01-01T00:00:00Z"}': "which is not TIMESTAMP of the years 1 to 9999",
    b'{"id": 1, "day": "0000-12-31"}': "'day' holds 0000-12-31, which is not DATE of the years 1 to 9999",
    b'{"id": 1, "days": [{"d": "-0005-01-01"}]}': "which is not ARRAY<STRUCT<d: DATE>> of the years",
    b'{"id": "x"}': "field 'id' holds x, which is not BIGINT",
    b'{"id": "x\\u001b[2J\\u009b\\u202e\\ny"}': "field 'id' holds x [2J y, which is not BIGINT",
    b'{"id": 1, "name": 5}': "field 'name' holds 5, which is not STRING",
    b'{"name": "a"}': "field 'id' is missing or null, and is BIGINT NOT NULL",
    b"[1]": "it is not a JSON object",
    b'{"id": 1} {': "more text follows the object",
}


def test_reason_names_field_value_and_type(live: SparkSession) -> None:
    """A time outside the years 1 to 9999 is bad too, also within an array."""
    schema = "id BIGINT NOT NULL, name STRING, at TIMESTAMP, day DATE, days ARRAY<STRUCT<d: DATE>>"
    read = Flow("f").read("r", KafkaTopic("t", schema)).operator
    assert isinstance(read, Read)
    good = b'{"id": 1, "name": "5", "at": "9999-12-31T23:59:59.999999Z", "day": "0001-01-01", "days": []}'
    frame = live.createDataFrame([(value,) for value in (*WRONG, good)], "value BINARY")
    frame = frame.selectExpr("value", parse_value(read))
    reason = f"CASE WHEN {is_bad_record(read)} THEN {describe_misfit(read)} END AS reason"

    found = {bytes(row.value): row.reason for row in frame.selectExpr("value", reason).collect()}

    assert found.pop(good) is None
    for value, expected in WRONG.items():
        assert expected in found[value], value


def test_json_keeps_times_at_microseconds(live: SparkSession) -> None:
    """Two times that differ by a microsecond have different values and compound keys."""
    frame = live.sql(
        "SELECT timestamp_micros(id) AS at, timestamp_micros(id)::TIMESTAMP_NTZ AS local FROM range(1, 3)"
    )
    columns = {"at": "at", "local": "local"}
    value, _ = write_value(KafkaTopic("out"), columns, frame)

    found = frame.selectExpr(
        f"CAST({value} AS STRING) AS value", f"{kafka_key(list(columns), columns)} AS key"
    )

    expected = [
        f'{{"at":"1970-01-01T00:00:00.00000{n}Z","local":"1970-01-01T00:00:00.00000{n}"}}' for n in (1, 2)
    ]
    assert sorted(row.value for row in found.collect()) == expected
    assert sorted(row.key for row in found.collect()) == expected
