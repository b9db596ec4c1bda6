"""What a run shows of its queries is numbers under keys that stay, so that Dagster plots them."""

from __future__ import annotations

import pytest
from dagster import FloatMetadataValue, IntMetadataValue

from flowcore.latency import LatencySummary
from flowcore.spark.progress import QueryProgress
from pipelines.bridge.metadata import progress_metadata

pytestmark = pytest.mark.dagster

QUERY = QueryProgress("bids", "realtime", True, 2, 1_000, 500.0, 990, dead_letters=10)


def test_latency_is_plotted_by_source_and_sink() -> None:
    """Count, percentiles and the longest; a source of which nothing was counted has no percentile."""
    told = LatencySummary("shop/sales", "shop/out", 7, 1.0, 2.0, 3.0, 4.0)
    untold = LatencySummary("shop/more", "shop/out", 0, None, None, None, None, skewed=3)

    found = progress_metadata([QUERY], 5.0, {"catalog": "v1"}, [told, untold])

    path = "latency/shop/sales -> shop/out"
    assert {key: found[key].value for key in found if key.startswith("latency/")} == {
        f"{path}/markers": 7,
        f"{path}/p50_ms": 1.0,
        f"{path}/p90_ms": 2.0,
        f"{path}/p99_ms": 3.0,
        f"{path}/max_ms": 4.0,
        "latency/shop/more -> shop/out/markers": 0,
    }
    assert isinstance(found[f"{path}/markers"], IntMetadataValue)
    assert isinstance(found[f"{path}/p90_ms"], FloatMetadataValue)


def test_dead_letters_are_counted_and_latency_is_absent_where_it_is_not_tracked() -> None:
    """Nothing stands for a figure that nobody measures."""
    found = progress_metadata([QUERY], 5.0, {})

    assert found["bids/dead_letters"].value == 10
    assert not [key for key in found if key.startswith("latency/")]
