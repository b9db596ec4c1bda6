"""Exchanges: two operators with state in a query against the first alone, and the cost of control rows.

Depth 2 is query 5 of Nexmark: the bids of each auction in the last ten seconds, every two seconds, then the
most bids of any auction. Depth 1 is its first window alone, which writes the counts. Both read the same
topics in slice mode, with batches of 500,000 records: a quarter of the bids, and all of them.

Control rows tell every key group what every partition says of event time. Their cost is the processor time of
packing and stepping a batch with them, less that of the same batch without them, in this process: Spark's
transport of the rows is not part of it. It is compared with the processor time of a slice of one batch in
Spark. A slice of 1,000 records shows what control rows, transport, tasks and key groups cost together.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from flowcore import Flow, KafkaTopic, Sliding, Tumbling
from flowcore.errors import RunError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import ensure_topics
from flowcore.keyed.packed import Packed, PackedKind
from flowcore.keyed.packing import InputColumns, Packing, Recipient
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.state_cache import StateCache
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.run.flow import open_context
from flowcore.spark.run.live_stage import LiveRun
from flowcore.testing.memory_store import MemoryStore
from flowcore.watermarks import bounded_out_of_orderness
from flowcore.watermarks.progress import WatermarkSource
from flowcore.windows import TumblingWindows, WindowAggregate, WindowConfig
from flowcore.windows.built_in import BuiltIn, BuiltIns
from flowcore.windows.columnar.keyed import ColumnarWindows
from pipelines.auctions.readers import read_rows
from pipelines.benchmark import Figures, Report, in_turn
from pipelines.nexmark import feed
from tests.benchmarks._answers import count_differences
from tests.benchmarks._process_cost import ProcessCost, spark_pid
from tests.benchmarks._rounds import ratio_by_slope, run_rates, run_rounds

__all__ = ["measure_exchanges"]

BATCH, AUCTIONS, PARTITIONS = 500_000, 10_000, 2
MANY_PARTITIONS, MANY_GROUPS, FEW = 200, 128, 1000
BEGIN_MS, SPAN_MS = 1_700_000_000_000, 100_000
SCHEMA = "auction_id BIGINT, at BIGINT"
COUNTS = {"auction_id": pa.int64(), "n": pa.int64(), "window_end": pa.timestamp("us")}
MOST = {"most": pa.int64(), "auctions": pa.int64(), "window_end": pa.timestamp("us")}
_COUNTED = """
    SELECT auction_id, end_ms, count(*) AS n
    FROM (SELECT auction_id, "at" // 2000 * 2000 + unnest(range(2000, 12000, 2000)) AS end_ms FROM bids)
    WHERE end_ms <= {last_ms} GROUP BY ALL
"""
ANSWERS = {
    1: _COUNTED,
    2: f"SELECT end_ms, max(n) AS most, count(*) AS auctions FROM ({_COUNTED}) GROUP BY ALL",  # noqa: S608 - our own SQL
}
RESULTS = {
    1: "SELECT auction_id, epoch_ms(window_end) AS end_ms, n FROM found WHERE end_ms <= {last_ms}",
    2: "SELECT epoch_ms(window_end) AS end_ms, most, auctions FROM found WHERE end_ms <= {last_ms}",
}


def measure_exchanges(bids: int, rounds: int) -> Report:
    """Measure both; ``bids`` is the number of records for the two depths."""
    batch = min(BATCH, bids)
    with_control, without = _control_rows(rounds, batch)
    with tempfile.TemporaryDirectory(prefix="flowcore-bench-", ignore_cleanup_errors=True) as folder:
        one, two, large, small = _in_spark(Path(folder), bids, batch, rounds)
    cost_s = with_control.median - without.median
    return Report(
        name="chain --case exchanges",
        workload=f"{bids:,} bids of {AUCTIONS:,} auctions and {PARTITIONS} partitions, batches of {BATCH:,}; "
        f"control rows of {MANY_PARTITIONS} partitions x {MANY_GROUPS} key groups with {batch:,} records",
        figures=[one, two, with_control, without, large, small],
        ratios={
            "time_of_depth_2_to_depth_1": one.median / two.median,
            **ratio_by_slope("time_of_depth_2_to_depth_1", one, two),
            "control_rows_to_batch": cost_s / large.median,
            "control_rows_to_packing_and_steps": cost_s / without.median,
            "batch_of_few_records_to_batch": small.median / large.median,
        },
        verified="every count of depth 1 and of the batches, and every maximum and number of auctions of "
        "depth 2, by DuckDB; the number of control rows",
    )


def _in_spark(folder: Path, bids: int, batch: int, rounds: int) -> Iterator[Figures]:
    with EmbeddedBroker() as broker:
        settings = Settings.of(
            {
                "kafka.bootstrap.servers": broker.bootstrap_servers,
                "state.dir": folder / "state",
                "execution.max-records-per-batch": BATCH,
            }
        )
        ensure_topics(broker.bootstrap_servers, {"bids": PARTITIONS})
        with open_context(plan_flow(_flow("bids", "out", 2), "slice", settings), settings) as context:
            bench = _Bench(broker.bootstrap_servers, context, folder)
            depths = {f"depth {depth}": partial(bench.run, depth) for depth in (1, 2)}
            yield from run_rates(rounds, depths, bids, "bids/s")
            yield from bench.batches(batch, rounds)


def _bids(count: int) -> pa.Table:
    """Bids, up to a second out of order, and some for each partition that end all windows."""
    random = np.random.default_rng(7)
    at = BEGIN_MS + np.arange(count) * SPAN_MS // count - random.integers(0, 1000, count)
    auctions = (random.pareto(1.0, count) * 100).astype(np.int64) % AUCTIONS
    last = np.full(1000, BEGIN_MS + SPAN_MS + 60_000)
    return _table(np.append(auctions, np.arange(1000)), np.append(at, last))


def _table(auctions: npt.NDArray[np.int64], at: npt.NDArray[np.int64]) -> pa.Table:
    return pa.table({"auction_id": pa.array(auctions), "at": pa.array(at)})


def _flow(source: str, out: str, depth: int) -> Flow:
    flow = Flow(f"bench-{source}-{out}")
    topic = KafkaTopic(
        source, schema=SCHEMA, event_time="at", watermark=bounded_out_of_orderness(timedelta(seconds=2))
    )
    found = (
        flow.read("bids", topic)
        .window(Sliding(10, slide=2), by="auction_id", name="counted")
        .aggregate(n="count(*)")
    )
    if depth > 1:
        found = found.window(Tumbling(2), name="hottest").aggregate(most="max(n)", auctions="count(*)")
    found.write("out", KafkaTopic(out))
    return flow


@dataclass
class _Bench:
    servers: str
    context: Context
    folder: Path
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    bids: dict[str, pa.Table] = field(default_factory=dict)

    def fill(self, count: int) -> str:
        """The topic that has this many bids."""
        topic = f"bids-{count}"
        if topic not in self.bids:
            self.bids[topic] = _bids(count)
            ensure_topics(self.servers, {topic: PARTITIONS})
            self.send(topic, self.bids[topic])
        return topic

    def send(self, topic: str, table: pa.Table) -> None:
        parts = (table.slice(start, 100_000) for start in range(0, len(table), 100_000))
        feed.feed(self.servers, topic, parts)

    def run(self, depth: int, count: int) -> float:
        """Seconds of a slice over this many bids, whose results are verified."""
        source, out = self.fill(count), f"out-{next(self.numbers)}"
        ensure_topics(self.servers, {out: PARTITIONS})
        settings = replace(self.context.settings, state_dir=self.folder / f"state-{out}")
        plan = plan_flow(_flow(source, out, depth), "slice", settings)
        began = time.monotonic()
        with LiveRun(plan, Context(self.context.spark, settings, plan.flow)) as run:
            run.wait()
        seconds = time.monotonic() - began
        self.verify(depth, out, self.bids[source])
        return seconds

    def verify(self, depth: int, out: str, bids: pa.Table) -> None:
        schema = pa.schema(COUNTS if depth == 1 else MOST)
        found = read_rows(self.servers, out, schema)
        last_ms = BEGIN_MS + SPAN_MS
        expected, result = (text.format(last_ms=last_ms) for text in (ANSWERS[depth], RESULTS[depth]))
        with duckdb.connect() as database:
            database.register("bids", bids)
            database.register("found", found)
            columns = "auction_id, end_ms, n" if depth == 1 else "end_ms, most, auctions"
            (wanted,) = database.execute(f"SELECT count(*) FROM ({expected})").fetchall()[0]  # noqa: S608 - our own SQL
            expected, result = (f"SELECT {columns} FROM ({each})" for each in (expected, result))  # noqa: S608 - our own SQL
            wrong = count_differences(database, expected, result)
        if wrong or not wanted:
            msg = f"depth {depth}: {wrong:,} rows differ from DuckDB's {wanted:,}: its time is meaningless"
            raise RunError(msg)

    def batches(self, records: int, rounds: int) -> list[Figures]:
        """Processor time of batches with many records and with few, whose counts are verified at the end."""
        topic, out = "many", "out-many"
        ensure_topics(self.servers, {topic: MANY_PARTITIONS, out: PARTITIONS})
        many = _table(np.arange(records) % AUCTIONS, np.full(records, BEGIN_MS))
        sent: list[pa.Table] = []

        def batch(table: pa.Table, _round: int) -> float:
            sent.append(table)
            self.send(topic, table)
            with ProcessCost(spark_pid()) as cost:
                self.batch(topic, out)
            return cost.cpu_s

        sizes = {f"{len(table):,} records": table for table in (many, many.slice(0, FEW))}
        contenders = {name: partial(batch, table) for name, table in sizes.items()}
        figures = run_rounds(rounds, contenders, "CPU s a batch")
        batch(_table(np.arange(2 * AUCTIONS), np.full(2 * AUCTIONS, BEGIN_MS + SPAN_MS + 60_000)), 0)
        self.verify(1, out, pa.concat_tables(sent))
        return figures

    def batch(self, topic: str, out: str) -> None:
        """Run a slice over the new records of a topic."""
        settings = replace(
            self.context.settings, state_dir=self.folder / f"state-{out}", max_batch_records=2 * BATCH,
            key_groups=MANY_GROUPS,
        )  # fmt: skip
        plan = plan_flow(_flow(topic, out, 1), "slice", settings)
        with LiveRun(plan, Context(self.context.spark, settings, plan.flow)) as live:
            live.wait()


ROWS = pa.schema([("auction", pa.int64()), ("t", pa.int64())])


def _control_rows(rounds: int, records: int) -> list[Figures]:
    """Processor time of packing and stepping a batch, with and without control rows."""
    tasks = [_task(partition, records // MANY_PARTITIONS) for partition in range(MANY_PARTITIONS)]
    contenders: list[Callable[[int], float]] = [
        partial(_batch, _Groups(), tasks, control=True), partial(_batch, _Groups(), tasks, control=False),
    ]  # fmt: skip
    for each in contenders:
        each(0)
    names = ("packing and steps", "without control rows")
    found = in_turn(rounds, *contenders)
    return [Figures(name, "CPU s", each) for name, each in zip(names, found, strict=True)]


class _Groups:
    """Key groups of windows that stay open, with their stores."""

    def __init__(self) -> None:
        function = WindowAggregate(BuiltIns((("n", BuiltIn("count")),)))
        config = WindowConfig(assigner=TumblingWindows(10**9), function=function)
        strategy = bounded_out_of_orderness(timedelta(0)).with_idleness(timedelta(minutes=1))
        partitions = tuple(map(str, range(MANY_PARTITIONS)))
        self.runtime = Runtime(
            operator=ColumnarWindows(config=config, keys=("auction",), timestamp="t", rows=ROWS),
            query="bench", key_groups=MANY_GROUPS, sources={"in": WatermarkSource(strategy, partitions)},
            rows=ROWS,
        )  # fmt: skip
        self.stores = [MemoryStore() for _ in range(MANY_GROUPS)]
        self.cache = StateCache()


class _WithoutControl(Packing):
    """Packs records only."""

    def _take_newest(self, *_: object) -> None: ...


def _task(partition: int, count: int) -> pa.RecordBatch:
    auctions = np.random.default_rng(partition).integers(0, AUCTIONS, count)
    columns = {
        "group": (auctions % MANY_GROUPS).astype(np.int32),
        "partition": np.full(count, partition, np.int32), "offset": np.arange(count),
        "newest": np.arange(count), "auction": auctions, "t": np.arange(count),
    }  # fmt: skip
    return pa.RecordBatch.from_pandas(pd.DataFrame(columns), preserve_index=False)


def _batch(groups: _Groups, tasks: list[pa.RecordBatch], _round: int, *, control: bool) -> float:
    packing = (Packing if control else _WithoutControl)(
        inputs=InputColumns(channel="partition", offset="offset", newest="newest"),
        sources=("in",), key_groups=MANY_GROUPS,
        recipients=(Recipient(key_group="group", columns=tuple(ROWS.names)),),
    )  # fmt: skip
    began = time.process_time()
    items: list[list[Packed]] = [[] for _ in range(MANY_GROUPS)]
    for task in tasks:
        for batch in packing.run([task]):
            for group, *packed in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                items[group].append(Packed(*packed))
    for group, store in enumerate(groups.stores):
        groups.runtime.step(group, items[group], 0, store, groups.cache)
    seconds = time.process_time() - began
    rows = sum(item.kind == PackedKind.CONTROL for each in items for item in each)
    if rows != MANY_PARTITIONS * MANY_GROUPS * control:
        msg = f"{rows:,} control rows instead of one for each task and key group: the figure is meaningless"
        raise RunError(msg)
    return seconds
