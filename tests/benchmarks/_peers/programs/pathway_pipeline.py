"""The workloads in Pathway: `python pathway_pipeline.py join`, with a thread for each processor."""

from __future__ import annotations

import os
import sys
from typing import Any

import pathway as pw

LINGER_MS = os.environ["LINGER_MS"]
READ = {
    "bootstrap.servers": os.environ["SERVERS"],
    "group.id": os.environ["OUTPUT"],
    "auto.offset.reset": "earliest",
    "fetch.message.max.bytes": str(8 << 20),
}
WRITE = {"bootstrap.servers": os.environ["SERVERS"], "linger.ms": LINGER_MS, "batch.size": str(512 << 10)}
COMMIT_MS = 5 if LINGER_MS == "0" else 500
"""How long records are collected before they are processed together."""

BID = pw.schema_from_types(bid=int, key=int, sent_us=int)
AUCTION = pw.schema_from_types(key=int, category=int)
VALUE = pw.schema_from_types(key=int, value=int)
TIMED = pw.schema_from_types(key=int, at=int)


def read(schema: Any) -> pw.Table:
    """The records of the input topic."""
    return pw.io.kafka.read(
        READ,
        os.environ["INPUT"],
        schema=schema,
        format="json",
        autocommit_duration_ms=COMMIT_MS,
        name="records",
    )


def join() -> pw.Table:
    """Add the category of each bid's auction; drop bids without one."""
    bids = read(BID)
    auctions = pw.io.csv.read(os.environ["TABLE"], schema=AUCTION, mode="static", name="auctions")
    return bids.join(auctions, bids.key == auctions.key).select(
        bids.bid, bids.key, auctions.category, bids.sent_us
    )


def running_sum() -> pw.Table:
    """The sum of the values of each key."""
    records = read(VALUE)
    return records.groupby(records.key).reduce(records.key, total=pw.reducers.sum(records.value))


def windows() -> pw.Table:
    """The records of each key in each 10 s."""
    records = read(TIMED)
    return records.windowby(
        records.at,
        window=pw.temporal.tumbling(duration=10_000),
        instance=records.key,
        behavior=pw.temporal.exactly_once_behavior(shift=2_000),
    ).reduce(key=pw.this._pw_instance, window_start=pw.this._pw_window_start, n=pw.reducers.count())


WORKLOADS = {"join": join, "latency": join, "sum": running_sum, "windows": windows}
results = WORKLOADS[sys.argv[1]]()
pw.io.kafka.write(results, WRITE, os.environ["OUTPUT"], format="json")
pw.run(
    monitoring_level=pw.MonitoringLevel.NONE,
    persistence_config=pw.persistence.Config(
        pw.persistence.Backend.filesystem(os.environ["FOLDER"]),
        snapshot_interval_ms=int(os.environ["CHECKPOINT_S"]) * 1_000,
    ),
)
