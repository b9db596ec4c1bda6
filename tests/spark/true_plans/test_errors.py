"""What a value-only edge cannot carry is an error that its user reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flowcore import Flow, KafkaTopic, KeyedProcessFunction, Parquet
from flowcore.api.operators import Read
from flowcore.elements import EndOfInput, Record, RecordAttributes, Watermark, WatermarkStatus
from flowcore.errors import RunError
from flowcore.serializers import TaggedSerializer
from flowcore.serializers.formats import RawFormat
from flowcore.settings import Settings
from flowcore.spark.run.session import live_session
from flowcore.spark.topics.incoming import Incoming

pytestmark = pytest.mark.spark

TAGGED: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())


class Times(KeyedProcessFunction):
    """Emits the time of each record."""

    def process(self, _record: Mapping[str, Any], context: Any) -> Iterator[Mapping[str, Any]]:
        yield {"at": context.timestamp_ms}


def test_timestamp_of_a_bounded_row_without_one_fails_the_stage(
    run: Callable[[Flow], Any], tmp_path: Path
) -> None:
    """The error has the operator and the argument that is missing."""
    pq.write_table(pa.table({"user": ["a"]}), tmp_path / "in.parquet")
    flow = Flow("f")
    read = flow.read("in", Parquet("in.parquet", schema="user STRING"))
    read.process(Times(), by="user", schema="at BIGINT", name="times").write("out", Parquet("out"))

    with pytest.raises(
        RunError, match=r"'times' asks for the timestamp of a row, which has none: .*timestamp="
    ):
        run(flow)


def _read(spark: SparkSession, elements: Any, values: list[bytes]) -> tuple[list[int], dict[bytes, str]]:
    topic = KafkaTopic("in", schema="a INT", elements=elements)
    node = Flow("f").read("in", topic).operator
    assert isinstance(node, Read)
    session = live_session(spark, Settings())
    fields = "partition INT, offset BIGINT, timestamp TIMESTAMP, value BINARY"
    messages = session.createDataFrame([(0, n, None, value) for n, value in enumerate(values)], fields)
    records, bad = Incoming.bounded(node, topic).split(messages)
    assert bad is not None
    rows = bad.selectExpr("value", "_reason").collect()
    return [row["a"] for row in records.collect()], {bytes(row["value"]): row["_reason"] for row in rows}


def test_element_in_a_value_only_topic_is_named(spark: SparkSession) -> None:
    """Records around it are read; the reason says how the two flows can agree."""
    others = {
        Watermark(1234): "is Watermark(timestamp_ms=1234)",
        WatermarkStatus(idle=True): "is WatermarkStatus",
        RecordAttributes(backlog=True): "is RecordAttributes",
        EndOfInput(): "is EndOfInput",
    }
    values = [b'{"a": 1}', *map(TAGGED.encode, others), b"bad", TAGGED.encode(Record(b'{"a": 2}'))]

    found, reasons = _read(spark, "value-only", values)

    assert found == [1]
    for element, name in others.items():
        reason = reasons[TAGGED.encode(element)]
        assert reason.startswith(f"{name}, and its topic is value-only and holds records only")
        assert "turn off watermarks" in reason
        assert "pipeline.force-timestamp-support" in reason
    assert "value-only" not in reasons[b"bad"]


def test_plain_topic_says_nothing_about_elements(spark: SparkSession) -> None:
    """Its bytes may be anything."""
    element = TAGGED.encode(Watermark(1234))

    _, reasons = _read(spark, "plain", [element])

    assert reasons[element].startswith("does not fit the schema")
