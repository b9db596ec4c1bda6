"""Savings of a flush interval for a running maximum of each key, from Kafka to Kafka to a reader.

The topic is filled before a run. The run ends when the reader, another process that keeps the latest value of
each key in an SQLite table, has the maximum of every key. Without an interval, each micro-batch emits every
key that it updated. Batches are small in the *output-bound* case, where nearly every record becomes an
output, and large *otherwise*. With an interval a batch takes all records that are there, whatever the limit
of a batch: so the ratios compare few batches with many, and the batches of each contender are reported.
`_flush_keys` measures many keys in one interval.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from flowcore import Flow, KafkaTopic
from flowcore.errors import RunError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import end_offsets, ensure_topics
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.run.flow import open_context
from flowcore.spark.run.live_stage import LiveRun
from pipelines.benchmark import Figures, Report
from pipelines.nexmark import feed

PARTITIONS = 2
KEYS, MANY_KEYS = 10_000, 10_000_000
INTERVALS = {"none": 0, "1 s": 1, "10 s": 10}
LONGEST_S = 600
SCHEMA = "auction_id BIGINT, price BIGINT"


@dataclass(frozen=True)
class Run:
    """Measurements of one run."""

    seconds: float
    records: int
    size: int
    reader_cpu_s: float
    batches: int


@click.command()
@click.option(
    "--case",
    type=click.Choice(["intervals", "keys"]),
    default="intervals",
    show_default=True,
    help="The case to run.",
)
@click.option("--records", default=2_000_000, show_default=True, help="Records in the topic.")
@click.option("--keys", type=int, help=f"Distinct keys. Default: {KEYS:,}; {MANY_KEYS:,} in case keys.")
@click.option("--small", default=20_000, show_default=True, help="Records of an output-bound batch.")
@click.option("--large", default=500_000, show_default=True, help="Records of a batch otherwise.")
@click.option("--rounds", default=3, show_default=True, help="Counted runs of each contender.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(  # noqa: PLR0917 - the options of the command
    case: str, records: int, keys: int | None, small: int, large: int, rounds: int, *, as_json: bool
) -> None:
    """Output, reader's processor time and throughput with flush intervals of 0, 1 and 10 seconds."""
    with (
        tempfile.TemporaryDirectory(prefix="flowcore-bench-", ignore_cleanup_errors=True) as folder,
        EmbeddedBroker() as broker,
    ):
        servers = broker.bootstrap_servers
        if case == "keys":
            from tests.benchmarks._flush_keys import measure  # noqa: PLC0415 - the reader cannot import it

            report = measure(Path(folder), servers, keys or MANY_KEYS)
        else:
            report = _measure(Path(folder), servers, records, keys or KEYS, (small, large), rounds)
    report.show(as_json=as_json)


def _measure(  # noqa: PLR0917 - the options of the command
    folder: Path, servers: str, records: int, keys: int, batches: tuple[int, int], rounds: int
) -> Report:
    settings = Settings.of({"kafka.bootstrap.servers": servers, "state.dir": folder / "state"})
    from tests.benchmarks._rounds import run_rounds  # noqa: PLC0415 - the reader cannot import it

    figures: list[Figures] = []
    ratios: dict[str, float] = {}
    ensure_topics(servers, {"first": PARTITIONS})
    plan = plan_flow(_flow("first", "out", 0), "micro-batch", settings)
    with open_context(plan, settings) as context:
        bench = _Bench(servers, context, folder)
        bench.fill(min(records, 100_000), keys)
        bench.run(batches[1], 0)  # code generation and class loading
        bench.fill(records, keys)
        for bound, batch in zip(("output_bound", "otherwise"), batches, strict=True):
            contenders = {
                f"{bound} {name}": partial(_rate, bench, batch, seconds)
                for name, seconds in INTERVALS.items()
            }
            rates = run_rounds(rounds, contenders, "records/s")
            ratios[f"ratio_{bound}"] = rates[-1].median / rates[0].median
            for rate, seconds in zip(rates, INTERVALS.values(), strict=True):
                runs, label = bench.runs[batch, seconds][-rounds:], rate.name
                figures += [
                    rate,
                    Figures(f"{label} batches", "batches", [run.batches for run in runs]),
                    Figures(f"{label} output", "records", [run.records for run in runs]),
                    Figures(f"{label} output bytes", "bytes", [run.size for run in runs]),
                    Figures(f"{label} reader", "s of processor time", [run.reader_cpu_s for run in runs]),
                ]
    return Report(
        name="flush",
        workload=f"{records:,} records of {PARTITIONS} partitions and {keys:,} keys, running maximum in "
        f"micro-batches of {batches[0]:,} (output-bound) and {batches[1]:,}, intervals none, 1 s, 10 s",
        figures=figures,
        ratios=ratios,
        verified="the reader's last value of every key, against NumPy over the same records; with an "
        "interval, outputs are at most keys times intervals",
    )


