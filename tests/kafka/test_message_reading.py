"""Messages that Python reads while it packs them are those that Spark reads: results and dead letters."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flowcore import Stream, Tumbling
from tests.kafka.readings import Flows, Topics, require_same_results
from tests.sampling import sample

pytestmark = pytest.mark.kafka


def _windows(streams: list[Stream], topics: Topics) -> None:
    by = ("shop", "n")
    windows = streams[0].window(Tumbling(10), by=by, allowed_lateness=100, late="side-output")
    results = windows.aggregate(total="sum(price)", most="max(share)", count="count(*)")
    results.write("out", topics["out"])
    results.late.write("late", topics["late"])


def _join(streams: list[Stream], topics: Topics) -> None:
    left, right = streams
    orders = right.select("shop", "n", "price AS paid", "share AS part")
    left.join(orders, on=("shop", "n"), how="inner", ttl=None).write("out", topics["out"])


def _interval_join(streams: list[Stream], topics: Topics) -> None:
    left, right = streams
    pairs = left.join_interval(
        right.select("shop", "price AS paid"),
        on="shop",
        before=timedelta(seconds=1),
        after=timedelta(seconds=2),
        how="full",
        late="side-output",
    )
    pairs.write("out", topics["out"])
    pairs.late_left.write("late", topics["late"])


def _ranks(streams: list[Stream], topics: Topics) -> None:
    best = streams[0].top_n(2, by="shop", order=("price desc", "at", "share", "n"))
    best.write("out", topics["out"])
    streams[0].select("shop", "at").write("records", topics["records"])  # in a query that writes dead letters


def _filtered(streams: list[Stream], topics: Topics) -> None:
    some = streams[0].where("price > 10 AND shop IN ('a', 'b') OR shop IS NULL").with_columns(few="n < 3")
    windows = some.window(Tumbling(10), by=("shop", "few"))
    results = windows.aggregate(dear="count_if(price BETWEEN 50 AND 80)", total="sum(price)")
    results.write("out", topics["out"])


def _windows_of_windows(streams: list[Stream], topics: Topics) -> None:
    counts = streams[0].window(Tumbling(10), by="shop", name="counts").aggregate(n="count(*)")
    totals = counts.window(Tumbling(20), name="totals", uses=["n"]).aggregate(all="sum(n)")
    totals.write("out", topics["out"])
    streams[0].select("shop", "at").write("late", topics["late"])


def _star(streams: list[Stream], topics: Topics) -> None:
    center, *others = streams
    for name, other in zip(("out", "late"), others, strict=True):
        center.join(other.select("shop", "n", "at AS since"), on=("shop", "n"), ttl=None).write(
            name, topics[name]
        )


CONNECTED: dict[str, Flows] = {
    "windows": (1, _windows, ["out", "late"]),
    "join": (2, _join, ["out"]),
    "interval": (2, _interval_join, ["out", "late"]),
    "ranks": (1, _ranks, ["out", "records"]),
    "filtered": (1, _filtered, ["out"]),
    "nested-beside-records": (1, _windows_of_windows, ["out", "late"]),
    "star": (3, _star, ["out", "late"]),
}


@pytest.mark.parametrize("name", sample(CONNECTED, "windows", "interval", "filtered", "star"))
def test_python_reads_messages_as_spark_does(live: Any, name: str) -> None:
    """For one of two runs, no messages are left to the exchange."""
    require_same_results(live, name, CONNECTED[name])
