"""The workloads in Quix Streams: `python quix_streams.py join`, once for each partition."""

from __future__ import annotations

import csv
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from quixstreams import Application, State

LINGER_MS = os.environ["LINGER_MS"]
app = Application(
    broker_address=os.environ["SERVERS"],
    consumer_group=os.environ["OUTPUT"],
    auto_offset_reset="earliest",
    commit_interval=float(os.environ["CHECKPOINT_S"]),
    state_dir=Path(os.environ["FOLDER"], f"state-{os.getpid()}"),
    loglevel="WARNING",
    consumer_extra_config={"fetch.min.bytes": 1, "fetch.message.max.bytes": 8 << 20},
    producer_extra_config={
        "linger.ms": LINGER_MS,
        "batch.size": 512 << 10,
        "queue.buffering.max.messages": 1_000_000,
    },
)


def join(records: Any) -> Any:
    """Add the category of each bid's auction; drop bids without one."""
    with Path(os.environ["TABLE"]).open(newline="", encoding="utf-8") as file:
        categories = {int(row["key"]): int(row["category"]) for row in csv.DictReader(file)}

    def enrich(bid: dict[str, Any]) -> dict[str, Any]:
        return {**bid, "category": categories[bid["key"]]}

    return records.filter(lambda bid: bid["key"] in categories).apply(enrich)


def running_sum(records: Any) -> Any:
    """The sum of the values of each key, after each record."""

    def add(record: dict[str, Any], state: State) -> dict[str, Any]:
        total = state.get("total", 0) + record["value"]
        state.set("total", total)
        return {"key": record["key"], "total": total}

    return records.apply(add, stateful=True)


def windows(records: Any) -> Any:
    """The records of each key in each 10 s."""
    counts = records.tumbling_window(timedelta(seconds=10), grace_ms=timedelta(seconds=2)).count().final()
    return counts.apply(
        lambda window, key, *_: {"key": int(key), "window_start": window["start"], "n": window["value"]},
        metadata=True,
    )


WORKLOADS = {"join": join, "latency": join, "sum": running_sum, "windows": windows}
workload = sys.argv[1]
source = app.topic(
    os.environ["INPUT"],
    key_deserializer="str",
    timestamp_extractor=(lambda value, *_: value["at"]) if workload == "windows" else None,
)
sink = app.topic(os.environ["OUTPUT"], key_serializer="str")
WORKLOADS[workload](app.dataframe(source)).to_topic(sink)
app.run()
