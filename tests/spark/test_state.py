"""The state in a real query's checkpoint is shown without the query."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from flowcore.elements import Watermark
from flowcore.errors import StateError
from flowcore.keyed.operator import KeyGroupOperator
from flowcore.process import KeyedProcessFunction
from flowcore.process.keyed import KeyedProcesses
from flowcore.settings import Settings
from flowcore.spark.run.inspection import KeyGroupState, NativeState, read_state
from flowcore.spark.run.session import live_session
from flowcore.testing.window_functions import CollectList
from flowcore.windows import (
    CountEvictor,
    SessionWindows,
    TumblingWindows,
    WindowAggregate,
    WindowConfig,
    WindowProcess,
)
from flowcore.windows.built_in import BuiltIn, BuiltIns
from flowcore.windows.columnar.keyed import ColumnarWindows
from flowcore.windows.keyed import RecordWindows
from tests.spark.stepped_query import SteppedQuery

ROWS = pa.schema([pa.field("user", pa.string()), pa.field("t", pa.int64()), pa.field("v", pa.int64())])
TOTALS = WindowAggregate(BuiltIns((("n", BuiltIn("count")), ("total", BuiltIn("sum", ("v",))))))


class Kept(KeyedProcessFunction):
    """Keeps a value, a map and timers of both kinds."""

    def open(self, context: Any) -> None:
        self.sum = context.value_state("sum", "BIGINT")
        self.seen = context.map_state("seen", "STRING", "BIGINT")

    def process(self, record: Any, context: Any) -> Any:
        self.sum.set(self.sum.get(0) + record["v"])
        self.seen[f"v{record['v']}"] = context.timestamp_ms
        context.register_event_timer(context.timestamp_ms + 1000)
        context.register_processing_timer(99_999_999_999_999)


def by_column(assigner: Any) -> ColumnarWindows:
    config = WindowConfig(assigner=assigner, function=TOTALS, allowed_lateness_ms=5)
    return ColumnarWindows(config=config, keys=("user",), timestamp="t", rows=ROWS)


def by_record() -> RecordWindows:
    config = WindowConfig(
        assigner=TumblingWindows(10), function=WindowProcess(CollectList()), evictor=CountEvictor(5)
    )
    return RecordWindows(
        name="lists", config=config, keys=("user",), key_of=_first, values=("v",), timestamp="t",
        rows=ROWS, results=pa.schema([]), record_of=_nothing,
    )  # fmt: skip


def _first(values: tuple[Any, ...]) -> Any:
    return values[0]


def _nothing(_: Any) -> dict[str, Any]:
    return {}


def process() -> KeyedProcesses:
    return KeyedProcesses(
        name="kept", function=Kept(), keys=("user",), values=("v",), timestamp="t", rows=ROWS,
        results=pa.schema([pa.field("v", pa.int64())]), side_outputs={},
    )  # fmt: skip


RECORDS = [("a", 1, 1), ("a", 2, 2), ("b", 12, 4), ("b", 30, 8)]


@pytest.fixture
def live(spark: SparkSession, tmp_path: Path) -> SparkSession:
    """A session with the configuration of live queries."""
    settings = Settings.of({"state.dir": tmp_path, "execution.shuffle-partitions": 1}, environment={})
    return live_session(spark, settings)


def checkpoint(live: SparkSession, folder: Path, operator: KeyGroupOperator, watermark_ms: int) -> Path:
    with SteppedQuery(live, operator, rows=ROWS, keys=("user",), folder=folder / "query") as steps:
        steps.step([dict(zip(ROWS.names, row, strict=True)) for row in RECORDS])
        steps.step([Watermark(watermark_ms)])
    return folder / "query" / "checkpoint"


def keys(found: Iterable[KeyGroupState | NativeState]) -> dict[str, dict[str, Any]]:
    shown = {}
    for each in found:
        assert isinstance(each, KeyGroupState)
        for key in each.held.keys or ():
            shown[key.key["user"]] = key.shown()
    return shown


CASES = {
    "panes": (
        by_column(TumblingWindows(10)),
        {"b": {"panes": [(10, 20, 1, 1, 4), (30, 40, 1, 1, 8)]}},
    ),
    "sessions": (
        by_column(SessionWindows(5)),
        {"b": {"windows": [(12, 17, 1, 1, 4), (30, 35, 1, 1, 8)]}},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_state_shows_windows_by_column(live: SparkSession, tmp_path: Path, name: str) -> None:
    """Complete windows are shown until their lateness ends; expired windows are not."""
    operator, expected = CASES[name]

    found = keys(read_state(live, checkpoint(live, tmp_path, operator, 20)))

    shown = {
        key: {
            what: [(each["start_ms"], each["end_ms"], *each["fields"].values()) for each in held[what]]
            for what in held
            if what != "key"
        }
        for key, held in found.items()
    }
    assert shown == expected


def test_state_shows_buffers_and_timers_of_windows_by_record(live: SparkSession, tmp_path: Path) -> None:
    """A window is shown with its number of records and its timers."""
    found = keys(read_state(live, checkpoint(live, tmp_path, by_record(), 5)))

    assert found["a"]["windows"] == [
        {"start_ms": 0, "end_ms": 10, "records": 2, "firings": 0, "event_timers": [9]}
    ]
    assert [each["records"] for each in found["b"]["windows"]] == [1, 1]


def test_state_shows_values_and_timers_of_process_functions(live: SparkSession, tmp_path: Path) -> None:
    """Values are shown by key; a timer that has fired is not."""
    found = keys(read_state(live, checkpoint(live, tmp_path, process(), 1001)))

    assert found["a"] == {
        "key": {"user": "a"},
        "states": {"sum": 3, "seen": {"v1": 1, "v2": 2}},
        "event_timers": [1002],
        "processing_timers": [99_999_999_999_999],
    }
    assert found["b"]["event_timers"] == [1012, 1030]


def test_state_shows_what_spark_aggregates_natively(live: SparkSession, tmp_path: Path) -> None:
    """Key and value are shown as Spark keeps them."""
    (tmp_path / "in").mkdir()
    live.range(10).selectExpr("id % 2 AS odd", "id").coalesce(1).write.json(str(tmp_path / "in/part"))
    frame = live.readStream.schema("odd BIGINT, id BIGINT").json(str(tmp_path / "in/part"))
    query = (
        frame.groupBy("odd").agg(F.sum("id").alias("total"))
        .writeStream.format("noop").outputMode("update").trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "native")).start()
    )  # fmt: skip
    query.awaitTermination()

    found = list(read_state(live, tmp_path / "native"))

    assert {(each.key["odd"], each.value["sum"]) for each in found if isinstance(each, NativeState)} == {
        (0, 20),
        (1, 25),
    }


def test_state_refuses_a_checkpoint_that_is_damaged(live: SparkSession, tmp_path: Path) -> None:
    """The error contains Spark's message."""
    damaged = checkpoint(live, tmp_path, by_column(TumblingWindows(10)), 20)
    for store in (damaged / "state/0").glob("[0-9]*"):
        shutil.rmtree(store)

    with pytest.raises(StateError, match=f"{damaged} cannot be read"):
        list(read_state(live, damaged))
