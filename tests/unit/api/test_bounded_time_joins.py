"""Joins by event time of bounded inputs: what is declared, planned and refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Parquet, Stream, Tumbling, monotonous
from flowcore.errors import PlanError
from flowcore.planner import plan_flow

ORDERS, PAYMENTS = "id BIGINT, ordered_at BIGINT", "order_id BIGINT, paid_at TIMESTAMP"
MINUTE = timedelta(minutes=1)


def _tables(flow: Flow) -> tuple[Stream, Stream]:
    return (
        flow.read("orders", Parquet("orders", schema=ORDERS)),
        flow.read("payments", Parquet("payments", schema=PAYMENTS)),
    )


def _declare(method: str, orders: Stream, payments: Stream, **more: Any) -> Stream:
    given = {
        "join_interval": {"before": MINUTE, "after": MINUTE},
        "join_window": {"windows": Tumbling(10)},
        "join_asof": {},
    }[method]
    joined: Stream = getattr(orders, method)(
        payments, on={"id": "order_id"}, name="paid", **{**given, **more}
    )
    return joined


METHODS = ["join_interval", "join_window", "join_asof"]


@pytest.mark.parametrize("method", METHODS)
def test_a_bounded_join_is_sparks_own(method: str) -> None:
    """It keeps no state, and its times are read from both sides."""
    flow = Flow("f")
    joined = _declare(method, *_tables(flow), timestamps=("ordered_at", "paid_at"), how="left")
    joined.select("id").write("out", Parquet("out"))

    text = plan_flow(flow).explain(verbose=True)

    assert "paid is native because both inputs end" in text
    assert "key group" not in text
    assert joined.operator.bounded
    assert joined.operator.unbounded_state() is None
    assert {"ordered_at", "paid_at"} <= {*joined.operator.reads({"id"})}


def test_the_plan_says_nothing_of_late_rows_where_none_is_late() -> None:
    """Also if the same declaration says what becomes of those of a stream."""
    joined = _declare(
        "join_window", *_tables(Flow("f")), timestamps=("ordered_at", "paid_at"), late="side-output",
        allowed_lateness=5,
    )  # fmt: skip
    assert joined.operator.describe() == "inner join on id = order_id, in tumbling windows of 10 s"
    assert joined.operator.late_records() is None


@pytest.mark.parametrize("method", METHODS)
def test_rows_of_a_bounded_join_need_times(method: str) -> None:
    """The message says how to give them."""
    with pytest.raises(PlanError, match=r"'paid': rows of .* have no timestamps.*pass timestamps="):
        _declare(method, *_tables(Flow("f")))


@pytest.mark.parametrize("times", ["ordered_at", ("ordered_at",), ("a", "b", "c")], ids=repr)
def test_times_of_a_bounded_join_are_two(times: Any) -> None:
    with pytest.raises(PlanError, match="is not a pair"):
        _declare("join_asof", *_tables(Flow("f")), timestamps=times)


def test_times_of_a_bounded_join_are_times() -> None:
    with pytest.raises(PlanError, match=r"'paid': timestamps 'cast.*' is STRING: neither BIGINT"):
        _declare("join_asof", *_tables(Flow("f")), timestamps=("ordered_at", "cast(paid_at as string)"))


@pytest.mark.parametrize("times", [("paid_at", "paid_at"), ("ordered_at", "ordered_at")], ids=repr)
def test_each_time_is_of_its_own_side(times: Any) -> None:
    with pytest.raises(PlanError, match="'paid'"):
        _declare("join_asof", *_tables(Flow("f")), timestamps=times)


@pytest.mark.parametrize("method", METHODS)
def test_a_stream_has_its_own_timestamps_and_is_joined_with_no_table(method: str) -> None:
    """Times of streams come from their sources; a stream and a table cannot be joined by time."""
    flow = Flow("f")
    _, payments = _tables(flow)
    streams = [
        flow.read(name, KafkaTopic(name, schema, event_time="ordered_at", watermark=monotonous()))
        for name, schema in (("live", ORDERS), ("more", "order_id BIGINT, ordered_at BIGINT"))
    ]
    more = streams[1].select("order_id", "ordered_at as other_at")

    with pytest.raises(PlanError, match=r"over the unbounded 'live': watermarks follow"):
        _declare(method, streams[0], more, timestamps=("ordered_at", "other_at"))
    with pytest.raises(PlanError, match="join of streams with the bounded 'payments'"):
        _declare(method, streams[0], payments, timestamps=("ordered_at", "paid_at"))
