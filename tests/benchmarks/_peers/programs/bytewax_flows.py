"""The workloads in Bytewax: `python -m bytewax.run bytewax_flows:join`, in two processes of a cluster."""

from __future__ import annotations

import csv
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import orjson
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.operators.windowing import EventClock, TumblingWindower, count_window

SERVERS = [os.environ["SERVERS"]]
SOURCE = KafkaSource(
    SERVERS, [os.environ["INPUT"]], batch_size=5_000, add_config={"fetch.message.max.bytes": str(8 << 20)}
)
SINK = KafkaSink(
    SERVERS,
    os.environ["OUTPUT"],
    add_config={"linger.ms": os.environ["LINGER_MS"], "batch.size": str(512 << 10)},
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW = datetime.now(UTC)


def message(key: str, value: dict[str, Any]) -> KafkaSinkMessage[bytes, bytes]:
    return KafkaSinkMessage(key.encode(), orjson.dumps(value))


def make_join(name: str) -> Dataflow:
    """Add the category of each bid's auction; drop bids without one."""
    with Path(os.environ["TABLE"]).open(newline="", encoding="utf-8") as file:
        categories = {int(row["key"]): int(row["category"]) for row in csv.DictReader(file)}

    def enrich(record: Any) -> KafkaSinkMessage[bytes, bytes] | None:
        bid = orjson.loads(record.value)
        category = categories.get(bid["key"])
        return (
            None
            if category is None
            else KafkaSinkMessage(record.key, orjson.dumps({**bid, "category": category}))
        )

    flow = Dataflow(name)
    op.output("out", op.filter_map("enrich", op.input("in", flow, SOURCE), enrich), SINK)
    return flow


def make_sum() -> Dataflow:
    """The sum of the values of each key, after each record."""

    def keyed(record: Any) -> tuple[str, int]:
        return record.key.decode(), orjson.loads(record.value)["value"]

    def add(total: int | None, value: int) -> tuple[int, int]:
        added = (total or 0) + value
        return added, added

    flow = Dataflow("sum")
    totals = op.stateful_map("add", op.map("parse", op.input("in", flow, SOURCE), keyed), add)
    output = op.map("format", totals, lambda pair: message(pair[0], {"key": int(pair[0]), "total": pair[1]}))
    op.output("out", output, SINK)
    return flow


def make_windows() -> Dataflow:
    """The records of each key in each 10 s."""
    length = timedelta(seconds=10)

    def parse(record: Any) -> tuple[str, datetime]:
        return record.key.decode(), EPOCH + timedelta(milliseconds=orjson.loads(record.value)["at"])

    # With the default clock a watermark moves with the machine's time too: records of a backlog may be late.
    clock = EventClock(
        lambda pair: pair[1], wait_for_system_duration=timedelta(seconds=2), now_getter=lambda: NOW
    )
    windower = TumblingWindower(length=length, align_to=EPOCH)

    def form(counted: tuple[str, tuple[int, int]]) -> KafkaSinkMessage[bytes, bytes]:
        key, (window, count) = counted
        return message(key, {"key": int(key), "window_start": window * 10_000, "n": count})

    flow = Dataflow("windows")
    records = op.map("parse", op.input("in", flow, SOURCE), parse)
    counts = count_window("count", records, clock, windower, lambda pair: pair[0])
    op.output("out", op.map("format", counts.down, form), SINK)
    return flow


join, latency = make_join("join"), make_join("latency")
sum, windows = make_sum(), make_windows()  # noqa: A001 - the workload's name
