"""Records with mostly distinct keys are grouped once, after the shuffle; others also before it."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from flowcore import Flow, Parquet, Stream
from flowcore.api.operators import Operator
from flowcore.spark.operators import batch, distinct_keys

pytestmark = pytest.mark.spark

SCHEMA = "id BIGINT, amount BIGINT"


@pytest.fixture(autouse=True)
def _sample_small_inputs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(distinct_keys, "WORTH_BYTES", 0)
    for name, keys in {"unique": 1_000, "other": 1_000, "repeated": 900}.items():
        (tmp_path / name).mkdir()
        table = pa.table({"id": [number % keys for number in range(1_000)], "amount": range(1_000)})
        pq.write_table(table, tmp_path / name / "part-0.parquet")


def _read(name: str) -> Stream:
    return Flow("f").read(name, Parquet(name, schema=SCHEMA))


def _compiled(stream: Stream, spark: SparkSession, folder: Path) -> DataFrame:
    frames: dict[Operator, DataFrame] = {}
    for node in stream.operator.upstream:
        frames[node] = (
            batch.apply_native(node, frames) if node.inputs else spark.read.parquet(str(folder / node.name))
        )
    return frames[stream.operator]


def _aggregates(frame: DataFrame) -> int:
    plan: str = frame._jdf.queryExecution().executedPlan().toString()
    return plan.count("HashAggregate")


@pytest.mark.parametrize(
    ("declare", "aggregates"),
    [
        (lambda: _read("unique").aggregate(by="id", total="sum(amount)"), 1),
        (lambda: _read("unique").select("id + 1 as id", "amount").aggregate(by="id", total="sum(amount)"), 1),
        (lambda: _read("repeated").aggregate(by="id", total="sum(amount)"), 2),
        (lambda: _read("unique").where("amount >= 0").aggregate(by="id", total="sum(amount)"), 2),
        (lambda: _co_group("unique", "other"), 1),
        (lambda: _co_group("unique", "repeated"), 2),
    ],
    ids=["unique", "projected", "repeated", "filtered", "both-unique", "one-repeated"],
)
def test_records_of_distinct_keys_are_aggregated_once(
    declare: object, aggregates: int, spark: SparkSession, tmp_path: Path
) -> None:
    """If a filter could make Spark read all rows for the sample, nothing is sampled."""
    frame = _compiled(declare(), spark, tmp_path)  # type: ignore[operator]

    assert _aggregates(frame) == aggregates
    found = frame.toArrow().to_pydict()
    assert sum(found["total"]) == sum(range(1_000))
    assert len(set(found["id"])) == len(found["id"])


def test_aggregate_of_all_records_has_no_keys_to_sample(spark: SparkSession, tmp_path: Path) -> None:
    """All records are one group."""
    frame = _compiled(_read("unique").aggregate(total="sum(amount)"), spark, tmp_path)

    assert frame.toArrow().to_pydict() == {"total": [sum(range(1_000))]}


def test_small_inputs_are_not_sampled(
    monkeypatch: pytest.MonkeyPatch, spark: SparkSession, tmp_path: Path
) -> None:
    """The sample would take as long as it could save."""
    monkeypatch.undo()

    assert _aggregates(_compiled(_co_group("unique", "other"), spark, tmp_path)) == 2


def _co_group(left: str, right: str) -> Stream:
    flow = Flow("f")
    sides = [flow.read(name, Parquet(name, schema=SCHEMA)) for name in (left, right)]
    return sides[0].co_group(sides[1], on="id", total="sum(left.amount)", n="count(right)")
