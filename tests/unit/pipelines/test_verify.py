"""The check accepts a right set of results and finds each single fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.auctions.verify import (
    ENRICHED,
    HIGHEST,
    Comparison,
    compare_enriched,
    compare_highest,
    expected_enriched,
    expected_highest,
    rows_from_json,
)
from pipelines.nexmark.feed import encode
from pipelines.nexmark.generator import NexmarkConfig, auctions, bids, live_bids
from pipelines.nexmark.history import write_history

Row = dict[str, Any]
EVENTS = 2_000
LIVE = 300
CONFIG = NexmarkConfig(unlisted_ratio=0.1)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("it's a history")
    write_history(CONFIG, EVENTS, folder)
    return folder


@pytest.fixture(scope="module")
def enriched(history: Path) -> list[Row]:
    rows: list[Row] = expected_enriched(history, live_bids(CONFIG, EVENTS, 0, LIVE)).to_pylist()
    return rows


def test_expected_enriched_is_what_plain_python_computes(enriched: list[Row]) -> None:
    """Three nested loops give the same rows as the query."""
    history_bids = bids(CONFIG, 0, EVENTS).to_pylist()
    by_id = {auction["auction_id"]: auction for auction in auctions(CONFIG, 0, EVENTS).to_pylist()}
    prices: dict[int, list[float]] = {}
    sold: dict[int, set[int]] = {}
    for bid in history_bids:
        seller = by_id[bid["auction_id"]]["seller"]
        prices.setdefault(seller, []).append(bid["price"])
        sold.setdefault(seller, set()).add(bid["auction_id"])
    rows = {row["bid_id"]: row for row in enriched}

    assert len(rows) == len(enriched) == LIVE
    for bid in live_bids(CONFIG, EVENTS, 0, LIVE).to_pylist():
        auction = by_id.get(bid["auction_id"])
        known = auction is not None and auction["seller"] in sold
        expected = {name: bid[name] for name in ("bid_id", "auction_id", "bidder", "price")}
        expected["category"] = auction["category"] if auction and known else None
        expected["seller"] = auction["seller"] if auction and known else None
        expected["sold"] = len(sold[auction["seller"]]) if auction and known else None
        expected["ratio"] = (
            pytest.approx(bid["price"] / median(prices[auction["seller"]]), rel=1e-12)
            if auction and known
            else None
        )
        assert rows[bid["bid_id"]] == expected


def test_a_seller_without_bids_is_not_in_the_catalog(tmp_path: Path) -> None:
    """An auction without bids has no median, so its live bids get nulls, including the category."""
    for name, table in (
        ("auctions", auctions(CONFIG, 0, 50).slice(0, 2)),
        ("bids", bids(CONFIG, 0, 50).slice(0, 0)),
    ):
        (tmp_path / name).mkdir()
        pq.write_table(table, tmp_path / name / "part.parquet")

    rows = expected_enriched(tmp_path, live_bids(CONFIG, 50, 0, 5)).to_pylist()

    assert len(rows) == 5
    assert all(row[name] is None for row in rows for name in ENRICHED.names[4:])


def test_expected_highest_is_the_maximum_of_each_auction() -> None:
    """One row for each auction that was bid on."""
    live = live_bids(CONFIG, EVENTS, 0, LIVE)
    best: dict[int, float] = {}
    for bid in live.to_pylist():
        best[bid["auction_id"]] = max(bid["price"], best.get(bid["auction_id"], 0))

    rows = expected_highest(live).to_pylist()

    assert {row["auction_id"]: row["highest"] for row in rows} == best
    assert len(rows) == len(best)


def test_enriched_in_any_order_is_exact(enriched: list[Row]) -> None:
    """Partitions are read in sequence, so order has no meaning."""
    comparison = compare(enriched, sorted(enriched, key=lambda row: row["price"]))

    assert comparison == Comparison(LIVE, LIVE, 0, 0, 0, 0)
    assert comparison.exact


def drop(rows: list[Row], at: int) -> list[Row]:
    return rows[:at] + rows[at + 1 :]


def copy(rows: list[Row], at: int) -> list[Row]:
    return [*rows, rows[at]]


def rename(rows: list[Row], at: int) -> list[Row]:
    return [*rows[:at], {**rows[at], "bid_id": -1}, *rows[at + 1 :]]


def forget_id(rows: list[Row], at: int) -> list[Row]:
    return [*rows, {**rows[at], "bid_id": None}]


def copy_wrongly(rows: list[Row], at: int) -> list[Row]:
    return [{**rows[at], "bidder": 0}, *rows]


@pytest.mark.parametrize(
    ("corrupt", "expected"),
    [
        (drop, Comparison(LIVE, LIVE - 1, 1, 0, 0, 0)),
        (copy, Comparison(LIVE, LIVE, 0, 0, 1, 0)),
        (rename, Comparison(LIVE, LIVE - 1, 1, 0, 0, 1)),
        (forget_id, Comparison(LIVE, LIVE, 0, 0, 0, 1)),
        (copy_wrongly, Comparison(LIVE, LIVE - 1, 0, 1, 1, 0)),
    ],
    ids=["dropped", "copied", "unknown", "no-id", "copied-wrongly"],
)
@pytest.mark.parametrize("at", [0, LIVE - 1], ids=["first", "last"])
def test_enriched_fault_is_counted_as_what_it_is(
    enriched: list[Row],
    corrupt: Callable[[list[Row], int], list[Row]],
    expected: Comparison,
    at: int,
) -> None:
    """At any place, one fault is one count; only a copy leaves nothing lost or wrong."""
    comparison = compare(enriched, corrupt(enriched, at))

    assert comparison == expected
    assert not comparison.exact
    assert comparison.nothing_lost_or_wrong == (corrupt is copy)


@pytest.mark.parametrize("name", ENRICHED.names[1:])
def test_enriched_with_one_changed_value_is_wrong(enriched: list[Row], name: str) -> None:
    """A value that is off by a millionth, null, or there where null is right, is found."""
    listed = next(at for at, row in enumerate(enriched) if row["seller"] is not None)
    unlisted = next(at for at, row in enumerate(enriched) if row["seller"] is None)
    value = enriched[listed][name]
    off = value + (1 if isinstance(value, int) else value * 1e-6)

    for at, changed in ((listed, off), (listed, None), (unlisted, 1)):
        received = [*enriched[:at], {**enriched[at], name: changed}, *enriched[at + 1 :]]
        assert compare(enriched, received) == Comparison(LIVE, LIVE - 1, 0, 1, 0, 0)


def test_enriched_may_differ_by_rounding(enriched: list[Row]) -> None:
    """Differences in the last bits of a quotient are allowed."""
    received = [{**row, "ratio": row["ratio"] and row["ratio"] * (1 + 1e-12)} for row in enriched]

    assert compare(enriched, received).exact


def test_nothing_received_is_all_missing(enriched: list[Row]) -> None:
    """An empty topic is not an empty success."""
    assert compare(enriched, []) == Comparison(LIVE, 0, LIVE, 0, 0, 0)


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ([(1, 5.0), (2, 7.0), (1, 9.0)], Comparison(2, 2, 0, 0, 0, 0)),
        ([(1, 9.0), (2, 7.0), (1, 9.0)], Comparison(2, 2, 0, 0, 0, 0)),
        ([(1, 9.0), (2, 7.0), (1, 5.0)], Comparison(2, 1, 0, 1, 0, 0)),
        ([(1, 9.0), (2, 7.0), (1, None)], Comparison(2, 1, 0, 1, 0, 0)),
        ([(1, 9.0)], Comparison(2, 1, 1, 0, 0, 0)),
        ([(1, 9.0), (2, 7.0), (3, 1.0)], Comparison(2, 2, 0, 0, 0, 1)),
    ],
    ids=["rises", "repeats", "falls-at-last", "null-at-last", "missing", "unknown"],
)
def test_highest_is_judged_by_the_last_update(
    updates: list[tuple[int, float | None]], expected: Comparison
) -> None:
    """A table that follows the topic would have the last update."""
    right = pa.table({"auction_id": [1, 2], "highest": [9.0, 7.0]}, schema=HIGHEST)
    received = pa.Table.from_pylist(
        [{"auction_id": auction, "highest": price} for auction, price in updates], schema=HIGHEST
    )

    assert compare_highest(right, received) == expected


def test_json_of_the_feed_round_trips() -> None:
    """JSON keeps every number and the time of sending."""
    live = live_bids(CONFIG, EVENTS, 0, LIVE)

    values = encode(live, sent_us=42)

    assert [json.loads(value) for value in values] == [{**row, "sent_us": 42} for row in live.to_pylist()]
    assert rows_from_json(values, live.schema).equals(live)


def test_json_without_a_member_is_null(enriched: list[Row]) -> None:
    """Spark leaves null fields out, and may write fields that are not compared."""
    values = [
        json.dumps({name: value for name, value in row.items() if value is not None} | {"x": "y"})
        for row in enriched
    ]

    received = rows_from_json([value.encode() for value in values], ENRICHED)

    assert any(row["seller"] is None for row in enriched)
    assert received.to_pylist() == enriched
    assert rows_from_json([], ENRICHED).num_rows == 0


def compare(expected: list[Row], received: list[Row]) -> Comparison:
    return compare_enriched(
        pa.Table.from_pylist(expected, schema=ENRICHED),
        pa.Table.from_pylist(received, schema=ENRICHED),
    )
