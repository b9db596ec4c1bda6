"""Windows from Kafka to Kafka, against Spark's native window aggregate and its per-key state in Python.

Every case runs in slice mode in one session: flowcore, the native aggregate if there is one, and the same
logic in `transformWithState`, one key at a time. The last is slow, so it and flowcore beside it read only the
records of a share of the keys, in batches that are smaller by the same share. Records are up to two seconds
out of order; late ones up to twenty.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession

from flowcore import Flow, KafkaTopic, Tumbling
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
from pipelines.benchmark import Figures, Report
from pipelines.nexmark import feed
from tests.benchmarks._rounds import ratio_by_slope, run_rates, run_rounds
from tests.benchmarks._window_cases import (
    BEGIN_MS,
    CASES,
    DELAY_MS,
    PARTITIONS,
    SCHEMA,
    WINDOWS,
    Case,
    Sent,
    check,
    records_of,
)
from tests.benchmarks._window_rivals import Rivals

BATCH = 500_000
HELD, TOUCHED, TOUCHING_BATCHES = (10_000, 1_000_000), 10_000, 12


@click.command()
@click.option("--records", default=2_000_000, show_default=True, help="Records in the topic.")
@click.option(
    "--per-key-records",
    default=100_000,
    show_default=True,
    help="Records of the per-key rival, and of flowcore beside it; 0 leaves it out.",
)
@click.option(
    "--case",
    "names",
    multiple=True,
    type=click.Choice([*(case.name for case in CASES), "held"]),
    help="Run only this case. May be repeated.",
)
@click.option("--rounds", default=3, show_default=True, help="Counted runs of each contender.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    records: int, per_key_records: int, names: tuple[str, ...], rounds: int, *, as_json: bool
) -> None:
    """Throughput of windows over records already in Kafka, against Spark's own."""
    cases = [case for case in CASES if not names or case.name in names]
    held = not names or "held" in names
    with (
        tempfile.TemporaryDirectory(prefix="flowcore-bench-", ignore_cleanup_errors=True) as folder,
        EmbeddedBroker() as broker,
    ):
        report = _measure(
            Path(folder), broker.bootstrap_servers, cases, records, per_key_records, rounds, held=held
        )
    report.show(as_json=as_json)


def _measure(  # noqa: PLR0917 - the options of the command
    folder: Path,
    servers: str,
    cases: list[Case],
    records: int,
    per_key_records: int,
    rounds: int,
    *,
    held: bool,
) -> Report:
    settings = Settings.of(
        {
            "kafka.bootstrap.servers": servers,
            "state.dir": folder / "state",
            "execution.max-records-per-batch": BATCH,
        }
    )
    figures: list[Figures] = []
    to_native: dict[str, float] = {}
    to_per_key: dict[str, float] = {}
    ensure_topics(servers, {"first": PARTITIONS})
    ratios: dict[str, float] = {}
    plan = plan_flow(_flow(CASES[0], "first", "out"), "slice", settings)
    with open_context(plan, settings) as context:
        bench = _Bench(servers, context, folder)
        if held:
            of_keys = {f"{keys:,} keys held, {TOUCHED:,} touched": keys for keys in HELD}
            contenders = {name: partial(bench.held, keys) for name, keys in of_keys.items()}
            few, many = run_rounds(rounds, contenders, "s a batch")
            ratios["ratio_of_keys_held"] = many.median / few.median
            figures += [few, many]
        for case in cases:
            native, per_key = bench.compare(case, records, per_key_records, rounds)
            figures += [*native, *per_key]
            shown = {figure.name: figure.rounds for figure in (*native, *per_key)}
            click.echo(f"{case.name}: {shown}", err=True)  # progress: a case takes minutes
            to_per_key |= _ratios(case, "per key", *per_key) if per_key else {}
            to_native |= _ratios(case, "native", *native) if len(native) > 1 else {}
    for name, found in (("ratio_to_per_key_state", to_per_key), ("ratio_to_native", to_native)):
        ratios |= _least(name, found)
    ratios |= to_native | to_per_key
    return Report(
        name="windows",
        workload=f"{records:,} records of {PARTITIONS} partitions ({per_key_records:,} per key), "
        f"sum and count per window, batches of {BATCH:,}",
        figures=figures,
        ratios=ratios,
        verified="every result of every contender and round, against DuckDB over the same records",
    )


def _least(name: str, ratios: Mapping[str, float]) -> dict[str, float]:
    """The smallest ratio of all cases, and that without the start of a run if every case has one."""
    by_slope = [ratio for each, ratio in ratios.items() if each.endswith("by_slope")]
    whole = [ratio for each, ratio in ratios.items() if not each.endswith("by_slope")]
    if not whole:
        return {}
    return {name: min(whole)} | ({f"{name}_by_slope": min(by_slope)} if len(by_slope) == len(whole) else {})


def _ratios(case: Case, rival: str, ours: Figures, theirs: Figures) -> dict[str, float]:
    name = f"{case.name} to {rival}"
    return {name: ours.median / theirs.median, **ratio_by_slope(name, ours, theirs)}


