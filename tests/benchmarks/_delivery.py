"""Flows with both kinds of delivery: the reference flow, and one that writes a few counts of many bids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import duckdb
import pyarrow as pa
from confluent_kafka.admin import AdminClient

from flowcore import Flow, KafkaTopic, Tumbling
from flowcore.api.operators import Write
from flowcore.delivery import ledger_topic
from flowcore.errors import RunError
from flowcore.kafka.topics import partition_counts
from flowcore.planner.plan import Plan
from flowcore.watermarks import bounded_out_of_orderness
from pipelines.auctions import verify
from pipelines.auctions.flow import LIVE_BID
from tests.benchmarks._answers import count_differences

__all__ = ["check_counts", "count_bids", "delete_ledgers", "deliver_exactly_once"]

_DELAY_MS, _WINDOW_MS, _SHARDS = 5_000, 10_000, 100
_COUNTS = pa.schema(
    [
        pa.field(name, pa.float64() if name == "total" else pa.int64())
        for name in ("shard", "n", "total", "end_ms")
    ]
)


def deliver_exactly_once(flow: Flow) -> Flow:
    """The flow with exactly-once delivery of its topics."""
    copy = Flow(flow.name)
    for node in flow.operators:
        if isinstance(node, Write) and node.topic is not None:
            copy.register(replace(node, sink=replace(node.topic, delivery="exactly-once")))
        else:
            copy.register(node)
    return copy


def delete_ledgers(servers: str, plan: Plan) -> None:
    """Let the flow write again with a new checkpoint, as if no other round had written."""
    ledgers = [ledger_topic(plan.flow, query.name) for query in plan.live_queries if query.exactly_once]
    known = [name for name, count in partition_counts(servers, ledgers).items() if count is not None]
    if known:
        client = AdminClient({"bootstrap.servers": servers})
        for deleted in client.delete_topics(known).values():
            deleted.result(30)


def count_bids(source: str, out: str) -> Flow:
    """Bids in windows of ten seconds: a row for thousands of bids."""
    flow = Flow("counted-bids")
    topic = KafkaTopic(
        source, schema=LIVE_BID, event_time="bid_time_ms",
        watermark=bounded_out_of_orderness(timedelta(milliseconds=_DELAY_MS)),
    )  # fmt: skip
    shards = flow.read("bids", topic).with_columns(shard=f"auction_id % {_SHARDS}")
    counts = shards.window(Tumbling(_WINDOW_MS // 1000), by="shard").aggregate(
        n="count(*)", total="sum(price)"
    )
    counts.select("shard", "n", "total", "unix_millis(window_end) as end_ms").write("out", KafkaTopic(out))
    return flow


def check_counts(bids: pa.Table, values: Sequence[bytes]) -> None:
    """Check the counts of all windows that event time has passed.

    Raises:
        RunError: A row is missing, wrong or more than once there.
    """
    found = verify.rows_from_json(values, _COUNTS)
    expected = f"""
        SELECT * FROM (
            SELECT auction_id % {_SHARDS} AS shard, count(*) AS n, round(sum(price), 2) AS total,
                (bid_time_ms // {_WINDOW_MS} + 1) * {_WINDOW_MS} AS end_ms
            FROM bids GROUP BY shard, end_ms
        ) WHERE end_ms <= (SELECT max(end_ms) FROM found)
    """  # noqa: S608 - our own numbers
    with duckdb.connect() as database:
        database.register("bids", bids)
        database.register("found", found)
        wrong = count_differences(
            database, expected, "SELECT shard, n, round(total, 2) AS total, end_ms FROM found"
        )
        last_ms = bids["bid_time_ms"].to_numpy().max() - 2 * _DELAY_MS - _WINDOW_MS
        ((reached,),) = database.execute("SELECT max(end_ms) FROM found").fetchall()
    if wrong or (reached or 0) < last_ms:
        msg = f"{wrong:,} of {len(found):,} counts are wrong or missing, or end early, at {reached}"
        raise RunError(msg)
