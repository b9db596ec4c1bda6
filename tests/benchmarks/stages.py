"""Co-group of two bounded inputs: flowcore's blocking stage, against a stream and hand-written batch jobs.

The workload is that of FLIP-331: as many keys as records on each side, and no output before the end. flowcore
plans, runs and commits its stage, once with sums that Spark computes, and once with a Python function that is
called for each key, as in the FLIP's own program.

The stream is the same co-group in Structured Streaming over the same kind of files, with flowcore's tuning of
state stores: each micro-batch updates the state of its keys and emits the changes. Sums use Spark's native
aggregate, the function uses transformWithState. The batch jobs are one aggregate over both sides, a join of
two aggregates, and for the function ``cogroup(...).applyInArrow``.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import click
import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from flowcore import Flow, KafkaTopic, Parquet, Stream
from flowcore.errors import RunError
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.results.store import results_of
from flowcore.spark.run.flow import run_plan
from flowcore.spark.run.session import live_session, session
from pipelines.benchmark import Figures, Report
from tests.benchmarks._rounds import parts_of, ratio_by_slope, run_rates

SCHEMA = "id BIGINT, amount BIGINT"
RESULT = "id BIGINT, credit BIGINT, debit BIGINT"
SIDES = {"left": 7_368_787, "right": 9_999_991}
"""Primes: both sides have the same keys, in different orders."""
ANSWER = """
    SELECT count(*), sum(id), sum(credit), sum(debit), bit_xor(hash(id, credit, debit)) FROM ({rows})
"""
EXPECTED = """
    SELECT coalesce(l.id, r.id) AS id, credit, debit
    FROM (SELECT id, sum(amount)::BIGINT AS credit FROM '{folder}/left/*.parquet' GROUP BY id) l
    FULL JOIN (SELECT id, sum(amount)::BIGINT AS debit FROM '{folder}/right/*.parquet' GROUP BY id) r
        USING (id)
"""
LATEST = """
    SELECT id, arg_max(credit, batch) AS credit, arg_max(debit, batch) AS debit
    FROM '{folder}/batch-*/*.parquet' GROUP BY id
