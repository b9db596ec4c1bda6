"""Interval join of two topics from Kafka to Kafka, against Spark's own stream-stream join.

Both run in slice mode in one session, with the same sizes of Kafka batches and buffers. Orders and payments
come up to three seconds out of order; a payment belongs to an order if it is at most ten seconds later.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import click
import duckdb
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from flowcore import Flow, KafkaTopic
from flowcore.errors import RunError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import ensure_topics
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.run.flow import open_context
from flowcore.spark.run.live_stage import LiveRun
from flowcore.spark.run.session import live_session
from flowcore.watermarks import bounded_out_of_orderness
from pipelines.auctions.readers import read_rows
from pipelines.benchmark import Report
from pipelines.nexmark import feed
from tests.benchmarks._answers import count_differences
from tests.benchmarks._rounds import ratio_by_slope, run_rates
from tests.benchmarks._window_rivals import TUNED_READ, TUNED_WRITE

PARTITIONS = 2
BATCH = 250_000
"""Records of each topic in a batch."""
BEGIN_MS, SPAN_MS, DELAY_MS, AFTER_MS = 1_700_000_000_000, 100_000, 3_000, 10_000
SCHEMAS = {
    "orders": "id BIGINT, item BIGINT, at BIGINT",
    "payments": "order_id BIGINT, amount BIGINT, paid BIGINT",
}
PAIRS = pa.schema({"id": pa.int64(), "item": pa.int64(), "amount": pa.int64()})


@click.command()
@click.option("--records", default=1_000_000, show_default=True, help="Records of each side.")
@click.option("--rounds", default=3, show_default=True, help="Counted runs of each contender.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(records: int, rounds: int, *, as_json: bool) -> None:
    """Throughput of an interval join of two topics, against Spark's own."""
    with (
        tempfile.TemporaryDirectory(prefix="flowcore-bench-", ignore_cleanup_errors=True) as folder,
        EmbeddedBroker() as broker,
    ):
        settings = Settings.of(
            {
                "kafka.bootstrap.servers": broker.bootstrap_servers,
                "state.dir": f"{folder}/state",
                "execution.max-records-per-batch": 2 * BATCH,
            }
        )
        ensure_topics(broker.bootstrap_servers, dict.fromkeys(SCHEMAS, PARTITIONS))
        with open_context(
            plan_flow(_flow("orders", "payments", "out"), "slice", settings), settings
        ) as context:
            bench = _Bench(context, Path(folder))
            contenders = {"flowcore": bench.ours, "Spark's own join": bench.native}
            ours, native = run_rates(rounds, contenders, 2 * records)
    Report(
        name="stream-joins",
        workload=f"{records:,} records of each of two topics of {PARTITIONS} partitions, joined within "
        f"{AFTER_MS // 1000} s, batches of {2 * BATCH:,}",
        figures=[ours, native],
        ratios={
            "ratio_to_native": ours.median / native.median,
            **ratio_by_slope("ratio_to_native", ours, native),
        },
        verified="every pair of both contenders, against DuckDB over the same records",
    ).show(as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Sides:
    """The records of both topics, and the names of these."""

    topics: dict[str, str]
    tables: dict[str, pa.Table]


class _Bench:
    def __init__(self, context: Context, folder: Path) -> None:
        self.context, self.folder = context, folder
        self.spark = live_session(context.spark, context.settings)
        self.servers = context.settings.bootstrap_servers or ""
        self.numbers = itertools.count()
        self.sides: dict[int, _Sides] = {}

    def fill(self, count: int) -> _Sides:
        """The topics with this many records; an order has one payment on average, most of them in time."""
        if count in self.sides:
            return self.sides[count]
        records = count // len(SCHEMAS)
        random, numbers = np.random.default_rng(7), np.arange(records)
        at = BEGIN_MS + numbers * SPAN_MS // records - random.integers(0, DELAY_MS - 1_000, records)
        orders = {"id": numbers, "item": random.integers(0, 1_000, records), "at": at}
        payments = {
            "order_id": numbers + random.integers(-5_000, 1_000, records),
            "amount": numbers,
            "paid": at + random.integers(0, 1_000, records),
        }
        tables = {
            name: pa.table({column: pa.array(values) for column, values in columns.items()})
            for name, columns in (("orders", orders), ("payments", payments))
        }
        topics = {name: f"{name}-{next(self.numbers)}" for name in tables}
        for name, table in tables.items():
            ensure_topics(self.servers, {topics[name]: PARTITIONS})
            parts = (table.slice(start, 100_000) for start in range(0, records, 100_000))
            feed.feed(self.servers, topics[name], parts, key=table.column_names[0])
        self.sides[count] = _Sides(topics, tables)
        return self.sides[count]

    def ours(self, count: int) -> float:
        """Seconds of flowcore."""
        sides, out = self.fill(count), self._new_topic()
        settings = replace(self.context.settings, state_dir=self.folder / f"state-{out}")
        plan = plan_flow(_flow(sides.topics["orders"], sides.topics["payments"], out), "slice", settings)
        began = time.monotonic()
        with LiveRun(plan, Context(self.context.spark, settings, plan.flow)) as run:
            run.wait()
        seconds = time.monotonic() - began
        self._check(sides, out, "flowcore")
        return seconds

    def native(self, count: int) -> float:
        """Seconds of Spark's own join."""
        sides = self.fill(count)
        orders, payments = (self._read(name, sides.topics[name]) for name in SCHEMAS)
        condition = F.expr(
            f"id = order_id AND paid_time BETWEEN time AND time + INTERVAL {AFTER_MS // 1000} SECONDS"
        )
        joined = orders.join(payments, condition)
        out = self._new_topic()
        began = time.monotonic()
        query = (
            joined.select(F.to_json(F.struct("id", "item", "amount")).alias("value"))
            .writeStream.format("kafka")
            .options(**{"kafka.bootstrap.servers": self.servers, "topic": out, **TUNED_WRITE})
            .option("checkpointLocation", str(self.folder / out))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = time.monotonic() - began
        self._check(sides, out, "Spark")
        return seconds

    def _new_topic(self) -> str:
        out = f"out-{next(self.numbers)}"
        ensure_topics(self.servers, {out: PARTITIONS})
        return out

    def _read(self, name: str, topic: str) -> DataFrame:
        time_column, named = ("at", "time") if name == "orders" else ("paid", "paid_time")
        return (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.servers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .options(**TUNED_READ, maxOffsetsPerTrigger=str(BATCH))
            .load()
            .select(F.from_json(F.col("value").cast("string"), SCHEMAS[name]).alias("r"))
            .select("r.*", F.timestamp_millis(f"r.{time_column}").alias(named))
            .withWatermark(named, f"{DELAY_MS} milliseconds")
        )

    def _check(self, sides: _Sides, out: str, who: str) -> None:
        """Check the pairs of a run.

        Raises:
            RunError: A pair is missing, wrong, or there twice.
        """
        orders, payments = (sides.tables[name] for name in SCHEMAS)
        found = read_rows(self.servers, out, PAIRS)
        with duckdb.connect() as database:
            for name, table in (("orders", orders), ("payments", payments), ("found", found)):
                database.register(name, table)
            database.execute(_EXPECTED)
            (pairs,) = database.execute("SELECT count(*) FROM expected").fetchall()[0]
            wrong = count_differences(database, "FROM expected", "SELECT id, item, amount FROM found")
        if wrong or not pairs:
            msg = f"{wrong:,} of {pairs:,} pairs of {who} are missing, wrong or there twice"
            raise RunError(msg)


_EXPECTED = f"""
CREATE VIEW expected AS SELECT id, item, amount FROM orders JOIN payments
ON id = order_id AND paid BETWEEN "at" AND "at" + {AFTER_MS}
"""  # noqa: S608 - our own number


def _flow(orders: str, payments: str, out: str) -> Flow:
    flow = Flow(f"bench-{orders}-{out}")
    watermark = bounded_out_of_orderness(timedelta(milliseconds=DELAY_MS))
    left, right = (
        flow.read(name, KafkaTopic(topic, schema=SCHEMAS[name], event_time=column, watermark=watermark))
        for name, topic, column in (("orders", orders, "at"), ("payments", payments, "paid"))
    )
    joined = left.join_interval(
        right, on={"id": "order_id"}, before=timedelta(0), after=timedelta(milliseconds=AFTER_MS)
    )
    joined.select("id", "item", "amount").write("out", KafkaTopic(out))
    return flow
