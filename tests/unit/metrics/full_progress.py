"""A run and a query with a value in every field."""

import os
import socket
from typing import Any

from flowcore.metrics.progress import (
    FlowProgress,
    LatencyProgress,
    OperatorProgress,
    PartitionProgress,
    QueryProgress,
    Switch,
)

NOW_MS = 1_800_000_000_000
SWITCH = Switch(time_ms=NOW_MS - 60_000, query="out", before="slice", after="realtime", reason="all native")


def query(**more: Any) -> QueryProgress:
    """A query with a value in every field."""
    partition = PartitionProgress(
        topic="bids", partition=1, offset=900, end=1_000, lag=100, watermark_ms=NOW_MS - 3_000, idle=False
    )
    known = {
        "name": "out", "mode": "realtime", "active": True, "batches": 3, "rows_in": 900, "rows_out": 1_234,
        "rows_per_second": 450.5, "rows_out_per_second": 460.0, "lag": 100, "batch_ms": 2_000,
        "watermark_ms": NOW_MS - 3_000, "late": 5, "dropped": 4, "dead_letters": 6, "backlog": False,
        "saved": 8, "buffered": 3, "oldest_buffered_ms": 1_500,
        "open_transactions": 2, "oldest_transaction_ms": 2_500,
        "state_rows": 7, "state_bytes": 2_048,
        "bounded": {"usual": "20260101T000000-aa"}, "partitions": (partition,),
        "operators": (
            OperatorProgress(name="rated", busy_ms=500, busy_share=0.25),
            OperatorProgress(name="slow", busy_ms=90_000, busy_share=1.5),
        ),
    }  # fmt: skip
    return QueryProgress(**{**known, **more})


def run(**more: Any) -> FlowProgress:
    """A run with a value in every field."""
    latency = LatencyProgress(
        source="sales/bids", sink="sales/out", markers=60, p50_ms=0.5, p90_ms=2.0, p99_ms=4.0, max_ms=30.0
    )
    known = {
        "flow": "sales", "time_ms": NOW_MS, "seconds": 60.0, "interval_s": 5.0, "host": socket.gethostname(),
        "pid": os.getpid(), "queries": (query(),), "latencies": (latency,), "switches": (SWITCH,),
        "sinks": {},
    }  # fmt: skip
    return FlowProgress(**{**known, **more})
