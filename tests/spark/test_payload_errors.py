"""Errors about payloads name the column and the cast to add, or show the value."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from flowcore import KafkaTopic
from flowcore.errors import PlanError
from flowcore.settings import Settings
from flowcore.spark.frame.sql import quote
from flowcore.spark.run.session import live_session
from flowcore.spark.topics.values import fail_with_payload, show_payload, write_value

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def live(spark: SparkSession) -> SparkSession:
    """A session with the configuration of live queries."""
    return live_session(spark, Settings.of({}, environment={}))


def _written(topic: KafkaTopic, frame: DataFrame) -> list[bytes]:
    text = write_value(topic, {name: quote(name) for name in frame.columns}, frame)
    return [bytes(row.value) for row in frame.selectExpr(f"{text} AS value").collect()]


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
        assert len(_written(topic, frame)) == 1
    else:
        with pytest.raises(
            PlanError, match=rf"topic 'out': column 'c' is .* as {wanted}: .*CAST\(c AS {wanted}\)"
        ):
            _written(topic, frame)


@pytest.mark.parametrize("kind", ["avro", "fixed", "avro-confluent"])
def test_sink_names_the_column_that_is_null(kind: str, live: SparkSession) -> None:
    """The sink fails instead of writing another value."""
    options = {"schema_id": 1} if kind == "avro-confluent" else {}
    topic = KafkaTopic("out", "id INT NOT NULL, price INT NOT NULL", format=kind, format_options=options)
    frame = live.sql("SELECT 1 AS id, CAST(NULL AS INT) AS price")

    with pytest.raises(Exception, match=f"cannot be written to topic out as {kind}: .*'price' is"):
        _written(topic, frame)


def test_raw_sink_refuses_a_number(live: SparkSession) -> None:
    """Only strings and binary values can be written as raw bytes."""
    with pytest.raises(PlanError, match="column 'c' is INT and would be written as BINARY"):
        _written(KafkaTopic("out", format="raw"), live.sql("SELECT 1 AS c"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b'{"id":\n\t"x"}', '{"id": "x"}'),
        (b"\xff\0\1", "bytes FF0001"),
        (b"", ""),
        (None, "nothing"),
        ("ż".encode() * 300, "ż" * 200),
        (b"\xff" * 300, "bytes " + "FF" * 100),
    ],
    ids=["lines", "binary", "empty", "null", "long-text", "long-binary"],
)
def test_failure_shows_the_value_on_one_line(value: bytes | None, text: str, live: SparkSession) -> None:
    """Valid UTF-8 is shown as text."""
    names = "value BINARY, topic STRING, partition INT, offset BIGINT"
    frame = live.createDataFrame([(value, "bids", 3, 12)], names)

    assert frame.selectExpr(f"{show_payload('value')} AS text").collect()[0].text == text
    with pytest.raises(Exception, match=r"bids\[3\]@12 does not fit the schema") as error:
        frame.where(fail_with_payload("'does not fit the schema'")).collect()
    assert text in str(error.value)