"""


@click.command()
@click.option("--records", default=5_000_000, show_default=True, help="Records of both sides together.")
@click.option(
    "--batch-records", default=100_000, show_default=True, help="Largest number of records in a micro-batch."
)
@click.option("--function-records", default=100_000, show_default=True, help="Records for the function.")
@click.option("--rounds", default=3, show_default=True, help="Counted runs of each contender.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, records: int, batch_records: int, function_records: int, rounds: int, as_json: bool) -> None:
    """A co-group as a blocking stage, against Structured Streaming and against batch by hand."""
    # Workers cannot import a benchmark.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory(prefix="flowcore-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        settings = Settings.of({"data.dir": folder, "state.dir": folder / "state"})
        with session(settings, "bench") as spark:
            bench = _Bench(spark, settings, folder)
            sums = bench.measured(
                rounds,
                records,
                {
                    "flowcore": lambda count: bench.ours(bench.prepare_files("whole", count), sums_flow),
                    "by hand, union": lambda count: bench.by_hand(
                        bench.prepare_files("whole", count), _united
                    ),
                    "by hand, join": lambda count: bench.by_hand(
                        bench.prepare_files("whole", count), _joined
                    ),
                    "stream": lambda count: bench.stream(
                        bench.prepare_files("streamed", count, max(1, round(count / batch_records))),
                        _balances,
                    ),
                },
            )
            function = bench.measured(
                rounds,
                function_records,
                {
                    "function, flowcore": lambda count: bench.ours(
                        bench.prepare_files("called", count), function_flow
                    ),
                    "function, by hand": lambda count: bench.by_hand(
                        bench.prepare_files("called", count), _applied
                    ),
                    "function, stream": lambda count: bench.stream(
                        bench.prepare_files("called", count), _stateful
                    ),
                },
            )
    ours, *by_hand, full = sums
    best = max(by_hand, key=lambda each: each.median)
    ours_function, by_hand_function, stateful = function
    compared = {
        "ratio_to_batch": (ours, best),
        "ratio_to_streaming": (ours, full),
        "function_ratio_to_batch": (ours_function, by_hand_function),
        "function_ratio_to_streaming": (ours_function, stateful),
    }
    cpu_s = min(median(each.cpu_s) for each in by_hand)
    Report(
        name="stages",
        workload=f"co-group of two bounded inputs, {records:,} records, as many keys as on each side; "
        f"the stream in micro-batches of {batch_records:,}; with a function {function_records:,}",
        figures=[*sums, *function],
        ratios={
            "ratio_to_batch_cpu": cpu_s / median(ours.cpu_s),
            **{name: one.median / other.median for name, (one, other) in compared.items()},
            **{
                key: ratio
                for name, pair in compared.items()
                for key, ratio in ratio_by_slope(name, *pair).items()
            },
        },
        verified="count, sums and a hash over all rows of every output, against DuckDB over the same files",
    ).show(as_json=as_json)


def sums_flow(folder: Path) -> Flow:
    """A co-group with sums, which a live query waits for."""
    made = Flow("bench")
    left, right = _sides(made, folder)
    balances = left.co_group(
        right, on="id", credit="sum(left.amount)", debit="sum(right.amount)", name="balances"
    )
    return _waited_for(made, balances)


def function_flow(folder: Path) -> Flow:
    """The same with a function."""
    made = Flow("bench")
    left, right = _sides(made, folder)
    return _waited_for(made, left.co_group(right, balance, on="id", schema=RESULT, name="balances"))


def balance(key: int, left: list[dict[str, int]], right: list[dict[str, int]]) -> Iterator[dict[str, int]]:
    """The sums of one key."""
    credit, debit = (sum([record["amount"] for record in side]) for side in (left, right))
    yield {"id": key, "credit": credit, "debit": debit}


def _sides(made: Flow, folder: Path) -> Iterator[Stream]:
    return (made.read(side, Parquet(str(folder / side), schema=SCHEMA)) for side in SIDES)


def _waited_for(made: Flow, balances: Stream) -> Flow:
    live = made.read("live", KafkaTopic("live", schema=SCHEMA))
    live.join(balances, on="id").write("out", KafkaTopic("out"))
    return made


@dataclass(frozen=True, slots=True)
class _Given:
    """Two folders of Parquet files, and the expected result."""

    folder: Path
    records: int
    answer: tuple[Any, ...]

    def check(self, rows: str, folder: Path) -> None:
        found = _ask(rows, folder)
        if found != self.answer:
            msg = f"{folder}: DuckDB finds {self.answer} and the output has {found}: its speed is meaningless"
            raise RunError(msg)


@dataclass(frozen=True, slots=True)
class _Bench:
    spark: SparkSession
    settings: Settings
    folder: Path

    def prepare_files(self, name: str, records: int, files: int = 2) -> _Given:
        folder, keys = self.folder / f"{name}-{records}", records // 2
        if folder.exists():
            return _Given(folder, records, _ask(EXPECTED, folder))
        for side, prime in SIDES.items():
            rows = self.spark.range(0, keys, 1, files)
            amounts = rows.selectExpr(f"(id * {prime}) % {keys} AS id", "pmod(xxhash64(id), 1000) AS amount")
            amounts.write.parquet(str(folder / side))
        return _Given(folder, records, _ask(EXPECTED, folder))

    def ours(self, given: _Given, declare: Callable[[Path], Flow]) -> Callable[[], float]:
        states = (given.folder / f"state-{number}" for number in itertools.count())

        def run() -> float:
            fresh = replace(self.settings, state_dir=next(states))
            began = time.perf_counter()
            plan = plan_flow(declare(given.folder), settings=fresh)
            context = Context(self.spark, fresh, plan.flow)
            run_plan(replace(plan, live=None), context)
            taken = time.perf_counter() - began
            table = results_of(context).require("balances").tables["balances"]
            root = results_of(context).folder("balances").root
            files = ", ".join(f"'{root / file.path}'" for file in table.files)
            given.check(f"FROM read_parquet([{files}])", given.folder)
            shutil.rmtree(fresh.state_dir)
            return taken

        return run

    def by_hand(
        self, given: _Given, made: Callable[[DataFrame, DataFrame], DataFrame]
    ) -> Callable[[], float]:
        output = given.folder / made.__name__

        def run() -> float:
            began = time.perf_counter()
            left, right = (self.spark.read.schema(SCHEMA).parquet(str(given.folder / side)) for side in SIDES)
            made(left, right).write.mode("overwrite").parquet(str(output))
            taken = time.perf_counter() - began
            given.check("FROM '{folder}/*.parquet'", output)
            return taken

        return run

    def measured(
        self, rounds: int, records: int, contenders: Mapping[str, Callable[[int], Callable[[], float]]]
    ) -> list[Figures]:
        """Speeds of contenders, which are prepared for a number of records and then return seconds."""
        prepared = {
            name: {count: prepare(count) for count in parts_of(records)}
            for name, prepare in contenders.items()
        }
        runs = {name: (lambda count, of=of: of[count]()) for name, of in prepared.items()}
        return run_rates(rounds, runs, records)

    def stream(self, given: _Given, made: Callable[[DataFrame, DataFrame], DataFrame]) -> Callable[[], float]:
        """The co-group as a stream; each micro-batch is one file of each side."""
        live = live_session(self.spark, self.settings)
        read = live.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        folders = (given.folder / f"stream-{number}" for number in itertools.count())

        def run() -> float:
            folder = next(folders)

            def write(frame: DataFrame, batch: int) -> None:
                frame.withColumn("batch", F.lit(batch)).write.parquet(str(folder / f"batch-{batch}"))

            began = time.perf_counter()
            query = (
                made(*(read.parquet(str(given.folder / side)) for side in SIDES))
                .writeStream.outputMode("update")
                .option("checkpointLocation", str(folder / "checkpoint"))
                .trigger(availableNow=True)
                .foreachBatch(write)
                .start()
            )
            query.awaitTermination()
            taken = time.perf_counter() - began
            given.check(LATEST, folder)
            shutil.rmtree(folder)
            return taken

        return run


def _both(left: DataFrame, right: DataFrame) -> DataFrame:
    credit = left.selectExpr("id", "amount AS credit", "CAST(NULL AS BIGINT) AS debit")
    return credit.union(right.selectExpr("id", "CAST(NULL AS BIGINT) AS credit", "amount AS debit"))


def _balances(left: DataFrame, right: DataFrame) -> DataFrame:
    grouped = _both(left, right).groupBy("id")
    return grouped.agg(F.sum("credit").alias("credit"), F.sum("debit").alias("debit"))


def _united(left: DataFrame, right: DataFrame) -> DataFrame:
    return _balances(left, right)


def _joined(left: DataFrame, right: DataFrame) -> DataFrame:
    credit = left.groupBy("id").agg(F.sum("amount").alias("credit"))
    return credit.join(right.groupBy("id").agg(F.sum("amount").alias("debit")), on="id", how="full")


def _applied(left: DataFrame, right: DataFrame) -> DataFrame:
    return left.groupBy("id").cogroup(right.groupBy("id")).applyInArrow(_balance_of_tables, RESULT)


def _balance_of_tables(key: tuple[Any, ...], left: pa.Table, right: pa.Table) -> pa.Table:
    credit, debit = (pc.sum(side["amount"]) for side in (left, right))
    return pa.table({"id": [key[0].as_py()], "credit": [credit.as_py()], "debit": [debit.as_py()]})


def _stateful(left: DataFrame, right: DataFrame) -> DataFrame:
    grouped = _both(left, right).groupBy("id")
    return grouped.transformWithState(_Balances(), RESULT, "Update", "None")


class _Balances(StatefulProcessor):
    """Keeps both sums of a key, which costs less than keeping its records and calling a function."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.sums = handle.getValueState("sums", "credit BIGINT, debit BIGINT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        found = [self.sums.get() or (0, 0), *((row["credit"], row["debit"]) for row in rows)]
        credit, debit = (sum(each or 0 for each in side) for side in zip(*found, strict=True))
        self.sums.update((credit, debit))
        yield Row(id=key[0], credit=credit, debit=debit)

    def close(self) -> None:
        pass


def _ask(rows: str, folder: Path) -> tuple[Any, ...]:
    with duckdb.connect() as connection:
        text = ANSWER.replace("{rows}", rows).replace("{folder}", str(folder))
        found: tuple[Any, ...] = connection.execute(text).fetchall()[0]
        return found
