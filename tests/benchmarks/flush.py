"""Savings of a flush interval for a running maximum of each key, from Kafka to Kafka to a reader.

The topic is filled before a run. The run ends when the reader, another process that keeps the latest value of
each key in an SQLite table, has the maximum of every key. Without an interval, each micro-batch emits every
key that it updated. With one, a batch takes all records that are there, whatever the limit of a batch. So
`ratio_to_one_batch` is to a contender without an interval that also takes all of them at once, and says what
the interval itself saves. The other ratios compare few batches with many: with small ones, where nearly every
record becomes an output, and with large ones. `_flush_keys` measures many keys in one interval.
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
INTERVALS = {"1 s": 1, "10 s": 10}
LONGEST_S = 600
SCHEMA = "auction_id BIGINT, price BIGINT"
_GIVEN = click.core.ParameterSource.COMMANDLINE


@dataclass(frozen=True)
class Run:
    """Measurements of one run over the given records."""

    given: int
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
@click.option("--small", default=20_000, show_default=True, help="Records of a small batch.")
@click.option("--large", default=500_000, show_default=True, help="Records of a large batch.")
@click.option("--rounds", default=3, show_default=True, help="Counted runs of each contender.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(  # noqa: PLR0917 - the options of the command
    ctx: click.Context,
    case: str,
    records: int,
    keys: int | None,
    small: int,
    large: int,
    rounds: int,
    *,
    as_json: bool,
) -> None:
    """Output, reader's processor time and throughput with flush intervals of 0, 1 and 10 seconds."""
    given = [name for name in ("records", "small", "large") if ctx.get_parameter_source(name) is _GIVEN]
    if case == "keys" and given:
        msg = (
            f"--{given[0]} is an option of --case intervals: --case keys has a record for each of --keys, "
            "and another for every fifth; leave it out"
        )
        raise click.UsageError(msg)
    with (
        tempfile.TemporaryDirectory(prefix="flowcore-bench-", ignore_cleanup_errors=True) as folder,
        EmbeddedBroker() as broker,
    ):
        servers = broker.bootstrap_servers
        if case == "keys":
            from tests.benchmarks._flush_keys import measure  # noqa: PLC0415 - the reader cannot import it

            report = measure(Path(folder), servers, keys or MANY_KEYS, rounds)
        else:
            report = _measure(Path(folder), servers, records, keys or KEYS, (small, large), rounds)
    report.show(as_json=as_json)


def _measure(  # noqa: PLR0917 - the options of the command
    folder: Path, servers: str, records: int, keys: int, batches: tuple[int, int], rounds: int
) -> Report:
    settings = Settings.of({"kafka.bootstrap.servers": servers, "state.dir": folder / "state"})
    from tests.benchmarks._rounds import (  # noqa: PLC0415 - the reader cannot import it
        ratio_by_slope,
        run_rates,
    )

    figures: list[Figures] = []
    small, large = batches
    contenders = {
        f"none, small batches of {small:,}": (small, 0),
        f"none, large batches of {large:,}": (large, 0),
        "none, one batch": (records, 0),
        **{name: (large, seconds) for name, seconds in INTERVALS.items()},
    }
    ensure_topics(servers, {"first": PARTITIONS})
    plan = plan_flow(_flow("first", "out", 0), "micro-batch", settings)
    with open_context(plan, settings) as context:
        bench = _Bench(servers, context, folder, keys)
        runs = {name: partial(bench.seconds, name, *each) for name, each in contenders.items()}
        rates = run_rates(rounds, runs, records)
    for rate in rates:
        counted = [run for run in bench.runs[rate.name] if run.given == records][-rounds:]
        figures += [
            rate,
            Figures(f"{rate.name}: batches", "batches", [run.batches for run in counted]),
            Figures(f"{rate.name}: output", "records", [run.records for run in counted]),
            Figures(f"{rate.name}: output bytes", "bytes", [run.size for run in counted]),
            Figures(f"{rate.name}: reader", "s of processor time", [run.reader_cpu_s for run in counted]),
        ]
    of_small, of_large, of_one, *_, longest = rates
    compared = {
        "ratio_to_one_batch": of_one,
        "ratio_to_small_batches": of_small,
        "ratio_to_large_batches": of_large,
    }
    ratios: dict[str, float] = {}
    for name, rate in compared.items():
        ratios |= {name: longest.median / rate.median, **ratio_by_slope(name, longest, rate)}
    return Report(
        name="flush",
        workload=f"{records:,} records of {PARTITIONS} partitions and {keys:,} keys, running maximum in "
        f"micro-batches of at most {small:,}, {large:,} and all, and with intervals of 1 s and 10 s, which "
        "take all that there is",
        figures=figures,
        ratios=ratios,
        verified="the reader's last value of every key, against NumPy over the same records; with an "
        "interval, outputs are at most keys times intervals",
    )


@dataclass(frozen=True)
class _Filled:
    """A topic of records, and a file with the maximum of each key."""

    topic: str
    expected: Path


class _Bench:
    def __init__(self, servers: str, context: Context, folder: Path, keys: int) -> None:
        self.servers, self.context, self.folder, self.keys = servers, context, folder, keys
        self.numbers = itertools.count()
        self.runs: dict[str, list[Run]] = {}
        self.filled: dict[int, _Filled] = {}

    def fill(self, records: int) -> _Filled:
        """A topic with this many records, and the maximum of each key."""
        if records in self.filled:
            return self.filled[records]
        random = np.random.default_rng(7)
        prices = pa.array(random.integers(1, 10**9, records))
        table = pa.table({"auction_id": pa.array(random.integers(0, self.keys, records)), "price": prices})
        highest = np.zeros(self.keys, np.int64)
        np.maximum.at(highest, table["auction_id"].to_numpy(), table["price"].to_numpy())
        done = _Filled(f"in-{records}", self.folder / f"expected-{records}.npy")
        np.save(done.expected, highest)
        ensure_topics(self.servers, {done.topic: PARTITIONS})
        parts = (table.slice(start, 100_000) for start in range(0, records, 100_000))
        feed.feed(self.servers, done.topic, parts)
        self.filled[records] = done
        return done

    def seconds(self, name: str, batch: int, interval: int, records: int) -> float:
        """Seconds until the reader has the maximum of every key."""
        run = self._run(self.fill(records), records, batch, interval)
        self.runs.setdefault(name, []).append(run)
        return run.seconds

    def _run(self, filled: _Filled, records: int, batch: int, seconds: int) -> Run:
        out = f"out-{next(self.numbers)}"
        ensure_topics(self.servers, {out: PARTITIONS})
        state = self.folder / f"state-{out}"
        settings = replace(self.context.settings, state_dir=state, max_batch_records=batch)
        plan = plan_flow(_flow(filled.topic, out, seconds), "micro-batch", settings)
        context = Context(self.context.spark, settings, plan.flow)
        reading = [sys.executable, __file__, self.servers, out, str(filled.expected)]
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
        return Run(records, took, written, found["bytes"], found["cpu_s"], batches)


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
