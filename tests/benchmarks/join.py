"""Throughput of the reference flow over bids already in Kafka, against the same job in hand-written PySpark.

All run in turn as slices in one session, with the same Kafka client settings: a left join with the bounded
result to one topic, and the highest price per auction to another. One rival writes the same records, with the
header `flowcore-id`. A simpler one omits the header, so its readers cannot drop repeats. Only flowcore
detects bad records. With ``--delivery`` the flow is compared with itself with exactly-once delivery instead,
and so is a flow whose output is small: counts per window.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click
import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from flowcore import Flow
from flowcore.errors import RunError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import end_offsets, ensure_topics, identify_topics
from flowcore.planner import plan_flow
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.results.store import results_of
from flowcore.spark.run.flow import open_context, run_plan
from flowcore.spark.run.live_stage import LiveRun
from flowcore.spark.run.session import live_session
from pipelines.auctions import verify
from pipelines.auctions.flow import LIVE_BID, flow
from pipelines.auctions.readers import read_values
from pipelines.benchmark import Report
from pipelines.nexmark import feed, generator, history
from tests.benchmarks._auctions import BIDS, CONFIG, ENRICHED, HIGHEST, PARTITIONS, fresh_context, read_from
from tests.benchmarks._delivery import check_counts, count_bids, delete_ledgers, deliver_exactly_once
from tests.benchmarks._rounds import parts_of, ratio_by_slope, run_rates

COORDINATES = "partition", "offset"
COUNTS = "counts"
RIVAL_ENRICHED, RIVAL_HIGHEST = "rival-enriched", "rival-highest"
COMPARED_RIVALS = {
    "ratio": ("flowcore", "by hand"),
    "ratio_without_ids": ("flowcore", "by hand, bare"),
}
COMPARED_DELIVERIES = {
    "ratio_exactly_once": ("exactly once", "at least once"),
    "ratio_exactly_once_of_counts": ("counts, exactly once", "counts, at least once"),
}
"""Names of ratios, and the contenders that they compare."""
FEWEST_COUNTED = 25_000
"""Bids of 27 seconds: windows of ten seconds are complete five seconds after their end."""
TUNED_READ = {
    "kafka.isolation.level": "read_committed",
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
}
TUNED_WRITE = {
    "kafka.linger.ms": "50",
    "kafka.batch.size": str(512 << 10),
    "kafka.buffer.memory": str(128 << 20),
}


@click.command()
@click.option("--bids", default=2_000_000, show_default=True, help="Live bids in the topic.")
@click.option("--history-events", default=500_000, show_default=True, help="Events of history.")
@click.option("--rounds", default=3, show_default=True, help="Counted runs of each contender.")
@click.option("--delivery", is_flag=True, help="Compare at-least-once with exactly-once delivery instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(bids: int, history_events: int, rounds: int, *, delivery: bool, as_json: bool) -> None:
    """Throughput of the reference flow over bids already in Kafka, against hand-written PySpark."""
    if delivery and bids < FEWEST_COUNTED:
        msg = f"--delivery needs at least {FEWEST_COUNTED} bids: no window of its counts ends within {bids}"
        raise click.UsageError(msg)
    with (
        tempfile.TemporaryDirectory(prefix="flowcore-bench-", ignore_cleanup_errors=True) as folder,
        EmbeddedBroker() as broker,
    ):
        report = _measure(
            Path(folder), broker.bootstrap_servers, bids, history_events, rounds, delivery=delivery
        )
    report.show(as_json=as_json)


def _measure(
    folder: Path, servers: str, bids: int, history_events: int, rounds: int, *, delivery: bool
) -> Report:
    history.write_history(CONFIG, history_events, folder / "history")
    outputs = COUNTS, ENRICHED, HIGHEST, RIVAL_ENRICHED, RIVAL_HIGHEST
    ensure_topics(servers, dict.fromkeys(outputs, PARTITIONS))
    sent = {count: _send(servers, folder, history_events, count) for count in parts_of(bids)}
    settings = Settings.of(
        {"kafka.bootstrap.servers": servers, "data.dir": folder, "state.dir": folder / "state"}
    )
    plan = plan_flow(read_from(sent[bids].topic), "slice", settings)
    with open_context(plan, settings) as context:
        run_plan(replace(plan, live=None), context)
        states = (folder / f"state-{number}" for number in itertools.count())
        contest = _Contest(servers, context, live_session(context.spark, settings), sent, states)
        contenders = contest.deliveries() if delivery else contest.rivals()
        figures = run_rates(rounds, contenders, bids, "bids/s")
    rates = {figure.name: figure for figure in figures}
    ratios: dict[str, float] = {}
    for name, (one, other) in (COMPARED_DELIVERIES if delivery else COMPARED_RIVALS).items():
        ratios |= {name: rates[one].median / rates[other].median}
        ratios |= ratio_by_slope(name, rates[one], rates[other])
    counted_too = "; counts of 100 keys in windows of 10 s" if delivery else ""
    return Report(
        name="join",
        workload=f"{bids:,} bids of {PARTITIONS} partitions joined with {history_events:,} events of history "
        f"and the highest price per auction, slice mode, both queries side by side{counted_too}",
        figures=figures,
        ratios=ratios,
        verified="every output of every round, warm-up included, against DuckDB over the same events",
    )


@dataclass(frozen=True, slots=True)
class _Sent:
    """Bids in a topic, and the enriched bids and the highest prices that must become of them."""

    topic: str
    bids: pa.Table
    expected: tuple[pa.Table, pa.Table]


@dataclass(frozen=True, slots=True)
class _Contest:
    """What the contenders share.

    Attributes:
        rival_session: The session of the job by hand.
        sent: The bids, by their number.
        states: A folder for the state of each run.
    """

    servers: str
    context: Context
    rival_session: SparkSession
    sent: Mapping[int, _Sent]
    states: Iterator[Path]

    def rivals(self) -> dict[str, Callable[[int], float]]:
        """Contenders by name: flowcore, and the same job by hand."""
        return {
            "flowcore": partial(self._join, once=False),
            "by hand": partial(self._join_by_hand, ids=True),
            "by hand, bare": partial(self._join_by_hand, ids=False),
        }

    def deliveries(self) -> dict[str, Callable[[int], float]]:
        """Contenders by name: flowcore with each delivery guarantee, and with a small output too."""
        return {
            "at least once": partial(self._join, once=False),
            "exactly once": partial(self._join, once=True),
            "counts, at least once": partial(self._count, once=False),
            "counts, exactly once": partial(self._count, once=True),
        }

    def _join(self, bids: int, *, once: bool) -> float:
        sent = self.sent[bids]
        plan = self._plan(read_from(sent.topic), once=once)
        fresh = fresh_context(self.context, next(self.states))
        check = partial(check_join, sent.expected, once=once)
        return _timed(self.servers, [ENRICHED, HIGHEST], check, lambda: _run_ours(plan, fresh))

    def _count(self, bids: int, *, once: bool) -> float:
        sent = self.sent[bids]
        plan = self._plan(count_bids(sent.topic, COUNTS), once=once)
        settings = replace(self.context.settings, state_dir=next(self.states))
        fresh = Context(self.context.spark, settings, plan.flow)
        check = partial(check_counts, sent.bids)
        return _timed(self.servers, [COUNTS], check, lambda: _run_ours(plan, fresh))

    def _join_by_hand(self, bids: int, *, ids: bool) -> float:
        sent, settings = self.sent[bids], self.context.settings
        work = partial(_run_rival, self.rival_session, settings, next(self.states), sent.topic, ids=ids)
        check = partial(check_join, sent.expected, once=False)
        return _timed(self.servers, [RIVAL_ENRICHED, RIVAL_HIGHEST], check, work)

    def _plan(self, declared: Flow, *, once: bool) -> Plan:
        flow = deliver_exactly_once(declared) if once else declared
        plan = plan_flow(flow, "slice", self.context.settings)
        delete_ledgers(self.servers, plan)
        return plan


def _send(servers: str, folder: Path, history_events: int, count: int) -> _Sent:
    topic, batches = f"{BIDS}-{count}", list(generator.live_batches(CONFIG, history_events, count))
    ensure_topics(servers, {topic: PARTITIONS})
    feed.feed(servers, topic, batches)
    bids = pa.concat_tables(batches)
    return _Sent(
        topic, bids, (verify.expected_enriched(folder / "history", bids), verify.expected_highest(bids))
    )


def _run_ours(plan: Plan, context: Context) -> None:
    with LiveRun(plan, context) as run:
        run.wait()


def _run_rival(spark: SparkSession, settings: Settings, checkpoints: Path, bids: str, *, ids: bool) -> None:
    """The job as an experienced engineer writes it: tuned clients, broadcast join, two queries at once."""
    manifest = results_of(Context(spark, settings, flow.name)).require("catalog")
    root = settings.state_dir / flow.name / "results" / "catalog" / manifest.version / "catalog"
    catalog = F.broadcast(spark.read.parquet(str(root)))
    source = {"kafka.bootstrap.servers": settings.bootstrap_servers, "subscribe": bids}
    records = (
        spark.readStream.format("kafka")
        .options(**source, **TUNED_READ, startingOffsets="earliest")
        .load()
        .select(F.from_json(F.col("value").cast("string"), LIVE_BID).alias("bid"), *COORDINATES)
    )
    joined = records.select("bid.*", *COORDINATES).join(catalog, "auction_id", "left")
    columns = "bid_id", "auction_id", "bidder", "price", "category", "seller", "sold", "ratio", "sent_us"
    enriched = joined.withColumn("ratio", F.col("price") / F.col("median"))
    topic = identify_topics(str(settings.bootstrap_servers), [bids])[bids]
    of_topic = topic.id if topic else ""
    highest = joined.groupBy("auction_id").agg(F.max("price").alias("highest"), F.count("*").alias("bids"))

    def header(writer: str, *place: Column) -> list[Column]:
        """The id of a record: a place in the input, or a key and how many records it has had."""
        if not ids:
            return []
        record_id = F.concat_ws(":", F.lit(f"{flow.name}/{writer}"), F.lit(of_topic), *place).cast("binary")
        return [
            F.array(F.struct(F.lit("flowcore-id").alias("key"), record_id.alias("value"))).alias("headers")
        ]

    outputs = {
        RIVAL_ENRICHED: enriched.select(
            F.to_json(F.struct(*columns)).alias("value"),
            *header(RIVAL_ENRICHED, F.col("partition"), F.col("offset"), F.lit("0")),
        ),
        RIVAL_HIGHEST: highest.select(
            F.col("auction_id").cast("string").alias("key"),
            F.to_json(F.struct("auction_id", "highest")).alias("value"),
            *header(RIVAL_HIGHEST, F.col("auction_id"), F.col("bids")),
        ),
    }
    queries = [
        frame.writeStream.format("kafka")
        .options(**{"kafka.bootstrap.servers": settings.bootstrap_servers, "topic": topic, **TUNED_WRITE})
        .option("checkpointLocation", str(checkpoints / topic))
        .outputMode("update")
        .trigger(availableNow=True)
        .start()
        for topic, frame in outputs.items()
    ]
    for query in queries:
        query.awaitTermination()


def _timed(servers: str, topics: list[str], check: Callable[..., None], work: Callable[[], None]) -> float:
    """Seconds of the work; the values of each topic are read back and checked afterwards."""
    before = [end_offsets(servers, topic) for topic in topics]
    began = time.monotonic()
    work()
    seconds = time.monotonic() - began
    check(*(list(read_values(servers, topic, start)) for topic, start in zip(topics, before, strict=True)))
    return seconds


def check_join(
    expected: tuple[pa.Table, pa.Table], enriched: list[bytes], highest: list[bytes], *, once: bool
) -> None:
    """Check the enriched bids, and the last price of each auction.

    Args:
        expected: The right rows of both.
        enriched: The values that were written.
        highest: The values that were written, in the order of the topic.
        once: Refuse copies of a bid, which a repeated task writes unless delivery is exactly once.

    Raises:
        RunError: A row is missing, wrong, unexpected, or refused as a copy.
    """
    for comparison in (
        verify.compare_enriched(expected[0], verify.rows_from_json(enriched, verify.ENRICHED)),
        verify.compare_highest(expected[1], verify.rows_from_json(highest, verify.HIGHEST)),
    ):
        if not (comparison.exact if once else comparison.nothing_lost_or_wrong):
            msg = f"{comparison}: the output is wrong, so its speed is meaningless"
            raise RunError(msg)
