"""What a plan says of itself: read these files to see how flows are planned, and why so.

A change of the planner shows as a change of a file in ``golden``; to accept it, run
``python tests/unit/test_explain.py``.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from flowcore import Csv, Flow, KafkaTopic, Parquet, Stream
from flowcore.planner import plan_flow
from flowcore.planner.explain import explain
from pipelines.auctions.flow import flow as reference

GOLDEN = Path(__file__).parent / "golden"
SALE = "shop STRING, price DOUBLE"


def _bids(flow: Flow, name: str = "bids") -> Stream:
    return flow.read(name, KafkaTopic(name, schema=SALE))


def _shops(flow: Flow) -> Stream:
    return flow.read("shops", Parquet("shops", schema="shop STRING, city STRING"))


def auctions() -> Flow:
    """History digested first, then the stream beside it."""
    return reference


def all_bounded() -> Flow:
    """No stream at all: two parts that have nothing in common are two stages."""
    flow = Flow("all_bounded")
    sales = flow.read("sales", Csv("sales", schema=SALE))
    sales.aggregate(by="shop", total="sum(price)").write("totals", Parquet("out/totals"))
    _shops(flow).where("city = 'Bern'").write("bern", Parquet("out/bern"))
    return flow


def all_live() -> Flow:
    """No history: nothing has to be waited for."""
    flow = Flow("all_live")
    _bids(flow).where("price > 100").with_columns(half="price / 2").write("high", KafkaTopic("high"))
    return flow


def diamond() -> Flow:
    """A table joined with what was computed from it is one stage."""
    flow = Flow("diamond")
    sales = flow.read("sales", Parquet("sales", schema=SALE))
    totals = sales.aggregate(by="shop", total="sum(price)")
    shares = sales.join(totals, on="shop").select("shop", "price", "price / total as share", name="shares")
    _bids(flow).join(shares.select("shop", "share"), on="shop").write("out", KafkaTopic("out"))
    return flow


def shared_result() -> Flow:
    """A result that two queries join is computed once."""
    flow = Flow("shared_result")
    bids = _bids(flow).join(_shops(flow), on="shop", name="placed")
    bids.aggregate(by="city", top="max(price)").write("top", KafkaTopic("top"))
    bids.aggregate(by="shop", number="count(*)").write("number", KafkaTopic("number"))
    return flow


def fan_out() -> Flow:
    """Branches without state share one read."""
    flow = Flow("fan_out")
    bids = _bids(flow)
    bids.where("price > 100").write("high", KafkaTopic("high"))
    bids.where("price <= 100").join(_shops(flow), on="shop", how="left").write("low", KafkaTopic("low"))
    return flow


def stateful_and_stateless() -> Flow:
    """A branch with state is a query of its own; bad records leave with the other."""
    flow = Flow("stateful_and_stateless")
    bids = _bids(flow)
    bids.select("shop", "round(price) as price").write("rounded", KafkaTopic("rounded"))
    bids.aggregate(by="shop", top="max(price)").write("top", KafkaTopic("top"), key="shop")
    return flow


def only_stateful() -> Flow:
    """Where no query can carry bad records, one of its own does."""
    flow = Flow("only_stateful")
    _bids(flow).aggregate(top="max(price)").write("top", KafkaTopic("top"))
    return flow


def united() -> Flow:
    """Two topics in one stream."""
    flow = Flow("united")
    _bids(flow).union(_bids(flow, "asks")).write("all", KafkaTopic("all"))
    return flow


def applied() -> Flow:
    """Nothing is known of a function, so it runs alone and not in real time."""
    flow = Flow("applied")
    _bids(flow).apply(_dearest, schema="shop STRING").write("dear", KafkaTopic("dear"))
    return flow


def live_files() -> Flow:
    """Files are written by a query of their own."""
    flow = Flow("live_files")
    bids = _bids(flow)
    bids.write("copy", KafkaTopic("copy"))
    bids.write("archive", Parquet("archive"))
    return flow


def _dearest(frame: object) -> object:
    return frame


FLOWS: list[Callable[[], Flow]] = [
    auctions, all_bounded, all_live, diamond, shared_result, fan_out, stateful_and_stateless, only_stateful,
    united, applied, live_files,
]  # fmt: skip


@pytest.mark.parametrize("declare", FLOWS, ids=lambda declare: declare.__name__)
def test_explain_says_what_runs_and_why(declare: Callable[[], Flow]) -> None:
    """The text is the one that was looked at and found right."""
    expected = (GOLDEN / f"{declare.__name__}.txt").read_text()

    assert explain(plan_flow(declare())) + "\n" == expected


def test_explain_files_all_belong_to_a_flow() -> None:
    """No golden file outlives its flow."""
    assert {path.stem for path in GOLDEN.glob("*.txt")} == {declare.__name__ for declare in FLOWS}


if __name__ == "__main__":
    for declare in FLOWS:
        (GOLDEN / f"{declare.__name__}.txt").write_text(explain(plan_flow(declare())) + "\n")
