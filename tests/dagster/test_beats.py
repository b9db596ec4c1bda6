"""A heartbeat has the figures of a run under stable keys, as numbers that the UI plots."""

from dataclasses import replace

import pytest
from dagster import FloatMetadataValue, IntMetadataValue, MarkdownMetadataValue, TextMetadataValue

from flowcore.dagster.metadata import progress_metadata
from flowcore.metrics.progress import (
    FlowProgress,
    LatencyProgress,
    PartitionProgress,
    QueryProgress,
    Switch,
    measures_of,
)

pytestmark = pytest.mark.dagster

NOW_MS = 1_800_000_000_000
VERSION = "20270115T075959-0a1b2c3d"  # a second before
PARTITION = PartitionProgress(topic="bids", partition=0, offset=9, end=10, lag=1, watermark_ms=NOW_MS - 5_000)
QUERY = QueryProgress(
    name="out", mode="realtime", active=True, batches=3, rows_in=1 << 31, rows_per_second=450.5, rows_out=5,
    rows_out_per_second=4.0, lag=1, batch_ms=2_000, watermark_ms=NOW_MS - 5_000, late=5, dropped=4,
    dead_letters=6, repeated=9, unidentified=2, saved=8, buffered=3, oldest_buffered_ms=250,
    open_transactions=2, oldest_transaction_ms=40, backlog=True,
    state_rows=7, state_bytes=2_048,
    bounded={"usual": VERSION}, partitions=(PARTITION,),
)  # fmt: skip
LATENCY = LatencyProgress(source="sales/bids", sink="out", markers=60, p50_ms=0.5, p90_ms=2.0, p99_ms=4.0)
UNTOLD = LatencyProgress(source="sales/asks", sink="out", markers=0)
RUN = FlowProgress(
    flow="sales", time_ms=NOW_MS, seconds=60.0, broker_silent_ms=12_500, queries=(QUERY,),
    latencies=(LATENCY, UNTOLD),
    switches=(Switch(time_ms=NOW_MS, query="out", before="slice", after="realtime", reason="all native"),),
)  # fmt: skip


def test_beat_plots_every_measure_that_has_a_course() -> None:
    """Numbers, and in addition text for the values that cannot be plotted."""
    found = progress_metadata(RUN)
    numbers = {
        key: value.value
        for key, value in found.items()
        if isinstance(value, (IntMetadataValue, FloatMetadataValue))
    }
    texts = {key: value.value for key, value in found.items() if isinstance(value, TextMetadataValue)}

    assert numbers == {
        "seconds": 60.0, "broker_silent_s": 12.5, "bounded_age_s/usual": 1.0, "out/realtime": 1,
        "out/repeated": 9, "out/unidentified": 2, "out/saved": 8, "out/buffered": 3,
        "out/oldest_buffered_ms": 250, "out/open_transactions": 2, "out/oldest_transaction_ms": 40,
        "out/batches": 3, "out/records": float(1 << 31), "out/records_per_second": 450.5,
        "out/records_out": 5, "out/records_out_per_second": 4.0, "out/lag": 1, "out/batch_ms": 2_000,
        "out/watermark_delay_s": 5.0, "out/late": 5, "out/dropped": 4, "out/dead_letters": 6,
        "out/backlog": 1, "out/state_rows": 7, "out/state_bytes": 2_048,
        "out/bids[0]/lag": 1, "out/bids[0]/watermark_delay_s": 5.0,
        "latency/sales/bids -> out/markers": 60, "latency/sales/bids -> out/p50_ms": 0.5,
        "latency/sales/bids -> out/p90_ms": 2.0, "latency/sales/bids -> out/p99_ms": 4.0,
        "latency/sales/asks -> out/markers": 0,
    }  # fmt: skip
    assert texts == {"out/mode": "realtime", "bounded_version/usual": VERSION}
    plotted = [measure for measure in measures_of(QUERY) if measure.plotted]
    assert sum(key.count("/") == 1 and key.startswith("out/") for key in numbers) == len(plotted) + 1


def test_beat_has_no_number_for_what_is_not_known() -> None:
    """The plot has a gap, not a zero."""
    found = progress_metadata(replace(RUN, queries=(replace(QUERY, lag=None, rows_per_second=None),)))

    assert "out/lag" not in found
    assert "out/records_per_second" not in found


def test_beat_shows_the_health_as_tables() -> None:
    """One for each subject, as Markdown."""
    health = progress_metadata(RUN)["health"]

    assert isinstance(health, MarkdownMetadataValue)
    assert "| `out` | `realtime` | `backlog` | 450 | 4 | 1 | 5 s ago |" in (health.md_str or "")
    assert "| `out` | 5 | 4 | 6 |" in (health.md_str or "")
    assert "| `slice to realtime` | `all native` |" in (health.md_str or "")
