"""`Stream.reduce`: records of a key are folded into one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.api.operators import KeyedProcess
from flowcore.errors import PlanError
from flowcore.planner import plan_flow
from flowcore.process.reducing import ReducingProcess
from flowcore.testing.harness import ProcessHarness

BID = "shop STRING, price BIGINT, n BIGINT"
COLUMNS = ("shop", "price", "n")


def total(kept: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    return {"shop": "overwritten", "price": max(kept["price"], new["price"]), "n": kept["n"] + new["n"]}


def harness(ttl: timedelta | None = None) -> ProcessHarness:
    row_type = "STRUCT<`shop`: STRING, `price`: BIGINT, `n`: BIGINT>"
    return ProcessHarness(ReducingProcess(total, row_type=row_type, columns=COLUMNS, keys=["shop"], ttl=ttl))


def bid(shop: str, price: int) -> tuple[str, dict[str, Any], int]:
    return shop, {"shop": shop, "price": price, "n": 1, "not in its schema": None}, 0


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 99))), st.integers(0, 20))
def test_each_record_gives_the_fold_of_its_key_over_restarts(bids: list[tuple[str, int]], at: int) -> None:
    """The key of an output is that of its records, whatever the function returns."""
    run, found = harness(), []
    for number, (shop, price) in enumerate(bids):
        if number == at:
            run.restart()
        found += [result.value for result in run.feed(bid(shop, price)).results]

    for number, (shop, _) in enumerate(bids):
        prices = [price for each, price in bids[: number + 1] if each == shop]
        assert found[number] == {"shop": shop, "price": max(prices), "n": len(prices)}


def test_a_fold_expires_after_its_time_to_live() -> None:
    """Each record renews the time."""
    run = harness(timedelta(seconds=1))
    run.feed(bid("a", 5))
    run.move_clock(900)
    assert run.feed(bid("a", 4)).results[0].value["n"] == 2
    run.move_clock(1_800)
    assert run.feed(bid("a", 3)).results[0].value["n"] == 3
    run.move_clock(2_801)
    assert run.feed(bid("a", 2)).results[0].value == {"shop": "a", "price": 2, "n": 1}


def flow(**options: Any) -> Flow:
    declared = Flow("f")
    bids = declared.read("bids", KafkaTopic("bids", schema=f"{BID}, kind STRING"))
    settings: dict[str, Any] = {"schema": BID, "by": "shop"}
    bids.reduce(total, **(settings | options)).write("out", KafkaTopic("out"))
    return declared


def test_a_reduce_updates_by_its_key_and_can_be_buffered() -> None:
    """Its sink needs no key of its own."""
    (query,) = (each for each in plan_flow(flow(flush=timedelta(minutes=1))).live_queries if each.sinks)
    (node,) = (each for each in query.operators if isinstance(each, KeyedProcess))

    assert (node.name, node.columns, node.key, node.updating) == ("reduce_1", COLUMNS, ("shop",), True)
    assert [each.name for each in query.buffers] == ["reduce_1"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"schema": "price BIGINT"}, "its schema does not have shop of its key"),
        ({"schema": f"{BID}, other INT"}, "other"),
        ({"by": "unknown"}, "unknown"),
    ],
    ids=["no key", "unknown column", "unknown key"],
)
def test_a_reduce_that_could_not_fold_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        flow(**options)


def test_a_reduce_of_bounded_input_is_refused() -> None:
    """The error names what gives one output for each key."""
    bids = Flow("f").read("bids", Parquet("bids", schema=BID))

    with pytest.raises(PlanError, match=r"each record would give an output; use window\(EndOfStream\(\)"):
        bids.reduce(total, schema=BID, by="shop")
