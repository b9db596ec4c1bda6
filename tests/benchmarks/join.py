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
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click
import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

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
    outputs = [ENRICHED, HIGHEST, "rival-enriched", "rival-highest"]
    ensure_topics(servers, dict.fromkeys([COUNTS, *outputs], PARTITIONS))
    sent = {count: _send(servers, folder, history_events, count) for count in parts_of(bids)}
    settings = Settings.of(
        {"kafka.bootstrap.servers": servers, "data.dir": folder, "state.dir": folder / "state"}
    )
    plan = plan_flow(read_from(sent[bids].topic), "slice", settings)
    with open_context(plan, settings) as context:
        run_plan(replace(plan, live=None), context)
        states = (folder / f"state-{number}" for number in itertools.count())
        rival_session = live_session(context.spark, settings)

        def ours(count: int, *, once: bool) -> float:
            declared = read_from(sent[count].topic)
            plan = plan_flow(deliver_exactly_once(declared) if once else declared, "slice", settings)
            fresh = fresh_context(context, next(states))
            delete_ledgers(servers, plan)
            check = partial(check_join, sent[count].expected, once=once)
            return _timed(servers, outputs[:2], check, lambda: _run_ours(plan, fresh))

        def counted(count: int, *, once: bool) -> float:
            declared = count_bids(sent[count].topic, COUNTS)
            plan = plan_flow(deliver_exactly_once(declared) if once else declared, "slice", settings)
            fresh = Context(context.spark, replace(settings, state_dir=next(states)), plan.flow)
            delete_ledgers(servers, plan)
            check = partial(check_counts, sent[count].bids)
            return _timed(servers, [COUNTS], check, lambda: _run_ours(plan, fresh))

        def rival(count: int, *, ids: bool) -> float:
            work = partial(_run_rival, rival_session, settings, next(states), sent[count].topic, ids=ids)
            check = partial(check_join, sent[count].expected, once=False)
            return _timed(servers, outputs[2:], check, work)

        contenders: dict[str, Callable[[int], float]]
        if delivery:
            contenders = {
                "at least once": partial(ours, once=False),
                "exactly once": partial(ours, once=True),
                "counts, at least once": partial(counted, once=False),
                "counts, exactly once": partial(counted, once=True),
            }
            compared = {
                "ratio_exactly_once": ("exactly once", "at least once"),
                "ratio_exactly_once_of_counts": ("counts, exactly once", "counts, at least once"),
            }
        else:
            contenders = {
                "flowcore": partial(ours, once=False),
                "by hand": partial(rival, ids=True),
                "by hand, bare": partial(rival, ids=False),
            }
            compared = {
                "ratio": ("flowcore", "by hand"),
                "ratio_without_ids": ("flowcore", "by hand, bare"),
            }
        figures = run_rates(rounds, contenders, bids, "bids/s")
    rates = {figure.name: figure for figure in figures}
    ratios: dict[str, float] = {}
    for name, (one, other) in compared.items():
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
        "rival-enriched": enriched.select(
            F.to_json(F.struct(*columns)).alias("value"),
            *header("rival-enriched", F.col("partition"), F.col("offset"), F.lit("0")),
        ),
        "rival-highest": highest.select(
            F.col("auction_id").cast("string").alias("key"),
            F.to_json(F.struct("auction_id", "highest")).alias("value"),
            *header("rival-highest", F.col("auction_id"), F.col("bids")),
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
