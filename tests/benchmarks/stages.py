"""A co-group of two bounded inputs: flowcore's blocking stage, against a stream and against batch by hand.

The workload of FLIP-331: as many keys as records on each side, and nothing comes out before the end. flowcore
plans, runs and commits its stage. The stream is the same co-group as Structured Streaming over the same kind
of files, with flowcore's own tuning of state stores: records update the state of their key, and what has
changed is put out. It gets smaller inputs, of two sizes to see how its time grows. Batch by hand is written
in the two ways that suggest themselves: one aggregate over both sides, and a join of two.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import duckdb
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.errors import RunError
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.run import SilentListener, run_stages
from flowcore.spark.session import live_session, session
from flowcore.testing.benchmark import Figures, Report, in_turn

SCHEMA = "id BIGINT, amount BIGINT"
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
    FROM '{folder}/*/*.parquet' GROUP BY id
"""


@click.command()
@click.option("--records", default=20_000_000, show_default=True, help="Records of both sides.")
@click.option(
    "--streaming-records", default=2_000_000, show_default=True, help="Of both sides, for the stream."
)
@click.option("--batch-records", default=500_000, show_default=True, help="Most records of a micro-batch.")
@click.option("--rounds", default=3, show_default=True, help="Counted runs of each contender but the stream.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(records: int, streaming_records: int, batch_records: int, rounds: int, *, as_json: bool) -> None:
    """A co-group as a blocking stage, against Structured Streaming and against batch by hand."""
    folder = Path(tempfile.mkdtemp(prefix="flowcore-bench-"))
    settings = Settings.of({"data.dir": folder, "state.dir": folder / "state"})
    try:
        with session(settings, "bench") as spark:
            whole = _Input(spark, folder / "whole", records, files=2)
            figures = _batches(spark, settings, whole, rounds)
            half, full = (
                _stream(spark, settings, folder, number, batch_records)
                for number in (streaming_records // 2, streaming_records)
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    ours, *by_hand = (figure.median for figure in figures)
    Report(
        name="stages",
        workload=f"co-group of two bounded inputs, {records:,} records, as many keys as records on each "
        f"side; the stream over {streaming_records // 2:,} and {streaming_records:,} records, in "
        f"micro-batches of {batch_records:,}",
        figures=[
            *figures,
            Figures("stream, half", "records/s", [half]),
            Figures("stream", "records/s", [full]),
        ],
        ratios={
            "ratio_to_batch": ours / max(by_hand),
            "ratio_to_streaming": ours / full,
            "streaming_speed_kept": full / half,
            "streaming_seconds_extrapolated": records / full,
        },
        verified="count, sums and a hash over all rows of every output, against DuckDB over the same files",
    ).show(as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Input:
    """Two folders of Parquet files, and the answer over them."""

    folder: Path
    records: int
    answer: tuple[Any, ...]

    def __init__(self, spark: SparkSession, folder: Path, records: int, *, files: int) -> None:
        keys = records // 2
        for side, prime in SIDES.items():
            rows = spark.range(0, keys, 1, files)
            amounts = rows.selectExpr(f"(id * {prime}) % {keys} AS id", "pmod(xxhash64(id), 1000) AS amount")
            amounts.write.parquet(str(folder / side))
        object.__setattr__(self, "folder", folder)
        object.__setattr__(self, "records", records)
        object.__setattr__(self, "answer", _ask(EXPECTED, folder))

    def check(self, rows: str, folder: Path, name: str) -> None:
        found = _ask(rows, folder)
        if found != self.answer:
            msg = f"{name}: DuckDB finds {self.answer} and the output has {found}, so its speed means nothing"
            raise RunError(msg)


def flow(folder: Path) -> Flow:
    """A co-group that a live query waits for."""
    made = Flow("bench")
    left, right = (made.read(side, Parquet(str(folder / side), schema=SCHEMA)) for side in SIDES)
    balances = left.co_group(
        right, on="id", credit="sum(left.amount)", debit="sum(right.amount)", name="balances"
    )
    made.read("live", KafkaTopic("live", schema=SCHEMA)).join(balances, on="id").write(
        "out", KafkaTopic("out")
    )
    return made


def _batches(spark: SparkSession, settings: Settings, given: _Input, rounds: int) -> list[Figures]:
    states = (given.folder / f"state-{number}" for number in itertools.count())

    def ours(_round: int) -> float:
        fresh = replace(settings, state_dir=next(states))
        began = time.perf_counter()
        plan = plan_flow(flow(given.folder), settings=fresh)
        context = Context(spark, fresh, plan.flow)
        run_stages(plan, context, refresh=False, listener=SilentListener())
        taken = time.perf_counter() - began
        manifest = context.results.require("balances")
        root = context.results.folder("balances").root
        files = ", ".join(f"'{root / file.path}'" for file in manifest.tables["balances"].files)
        given.check(f"SELECT * FROM read_parquet([{files}])", given.folder, "flowcore")  # noqa: S608 - names of files made here
        shutil.rmtree(fresh.state_dir)
        return given.records / taken

    def by_hand(write: Callable[[SparkSession, Path], DataFrame], name: str, _round: int) -> float:
        began = time.perf_counter()
        write(spark, given.folder).write.mode("overwrite").parquet(str(given.folder / "by-hand"))
        taken = time.perf_counter() - began
        given.check("FROM '{folder}/by-hand/*.parquet'", given.folder, name)
        return given.records / taken

    contenders: dict[str, Callable[[int], float]] = {
        "flowcore": ours,
        "by hand, union": partial(by_hand, _united, "union by hand"),
        "by hand, join": partial(by_hand, _joined, "join by hand"),
    }
    in_turn(1, *contenders.values())  # warm up: code generation and class loading
    found = in_turn(rounds, *contenders.values())
    return [Figures(name, "records/s", each) for name, each in zip(contenders, found, strict=True)]


def _sides(spark: SparkSession, folder: Path) -> Iterator[DataFrame]:
    return (spark.read.schema(SCHEMA).parquet(str(folder / side)) for side in SIDES)


def _united(spark: SparkSession, folder: Path) -> DataFrame:
    return _balances(*_sides(spark, folder))


def _balances(left: DataFrame, right: DataFrame) -> DataFrame:
    credit = left.selectExpr("id", "amount AS credit", "CAST(NULL AS BIGINT) AS debit")
    debit = right.selectExpr("id", "CAST(NULL AS BIGINT) AS credit", "amount AS debit")
    grouped = credit.union(debit).groupBy("id")
    return grouped.agg(F.sum("credit").alias("credit"), F.sum("debit").alias("debit"))


def _joined(spark: SparkSession, folder: Path) -> DataFrame:
    left, right = _sides(spark, folder)
    credit = left.groupBy("id").agg(F.sum("amount").alias("credit"))
    return credit.join(right.groupBy("id").agg(F.sum("amount").alias("debit")), on="id", how="full")


def _stream(spark: SparkSession, settings: Settings, folder: Path, records: int, batch_records: int) -> float:
    """Records a second of the co-group as a stream; its checkpoint's batches are parts of the files."""
    files = max(1, round(records / batch_records))
    given = _Input(spark, folder / f"streamed-{records}", records, files=files)
    live = live_session(spark, settings)
    sides = (
        live.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(given.folder / side))
        for side in SIDES
    )
    changes = given.folder / "changes"

    def write(frame: DataFrame, batch: int) -> None:
        frame.withColumn("batch", F.lit(batch)).write.parquet(str(changes / f"batch-{batch}"))

    began = time.perf_counter()
    query = (
        _balances(*sides)
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(given.folder / "checkpoint"))
        .trigger(availableNow=True)
        .foreachBatch(write)
        .start()
    )
    query.awaitTermination()
    taken = time.perf_counter() - began
    given.check(LATEST.replace("{folder}", str(changes)), changes, "stream")
    return records / taken


def _ask(rows: str, folder: Path) -> tuple[Any, ...]:
    with duckdb.connect() as connection:
        text = ANSWER.replace("{rows}", rows).replace("{folder}", str(folder))
        found: tuple[Any, ...] = connection.execute(text).fetchall()[0]
        return found