class _Bench:
    def __init__(self, servers: str, context: Context, folder: Path) -> None:
        self.servers, self.context, self.folder = servers, context, folder
        self.spark: SparkSession = live_session(context.spark, context.settings)
        self.spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")
        self.numbers = itertools.count()
        self.rivals = Rivals(self.spark, servers, folder, lambda: f"out-{next(self.numbers)}")

    def compare(
        self, case: Case, records: int, per_key_records: int, rounds: int
    ) -> tuple[list[Figures], list[Figures]]:
        """Figures of flowcore and of the native aggregate, and of flowcore and of state per key."""
        share = min(1.0, per_key_records / records)
        few_batch = int(BATCH * share)
        first_keys = replace(case, keys=int(case.keys * share))
        sent: dict[tuple[Case, int], Sent] = {}

        def send_once(each: Case, count: int) -> Sent:
            if (each, count) not in sent:
                sent[each, count] = self.fill(each, records_of(each, count))
            return sent[each, count]

        contenders = {"flowcore": lambda count: self.ours(case, send_once(case, count))}
        if not case.late:
            contenders["native"] = lambda count: self.rivals.native(case, send_once(case, count), BATCH)
        beside: dict[str, Callable[[int], float]] = {}
        if per_key_records:
            beside["flowcore, few"] = lambda count: self.ours(
                case, send_once(first_keys, count), batch=few_batch
            )
            beside["per key, few"] = lambda count: self.rivals.per_key(
                case, send_once(first_keys, count), few_batch
            )
        all_records, few_records = (
            run_rates(rounds, {f"{case.name} {name}": run for name, run in each.items()}, count)
            for each, count in ((contenders, records), (beside, round(records * share)))
        )
        return all_records, few_records

    def fill(self, case: Case, table: pa.Table) -> Sent:
        """Fill a new topic with these records."""
        topic = f"in-{case.name}-{next(self.numbers)}"
        ensure_topics(self.servers, {topic: PARTITIONS})
        feed.feed(
            self.servers, topic, (table.slice(start, 100_000) for start in range(0, len(table), 100_000))
        )
        return Sent(topic, table)

    def ours(self, case: Case, sent: Sent, *, batch: int = BATCH) -> float:
        """Seconds of flowcore."""
        out = f"out-{next(self.numbers)}"
        ensure_topics(self.servers, {out: PARTITIONS})
        state = self.folder / f"state-{out}"
        settings = replace(self.context.settings, state_dir=state, max_batch_records=batch)
        plan = plan_flow(_flow(case, sent.topic, out), "slice", settings)
        context = Context(self.context.spark, settings, plan.flow)
        began = time.monotonic()
        with LiveRun(plan, context) as run:
            run.wait()
        seconds = time.monotonic() - began
        check(case, sent, read_rows(self.servers, out, WINDOWS), "flowcore")
        return seconds

    def held(self, keys: int, _round: int) -> float:
        """Seconds of the median batch that updates a few of many open windows, before all windows end."""
        number = next(self.numbers)
        topic, out = f"in-held-{number}", f"out-held-{number}"
        ensure_topics(self.servers, {topic: PARTITIONS, out: PARTITIONS})
        random = np.random.default_rng(7)
        flow = Flow(f"bench-{topic}")
        source = KafkaTopic(
            topic, schema=SCHEMA, event_time="at", watermark=bounded_out_of_orderness(timedelta(seconds=2))
        )
        windows = flow.read("records", source).window(Tumbling(100_000), by="auction_id")
        windows.aggregate(total="sum(price)", n="count(*)").write("out", KafkaTopic(out))

        def run(touched: npt.NDArray[np.int64], batch: int, at_ms: int = BEGIN_MS) -> list[float]:
            table = pa.table(
                {
                    "auction_id": pa.array(touched),
                    "price": pa.array(np.ones(len(touched), np.int64)),
                    "at": pa.array(np.full(len(touched), at_ms)),
                }
            )
            parts = (table.slice(start, 100_000) for start in range(0, len(touched), 100_000))
            feed.feed(self.servers, topic, parts)
            settings = replace(
                self.context.settings, state_dir=self.folder / f"state-{out}", max_batch_records=batch
            )
            plan = plan_flow(flow, "slice", settings)
            with LiveRun(plan, Context(self.context.spark, settings, plan.flow)) as live:
                live.wait()
                (query,) = live.running.values()
                return [
                    each.durationMs["triggerExecution"] / 1000
                    for each in query.recentProgress
                    if each.numInputRows
                ]

        run(np.arange(keys), BATCH)
        touching = [random.choice(keys, TOUCHED, replace=False) for _ in range(TOUCHING_BATCHES)]
        seconds = run(np.concatenate(touching), TOUCHED)[2:]
        run(np.arange(1_000), BATCH, BEGIN_MS + 1_000_000_000)
        expected = np.bincount(np.concatenate([np.arange(keys), *touching]))
        found = read_rows(self.servers, out, WINDOWS)
        sums = (np.bincount(found["auction_id"], found[name], keys) for name in ("total", "n"))
        if len(found) != keys or not all(np.array_equal(each, expected) for each in sums):
            msg = f"{keys:,} keys held: {len(found):,} windows were emitted, not all with the right sum"
            raise RunError(msg)
        return statistics.median(seconds)


def _flow(case: Case, source: str, out: str) -> Flow:
    flow = Flow(f"bench-{source}-{out}")
    topic = KafkaTopic(
        source, schema=SCHEMA, event_time="at",
        watermark=bounded_out_of_orderness(timedelta(milliseconds=DELAY_MS)),
    )  # fmt: skip
    records = flow.read("records", topic)
    windows = records.window(case.declared, by="auction_id", allowed_lateness=30 if case.late else 0)
    windows.aggregate(total="sum(price)", n="count(*)").write("out", KafkaTopic(out))
    return flow
