"""Throughput of the reference flow over bids already in Kafka, against the same job in hand-written PySpark.

All run in turn as slices in one session, with the same Kafka client settings: a left join with the bounded
result to one topic, and the highest price per auction to another. One rival writes the same records, with the
header `flowcore-id`. A simpler one omits the header, so its readers cannot drop repeats. Only flowcore
detects bad records. With ``--delivery`` the flow is compared with itself with exactly-once delivery instead.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
import pyarrow as pa
from confluent_kafka.admin import AdminClient
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from flowcore import Flow
from flowcore.api.operators import Write
from flowcore.delivery import ledger_topic
from flowcore.errors import RunError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import end_offsets, ensure_topics, identify_topics, partition_counts
from flowcore.planner import plan_flow
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.results.store import results_of
from flowcore.spark.run.flow import SilentListener, open_context, run_stages
from flowcore.spark.run.live_stage import LiveRun
from flowcore.spark.run.session import live_session
from pipelines.auctions import verify
from pipelines.auctions.flow import LIVE_BID, flow
from pipelines.auctions.readers import read_values
from pipelines.benchmark import Report
from pipelines.nexmark import feed, generator, history
from tests.benchmarks._auctions import BIDS, CONFIG, ENRICHED, HIGHEST, PARTITIONS, fresh_context
from tests.benchmarks._rounds import run_rounds

COORDINATES = "partition", "offset"
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
    ensure_topics(servers, {BIDS: PARTITIONS, **dict.fromkeys(outputs, PARTITIONS)})
    batches = list(generator.live_batches(CONFIG, history_events, bids))
    feed.feed(servers, BIDS, batches)
    sent = pa.concat_tables(batches)
    expected = verify.expected_enriched(folder / "history", sent), verify.expected_highest(sent)
    settings = Settings.of(
        {"kafka.bootstrap.servers": servers, "data.dir": folder, "state.dir": folder / "state"}
    )
    plan = plan_flow(flow, "slice", settings)
    with open_context(plan, settings) as context:
        run_stages(plan, context, refresh=False, listener=SilentListener())
        states = (folder / f"state-{number}" for number in itertools.count())
        rival_session = live_session(context.spark, settings)

        def ours(_round: int, *, plan: Plan) -> float:
            fresh = fresh_context(context, next(states))
            _delete_ledgers(servers, plan)
            return bids / _checked(servers, outputs[:2], expected, lambda: _run_ours(plan, fresh))

        def rival(_round: int, *, ids: bool) -> float:
            work = partial(_run_rival, rival_session, settings, next(states), ids=ids)
            return bids / _checked(servers, outputs[2:], expected, work)

        contenders: dict[str, Callable[[int], float]] = {"flowcore": partial(ours, plan=plan)}
        if delivery:
            exactly_once = plan_flow(_exactly_once(flow), "slice", settings)
            contenders["exactly once"] = partial(ours, plan=exactly_once)
        else:
            contenders |= {"by hand": partial(rival, ids=True), "by hand, bare": partial(rival, ids=False)}
        figures = run_rounds(rounds, contenders, "bids/s")
    ours_per_s, *others = (figure.median for figure in figures)
    if delivery:
        ratios = {"ratio_exactly_once": others[0] / ours_per_s}
    else:
        ratios = {"ratio": ours_per_s / others[0], "ratio_without_ids": ours_per_s / others[1]}
    return Report(
        name="join",
        workload=f"{bids:,} bids of {PARTITIONS} partitions joined with {history_events:,} events of history "
        "and the highest price per auction, slice mode, both queries side by side",
        figures=figures,
        ratios=ratios,
        verified="every output of every round, warm-up included, against DuckDB over the same events",
    )


def _exactly_once(flow: Flow) -> Flow:
    """The flow with exactly-once delivery of its topics."""
    copy = Flow(flow.name)
    for node in flow.operators:
        if isinstance(node, Write) and node.topic is not None:
            copy.register(replace(node, sink=replace(node.topic, delivery="exactly-once")))
        else:
            copy.register(node)
    return copy


def _delete_ledgers(servers: str, plan: Plan) -> None:
    """Let the flow write again with a new checkpoint, as no other round had written."""
    ledgers = [ledger_topic(plan.flow, query.name) for query in plan.live_queries if query.exactly_once]
    known = [name for name, count in partition_counts(servers, ledgers).items() if count is not None]
    if known:
        client = AdminClient({"bootstrap.servers": servers})
        for deleted in client.delete_topics(known).values():
            deleted.result(30)


def _run_ours(plan: Plan, context: Context) -> None:
    with LiveRun(plan, context) as run:
        run.wait()


def _run_rival(spark: SparkSession, settings: Settings, checkpoints: Path, *, ids: bool) -> None:
    """The job as an experienced engineer writes it: tuned clients, broadcast join, two queries at once."""
    manifest = results_of(Context(spark, settings, flow.name)).require("catalog")
    root = settings.state_dir / flow.name / "results" / "catalog" / manifest.version / "catalog"
    catalog = F.broadcast(spark.read.parquet(str(root)))
    source = {"kafka.bootstrap.servers": settings.bootstrap_servers, "subscribe": BIDS}
    records = (
        spark.readStream.format("kafka")
        .options(**source, **TUNED_READ, startingOffsets="earliest")
        .load()
        .select(F.from_json(F.col("value").cast("string"), LIVE_BID).alias("bid"), *COORDINATES)
    )
    joined = records.select("bid.*", *COORDINATES).join(catalog, "auction_id", "left")
    columns = "bid_id", "auction_id", "bidder", "price", "category", "seller", "sold", "ratio", "sent_us"
    enriched = joined.withColumn("ratio", F.col("price") / F.col("median"))
    topic = identify_topics(str(settings.bootstrap_servers), [BIDS])[BIDS]
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


def _checked(
    servers: str, topics: list[str], expected: tuple[pa.Table, pa.Table], work: Callable[[], None]
) -> float:
    """Seconds of the work; the output is read back and compared afterwards."""
    before = [end_offsets(servers, topic) for topic in topics]
    began = time.monotonic()
    work()
    seconds = time.monotonic() - began
    enriched, highest = (
        list(read_values(servers, topic, start)) for topic, start in zip(topics, before, strict=True)
    )
    for comparison in (
        verify.compare_enriched(expected[0], verify.rows_from_json(enriched, verify.ENRICHED)),
        verify.compare_highest(expected[1], verify.rows_from_json(highest, verify.HIGHEST)),
    ):
        if not comparison.nothing_lost_or_wrong:
            msg = f"topics {topics}: {comparison}: the output is wrong, so its speed is meaningless"
            raise RunError(msg)
    return seconds
