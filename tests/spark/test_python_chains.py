"""Consecutive Python operators run in one call of a worker, on the columns that they use."""

from __future__ import annotations

import datetime as dt
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flowcore import Flow, KeyedProcessFunction, Parquet, Stream
from flowcore.errors import RunError
from flowcore.planner import plan_flow
from flowcore.planner.rules.columns import find_used_columns
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.operators.python_chain import apply_bounded_chain
from flowcore.spark.run.flow import run_plan

pytestmark = pytest.mark.spark

Run = Callable[..., Any]
Rows = Callable[[str], list[tuple[Any, ...]]]
SALES = "id BIGINT, shop STRING, region BIGINT, price DOUBLE"


def _sales(flow: Flow) -> Stream:
    return flow.read("sales", Parquet("sales", schema=SALES))


def _rate(record: dict[str, Any]) -> dict[str, Any]:
    return {"id": record["id"], "rate": (record["price"] or 0.0) * 2, "tags": [record["shop"], None]}


def _halves(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for half in range(2):
        yield {**record, "rate": record["rate"] / 2, "half": half}


def _rounded(batch: pa.RecordBatch) -> pa.RecordBatch:
    position = batch.schema.get_field_index("rate")
    rates: list[Any] = batch["rate"].to_pylist()
    return batch.set_column(position, "rate", pa.array([round(each) for each in rates]))


@pytest.mark.usefixtures("tables")
def test_chain_of_every_kind_gives_what_sql_gives(run: Run, rows: Rows) -> None:
    """The chain has native operators upstream and downstream."""
    flow = Flow("f")
    cheap = _sales(flow).where("price < 50").select("id", "shop", "price")
    rated = cheap.map(_rate, schema="id BIGINT, rate DOUBLE, tags ARRAY<STRING>")
    halves = rated.filter(lambda r: r["id"] % 2 == 0).flat_map(
        _halves, schema="half INT, id BIGINT, rate DOUBLE, tags ARRAY<STRING>"
    )
    rounded = halves.map_batches(_rounded, schema="id BIGINT, half INT, rate BIGINT, tags ARRAY<STRING>")
    rounded.select("id", "half", "rate", "tags[0] as shop").write("out", Parquet("out"))

    run(flow)

    expected = rows(
        "SELECT id, half, round_even(price, 0)::BIGINT, shop "
        "FROM '{dir}/sales/*.parquet', range(2) AS t(half) WHERE price < 50 AND id % 2 = 0"
    )
    assert len(expected) == 12
    assert rows("SELECT id, half, rate, shop FROM '{dir}/out/*.parquet'") == expected


def _plan(context: Context, flow: Flow) -> str:
    """Physical plan of a flow's only chain."""
    (stage,) = plan_flow(flow, settings=context.settings).bounded
    (chain,) = stage.chains
    ends = [result.operator for result in stage.results]
    read = context.spark.read.schema(SALES).parquet(context.path("sales"))
    frame, _ = apply_bounded_chain(chain, read, find_used_columns(stage.operators, ends), ends, "off")
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.usefixtures("tables")
def test_chain_is_one_call_on_the_columns_it_uses(context: Context) -> None:
    """The plan has one Python node, and the scan reads no other columns."""
    flow = Flow("f")
    only = _sales(flow).filter(lambda r: r["id"] > 3, uses=["id"])
    doubled = only.map(lambda r: {"price": r["price"]}, schema="price DOUBLE, note STRING", uses=["price"])
    doubled.flat_map(lambda r: [{"price": r["price"]}], schema="price DOUBLE").write("out", Parquet("out"))

    plan = _plan(context, flow)

    assert plan.count("MapInArrow") == 1
    assert "ArrowEvalPython" not in plan
    (read,) = re.findall(r"ReadSchema: struct<(.*?)>", plan)
    assert read == "id:bigint,price:double"


class Counting:
    """Records its calls in files, since it is called in other processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self) -> None:
        self._note("open")

    def close(self) -> None:
        self._note("close")

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        self._note("record")
        return record

    def _note(self, what: str) -> None:
        with (self.folder / what).open("a") as file:
            file.write("x")

    def noted(self) -> dict[str, int]:
        """Number of calls by method."""
        return {file.name: file.stat().st_size for file in self.folder.iterdir()}


@pytest.mark.usefixtures("tables")
def test_fan_out_within_a_chain_calls_each_function_once(run: Run, rows: Rows, tmp_path: Path) -> None:
    """Each branch is written by a separate job; a rich function is opened once per task."""
    (tmp_path / "calls").mkdir()
    counting = Counting(tmp_path / "calls")
    flow = Flow("f")
    same = _sales(flow).map(counting, schema=SALES)
    same.filter(lambda r: r["region"] == 1).write("one", Parquet("one"))
    same.map(lambda r: {"id": -r["id"]}, schema="id BIGINT").write("two", Parquet("two"))

    run(flow)

    assert counting.noted() == {"open": 1, "record": 12, "close": 1}
    assert rows("SELECT * FROM '{dir}/one/*.parquet'") == rows(
        "SELECT * FROM '{dir}/sales/*.parquet' WHERE region = 1"
    )
    assert rows("SELECT id FROM '{dir}/two/*.parquet'") == [(-number,) for number in range(11, -1, -1)]


@pytest.mark.usefixtures("tables")
def test_result_within_a_chain_is_complete(context: Context, rows: Rows) -> None:
    """A live query joins a result that another function of the stage reads, too."""
    from flowcore import KafkaTopic  # noqa: PLC0415 - only this test needs it

    flow = Flow("f")
    marked = _sales(flow).map(lambda r: {**r, "mark": "m"}, schema=f"{SALES}, mark STRING", name="marked")
    marked.map(lambda r: {"id": r["id"] * 2}, schema="id BIGINT", name="twice").write("out", Parquet("out"))
    bids = flow.read("bids", KafkaTopic("bids", schema="id BIGINT"))
    bids.join(marked, on="id").write("joined", KafkaTopic("joined"))
    plan = plan_flow(flow, settings=context.settings)

    run_plan(replace(plan, live=None), context)

    assert rows("SELECT id FROM '{dir}/out/*.parquet'") == [(2 * number,) for number in range(12)]
    found = rows("SELECT id, shop, region, price, mark FROM '{dir}/state/f/results/**/marked/*.parquet'")
    assert found == rows("SELECT *, 'm' FROM '{dir}/sales/*.parquet'")


@pytest.mark.usefixtures("tables")
def test_native_operators_find_the_columns_that_a_later_one_drops(run: Run, rows: Rows) -> None:
    """A native operator of a stage computes all its columns, so a chain upstream emits what they need."""
    flow = Flow("f")
    marked = _sales(flow).map(lambda r: {**r, "mark": "m"}, schema=f"{SALES}, mark STRING")
    twice = marked.with_columns(twice="id * 2")
    joined = twice.join(_sales_again(flow), on="id").union(twice.select("*", "price as paid"))
    ranked = joined.deduplicate(by="id", within=None, timestamp="cast(paid as BIGINT)").top_n(
        1, by="id", order="paid"
    )
    ranked.select("id", "twice").write("out", Parquet("out"))

    run(flow)

    assert rows("SELECT id, twice FROM '{dir}/out/*.parquet'") == [(n, 2 * n) for n in range(12)]


def _sales_again(flow: Flow) -> Stream:
    return flow.read("again", Parquet("sales", schema=SALES)).select("id", "price as paid")


def _draw(record: dict[str, Any]) -> dict[str, Any]:
    return {"id": record["id"], "chance": random.random()}  # noqa: S311 - it is no secret


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("keyed", [False, True])
def test_readers_within_one_output_get_the_same_call(keyed: bool, run: Run, rows: Rows) -> None:
    """A function runs once, so both parts of a union see the same random number."""
    flow = Flow("f")
    sales = _sales(flow)
    if keyed:
        drawn = sales.process(_Drawing(), by="shop", schema="id BIGINT, chance DOUBLE")
    else:
        drawn = sales.map(_draw, schema="id BIGINT, chance DOUBLE")
    drawn.where("chance < 0.5").union(drawn.where("chance >= 0.5")).write("out", Parquet("out"))

    run(flow)

    assert rows("SELECT id FROM '{dir}/out/*.parquet'") == [(number,) for number in range(12)]


class _Drawing(KeyedProcessFunction):
    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002
        yield _draw(record)


TYPES = {
    "b": ("BOOLEAN", True),
    "i": ("INT", -1),
    "f": ("FLOAT", 0.5),
    "s": ("STRING", "ä"),
    "x": ("BINARY", b"\xff"),
    "dec": ("DECIMAL(20, 3)", Decimal("12345678901234567.125")),
    "d": ("DATE", dt.date(1900, 1, 1)),
    "t": ("TIMESTAMP", dt.datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=dt.UTC)),
    "n": ("TIMESTAMP_NTZ", dt.datetime(2024, 2, 29, 23, 59, 59, 999999)),  # noqa: DTZ001 - it has none
    "l": ("ARRAY<STRUCT<a: INT, m: MAP<STRING, DOUBLE>>>", [{"a": 1, "m": {"k": 0.5}}, None]),
    "m": ("MAP<STRING, ARRAY<BIGINT>>", {"k": [1, None]}),
}


def test_values_of_every_type_reach_functions_as_python_has_them(run: Run, tmp_path: Path) -> None:
    """Values and nulls pass to a function and back unchanged."""
    values = {name: value for name, (_, value) in TYPES.items()}

    def check(record: dict[str, Any]) -> bool:
        found = {name: record[name] for name in values}
        assert found in (values, dict.fromkeys(values)), found
        return True

    def make(record: dict[str, Any]) -> dict[str, Any]:
        return {"id": record["id"], **(values if record["id"] else dict.fromkeys(values))}

    pq.write_table(pa.table({"id": [0, 1]}), tmp_path / "in.parquet")
    schema = "id BIGINT, " + ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
    flow = Flow("f")
    made = flow.read("in", Parquet("in.parquet", schema="id BIGINT")).map(make, schema=schema)
    # A native operator in between: what one function made is read back from Spark by the next.
    made.where("id >= 0").select("*", "id + 1 as next").filter(check).write("out", Parquet("out"))

    run(flow)

    table = pq.read_table(tmp_path / "out", coerce_int96_timestamp_unit="us").sort_by("id")
    position = table.schema.get_field_index("t")  # Spark's files do not declare that it is in UTC
    table = table.set_column(position, "t", table["t"].cast(pa.timestamp("us", "UTC")))
    found = table.to_pylist(maps_as_pydicts="strict")
    assert {name: found[1][name] for name in values} == values
    assert {name: found[0][name] for name in values} == dict.fromkeys(values)


class _Labels:
    """Adds to each record whether it is backlog."""

    status: bool | None = None

    def process_record_attributes(self, attributes: Any) -> None:
        self.status = attributes.backlog

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        return {"id": record["id"], "backlog": self.status}


@pytest.mark.usefixtures("tables")
def test_all_records_of_a_stage_are_backlog(run: Run, rows: Rows) -> None:
    """A function that asks for the attributes of its records is notified before the first one."""
    flow = Flow("f")
    _sales(flow).map(_Labels(), schema="id BIGINT, backlog BOOLEAN").write("out", Parquet("out"))

    run(flow)

    expected = rows("SELECT id, true FROM '{dir}/sales/*.parquet'")
    assert expected
    assert rows("SELECT id, backlog FROM '{dir}/out/*.parquet'") == expected


def _fail(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "price": 1 // (record["id"] - 5)}


def _spoil(record: dict[str, Any]) -> dict[str, Any]:
    record["price"] = 0.0
    return record


@pytest.mark.parametrize(
    ("function", "check", "says"),
    [
        (_fail, "off", "operator 'bad': its function raised ZeroDivisionError.*test_python_chains.py"),
        (lambda _: {"id": 1}, "off", "operator 'bad' emits a record without the column 'shop'"),
        (_spoil, "full", "operator 'bad'.*column 'price'.*input_record_stored=False"),
        (_spoil, "sample", "operator 'bad'.*column 'price'.*input_record_stored=False"),
    ],
    ids=["raises", "misfit", "lie", "sampled-lie"],
)
@pytest.mark.usefixtures("tables")
def test_failure_in_a_worker_names_the_operator(
    spark: SparkSession, settings: Settings, function: Callable[..., Any], check: str, says: str
) -> None:
    """The error has the exception's message, without a stack."""
    settings = Settings.of(
        {
            "data.dir": settings.data_dir,
            "state.dir": settings.state_dir,
            "pipeline.object-reuse-check": check,
        },
        environment={},
    )
    flow = Flow("f")
    same = _sales(flow).map(lambda r: r, schema=SALES)
    same.map(function, schema=SALES, name="bad").write("out", Parquet("out"))

    with pytest.raises(RunError, match=says) as caught:
        run_plan(plan_flow(flow, settings=settings), Context(spark, settings, "f"))

    assert "Traceback" not in str(caught.value)


@pytest.mark.usefixtures("tables")
def test_functions_without_columns_are_called_for_every_record(run: Run, rows: Rows) -> None:
    """Only the number of records matters."""
    flow = Flow("f")
    ones = _sales(flow).map(lambda _: {"one": 1}, schema="one BIGINT", uses=[])
    ones.aggregate(n="count(*)").write("out", Parquet("out"))

    run(flow)

    assert rows("SELECT n FROM '{dir}/out/*.parquet'") == [(12,)]
