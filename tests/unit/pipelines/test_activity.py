"""The flow `activity` has its features in the deployment's plan, and a wrong result of it is noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from flowcore.planner import plan_flow
from flowcore.settings import Settings
from pipelines.auctions.activity import flow
from pipelines.auctions.verify_activity import compare_activity, compare_bidders

DEPLOYED = Path(__file__).parents[3] / "deploy" / "settings.toml"
SENT = pa.table(
    {
        "auction_id": [1, 1, 2],
        "bidder": [1, 2, 2],
        "price": [1.0, 5.0, 2.0],
        "bid_time_ms": [1_000, 12_000, 5_000],
    }
)
WINDOW = {"auction_id": 1, "bids": 1, "highest": 1.0, "window_end": "1970-01-01T00:00:10.000000Z"}
LATE = {"auction_id": 2, "price": 2.0, "bid_time_ms": 5_000}
TOTALS = [{"bidder": 1, "bids": 1, "highest": 1.0}, {"bidder": 2, "bids": 2, "highest": 5.0}]


def _values(*rows: dict[str, Any]) -> list[bytes]:
    return [json.dumps(row).encode() for row in rows]


def test_plan_shows_the_features_with_the_settings_of_the_deployment() -> None:
    """Late bids, the flush interval, values only, and markers in both queries that have sinks."""
    text = plan_flow(flow, settings=Settings.of(file=DEPLOYED, environment={})).explain()

    assert "later records to the side output" in text
    assert "bidders emits the latest result of each (bidder) every 5 s" in text
    assert "bidder_totals -> topic bidder-totals: value-only elements" in text
    assert text.count("latency markers every 1 s") == 2


def test_a_bid_is_in_its_window_or_late() -> None:
    """The window that is not complete is not compared."""
    assert compare_activity(SENT, _values(WINDOW), _values(LATE)).exact
    assert compare_activity(SENT, _values(WINDOW), []).missing == 1
    assert compare_activity(SENT, _values({**WINDOW, "bids": 2}), _values(LATE)).wrong == 1
    assert compare_activity(SENT, _values(WINDOW), _values(LATE, LATE)).wrong == 1


def test_a_flow_that_emits_nothing_or_stops_early_is_noticed() -> None:
    """Event time has passed the first window, whether or not it was emitted."""
    assert compare_activity(SENT, [], []).missing == 2
    assert compare_activity(SENT, [], _values(LATE)).missing == 1
    later = SENT.set_column(3, "bid_time_ms", pa.array([1_000, 35_000, 15_000]))
    assert compare_activity(later, _values(WINDOW), []).missing == 1


def test_the_latest_totals_count() -> None:
    """Earlier updates of a bidder are ignored, and a last one with lower totals is not."""
    assert compare_bidders(SENT, _values({**TOTALS[1], "bids": 1}, *TOTALS)).exact
    assert compare_bidders(SENT, _values(*TOTALS, {**TOTALS[1], "bids": 1})).wrong == 1
    assert compare_bidders(SENT, _values(TOTALS[0])).missing == 1
    assert compare_bidders(SENT, _values(TOTALS[0], {**TOTALS[1], "highest": 6.0})).wrong == 1