def _rate(bench: _Bench, batch: int, seconds: int, _round: int) -> float:
    run = bench.run(batch, seconds)
    return bench.records / run.seconds


class _Bench:
    def __init__(self, servers: str, context: Context, folder: Path) -> None:
        self.servers, self.context, self.folder = servers, context, folder
        self.numbers = itertools.count()
        self.runs: dict[tuple[int, int], list[Run]] = {}
        self.topic, self.records, self.keys = "", 0, 0
        self.expected = folder / "expected.npy"

    def fill(self, records: int, keys: int) -> None:
        """Fill a topic with records, and compute the maximum of each key."""
        random = np.random.default_rng(7)
        prices = pa.array(random.integers(1, 10**9, records))
        table = pa.table({"auction_id": pa.array(random.integers(0, keys, records)), "price": prices})
        highest = np.zeros(keys, np.int64)
        np.maximum.at(highest, table["auction_id"].to_numpy(), table["price"].to_numpy())
        np.save(self.expected, highest)
        self.topic, self.records, self.keys = f"in-{next(self.numbers)}", records, keys
        ensure_topics(self.servers, {self.topic: PARTITIONS})
        parts = (table.slice(start, 100_000) for start in range(0, records, 100_000))
        feed.feed(self.servers, self.topic, parts)

    def run(self, batch: int, seconds: int) -> Run:
        """Run until the reader has the maximum of every key."""
        out = f"out-{next(self.numbers)}"
        ensure_topics(self.servers, {out: PARTITIONS})
        state = self.folder / f"state-{out}"
        settings = replace(self.context.settings, state_dir=state, max_batch_records=batch)
        plan = plan_flow(_flow(self.topic, out, seconds), "micro-batch", settings)
        context = Context(self.context.spark, settings, plan.flow)
        reading = [sys.executable, __file__, self.servers, out, str(self.expected)]
        with subprocess.Popen(reading, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            reader.stdout.readline()
            began = time.monotonic()
            with LiveRun(plan, context) as live:
                found: Mapping[str, Any] = json.loads(reader.stdout.readline() or "{}")
                took = time.monotonic() - began
                batches = sum(query.batches for query in live.progress())
        if not found:
            msg = f"the reader of {out} did not receive the maximum of every key within {LONGEST_S} s"
            raise RunError(msg)
        written = sum(end_offsets(self.servers, out).values())
        if seconds and written > self.keys * (int(took / seconds) + 1):
            msg = f"{written:,} outputs of {self.keys:,} keys in {took:.1f} s, too many for {seconds} s each"
            raise RunError(msg)
        done = Run(took, written, found["bytes"], found["cpu_s"], batches)
        self.runs.setdefault((batch, seconds), []).append(done)
        return done


def _flow(source: str, out: str, seconds: int) -> Flow:
    flow = Flow(f"bench-{source}-{out}")
    bids = flow.read("bids", KafkaTopic(source, schema=SCHEMA))
    highest = bids.aggregate(by="auction_id", price="max(price)", flush=timedelta(seconds=seconds))
    highest.write("highest", KafkaTopic(out))
    return flow


def read(servers: str, topic: str, expected: str) -> None:
    """Keep the latest value of each key in a table until all are as expected; print bytes and CPU time."""
    highest = np.load(expected)
    # Some keys may have no record.
    missing = {key: int(price) for key, price in enumerate(highest) if price}
    table = sqlite3.connect(":memory:")
    table.execute("CREATE TABLE latest (id INTEGER PRIMARY KEY, price INTEGER)")
    put = "INSERT INTO latest VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET price = excluded.price"
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    click.echo("reading")
    end, size, began = time.monotonic() + LONGEST_S, 0, time.process_time()
    while missing and time.monotonic() < end:
        for message in consumer.consume(10_000, timeout=0.2):
            value = message.value() or b"{}"
            size += len(value)
            row = json.loads(value)
            table.execute(put, (row["auction_id"], row["price"]))
            if missing.get(row["auction_id"]) == row["price"]:
                del missing[row["auction_id"]]
    cpu_s = time.process_time() - began
    consumer.close()
    if not missing:
        click.echo(json.dumps({"bytes": size, "cpu_s": cpu_s}))


if __name__ == "__main__":
    read(*sys.argv[1:])
