"""What a batch reports of the control elements in its topic is bounded, and no channel is left out."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from flowcore import Flow, KafkaTopic
from flowcore.api.operators import Read
from flowcore.elements import EndOfInput, RecordAttributes, Watermark, WatermarkStatus
from flowcore.serializers import TaggedSerializer
from flowcore.serializers.formats import RawFormat
from flowcore.settings import Settings
from flowcore.spark.frame.branches import Branch
from flowcore.spark.frame.rows import BRANCH, CHANNEL, ELEMENT, RowKind
from flowcore.spark.run.session import live_session
from flowcore.spark.topics.watermarks import observe_watermarks

pytestmark = pytest.mark.spark

TAGGED: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())
MOST = 2_048


@pytest.fixture
def live(spark: SparkSession) -> SparkSession:
    """A session with the configuration of live queries."""
    return live_session(spark, Settings.of({}, environment={}))


def _observed(frame: DataFrame) -> dict[str, Any]:
    read = Flow("f").read("bids", KafkaTopic("bids", "id BIGINT", elements="tagged")).operator
    assert isinstance(read, Read)
    metrics = observe_watermarks(read, Branch(1, {}), 0, f"{BRANCH} = 1")
    found: dict[str, Any] = frame.agg(*metrics).first().asDict()
    lists = {name: list(found[name] or ()) for name in ("watermarks", "others")}
    return {**lists, "count": found["others_count"]}


def _rows(
    live: SparkSession, count: int, element: str, *, offset: int, partition: int, channel: str
) -> DataFrame:
    """Rows with these control elements, whose expressions read the number ``id``."""
    return live.range(count).selectExpr(
        f"{partition} AS partition", f"id + {offset} AS offset", f"{RowKind.CONTROL} AS {BRANCH}",
        f"{element} AS {ELEMENT}", f"{channel} AS {CHANNEL}",
    )  # fmt: skip


def test_few_elements_are_all_reported(live: SparkSession) -> None:
    """Records and bad messages are not."""
    given = [Watermark(5), WatermarkStatus(idle=True), RecordAttributes(backlog=True), EndOfInput()]
    rows: list[tuple[Any, ...]] = [
        (number % 2, 7 - number, RowKind.CONTROL.value, TAGGED.encode(each), "a" if number else None)
        for number, each in enumerate(given)
    ]
    rows += [(0, 8, 1, b"x", "a"), (0, 9, RowKind.BAD.value, TAGGED.encode(Watermark(7)), "a")]
    types = f"partition INT, offset BIGINT, {BRANCH} INT, {ELEMENT} BINARY, {CHANNEL} STRING"

    found = _observed(live.createDataFrame(rows, types))

    assert [(row.partition, row.offset, row.channel) for row in found["watermarks"]] == [(0, 7, "")]
    assert sorted((row.offset, bytes.fromhex(row.element)) for row in found["others"]) == [
        (7 - number, TAGGED.encode(each)) for number, each in reversed([*enumerate(given)]) if number
    ]
    assert found["count"] == len(found["others"])
    assert _observed(live.createDataFrame(rows[-2:], types)) == {"watermarks": [], "others": [], "count": 0}


def test_of_many_elements_each_channel_of_each_partition_is_heard(live: SparkSession) -> None:
    """A partition with few records has low offsets; its newest watermark is missed by little."""
    growing = "unhex(concat('02', lpad(hex(id), 16, '0')))"
    parts = [
        _rows(live, 20_000, growing, offset=base, partition=partition, channel=f"'{channel}'")
        for partition, base in ((0, 0), (1, 1_000_000))
        for channel in "ab"
    ]

    found = _observed(reduce(DataFrame.union, parts))

    assert (len(found["watermarks"]), found["others"], found["count"]) == (MOST, [], 0)
    newest: dict[tuple[int, str], int] = {}
    for row in found["watermarks"]:
        watermark = TAGGED.decode(bytes.fromhex(row.element))
        assert isinstance(watermark, Watermark)
        time_ms = watermark.timestamp_ms
        newest[row.partition, row.channel] = max(newest.get((row.partition, row.channel), 0), time_ms)
    assert sorted(newest) == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
    assert all(19_500 < time_ms < 20_000 for time_ms in newest.values())


def test_of_many_forged_elements_the_last_ones_are_reported(live: SparkSession) -> None:
    """The end of time is not repeated, so that it is not among those that a sample may miss.

    The count shows that some are missed.
    """
    end = f"X'{TAGGED.encode(Watermark(2**63 - 1)).hex()}'"
    forged = _rows(live, 50_000, "X'0401'", offset=0, partition=0, channel="CAST(id AS STRING)")
    last = _rows(live, 1, end, offset=50_000, partition=0, channel="'a'")

    found = _observed(forged.union(last))

    assert (len(found["others"]), found["count"], found["watermarks"]) == (MOST, 50_001, [])
    assert max(found["others"], key=lambda row: row.offset).channel == "a"
    assert min(row.offset for row in found["others"]) == 50_001 - MOST
