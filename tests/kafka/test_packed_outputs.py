"""What Python reads of an exchange for the next one is what Spark makes of it: results, ids, dead letters."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flowcore import Stream, Tumbling
from tests.kafka.readings import Flows, Topics, require_same_results
from tests.sampling import sample

pytestmark = pytest.mark.kafka


def _windows_of_windows(streams: list[Stream], topics: Topics) -> None:
    windows = streams[0].window(Tumbling(10), by=("shop", "n"), name="counts", allowed_lateness=1_000)
    some = windows.aggregate(count="count(*)").where("count > 1 OR shop IS NULL")
    totals = some.window(Tumbling(20), by="n", name="totals", uses=["count"], late="side-output")
    results = totals.aggregate(all="sum(count)")
    results.write("out", topics["out"])
    results.late.write("late", topics["late"])


def _three_windows(streams: list[Stream], topics: Topics) -> None:
    counts = streams[0].window(Tumbling(10), by=("shop", "n"), name="counts").aggregate(total="sum(price)")
    dear = counts.with_columns(dear="total > 50")
    most = dear.window(Tumbling(20), by=("shop", "dear"), name="most").aggregate(most="max(total)")
    most.window(Tumbling(20), by="dear", name="all").aggregate(all="sum(most)").write("out", topics["out"])


def _deep_joins(streams: list[Stream], topics: Topics) -> None:
    first, second, third = streams
    priced = second.where("price > 60").select("shop", "n", "price AS paid", "share AS part")
    pairs = first.join(priced, on=("shop", "n"), ttl=None)
    owners = third.where("price > 90").select("n AS owner", "at AS since", "open AS is_open")
    pairs.join(owners, on={"n": "owner"}, ttl=None).write("out", topics["out"])


def _averages(streams: list[Stream], topics: Topics) -> None:
    left, right = streams
    opened = right.where("price > 50").select("shop", "n AS kind", "at AS opened")
    pairs = left.join(opened, on="shop", ttl=None).where("at >= opened")
    highest = pairs.aggregate(by=("shop", "kind"), final="max(price)", name="highest")
    highest.aggregate(by="kind", price="avg(final)", name="averages").write("out", topics["out"])


def _distinct_in_windows(streams: list[Stream], topics: Topics) -> None:
    distinct = streams[0].deduplicate(by=("shop", "price"), within=timedelta(minutes=10))
    windows = distinct.window(Tumbling(10), by="shop", allowed_lateness=100, late="side-output")
    results = windows.aggregate(total="sum(price)")
    results.write("out", topics["out"])
    results.late.write("late", topics["late"])


def _interval_joins(streams: list[Stream], topics: Topics) -> None:
    left, right, third = streams
    second = timedelta(seconds=1)
    paid = right.select("shop", "price AS paid")
    pairs = left.join_interval(paid, on="shop", before=second, after=second, how="full")
    others = third.where("price > 80").select("shop", "n AS other")
    found = pairs.join_interval(others, on="shop", before=second, after=second, how="full")
    found.write("out", topics["out"])


def _ranked_windows(streams: list[Stream], topics: Topics) -> None:
    totals = streams[0].window(Tumbling(10), by=("shop", "n"), name="totals").aggregate(total="sum(price)")
    totals.top_n(2, by="shop", order=("total desc", "n", "window_start")).write("out", topics["out"])


def _sorted_halves(streams: list[Stream], topics: Topics) -> None:
    totals = streams[0].window(Tumbling(10), by=("shop", "n"), name="totals").aggregate(total="sum(price)")
    halves = totals.with_columns(half="total / 2")
    halves.window(Tumbling(10), by="n", name="all").aggregate(all="sum(half)").write("out", topics["out"])


CONNECTED: dict[str, tuple[int, Flows]] = {
    "windows-of-windows": (2, (1, _windows_of_windows, ["out", "late"])),
    "three-windows": (3, (1, _three_windows, ["out"])),
    "deep-joins": (2, (3, _deep_joins, ["out"])),
    "averages": (4, (2, _averages, ["out"])),
    "distinct-in-windows": (2, (1, _distinct_in_windows, ["out", "late"])),
    "interval-joins": (2, (3, _interval_joins, ["out"])),
    "ranked-windows": (2, (1, _ranked_windows, ["out"])),
    "sorted-halves": (1, (1, _sorted_halves, ["out"])),
}
"""How many exchanges Python reads for; only Spark divides."""


@pytest.mark.parametrize(
    "name", sample(CONNECTED, "windows-of-windows", "deep-joins", "averages", "ranked-windows")
)
def test_python_reads_outputs_as_spark_does(live: Any, name: str) -> None:
    """For one of two runs, nothing is left to the exchange that follows."""
    by_python, flows = CONNECTED[name]

    assert require_same_results(live, name, flows) == by_python
