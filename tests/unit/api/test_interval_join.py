"""Joins of streams as they are declared: their columns, their plan, their lineage, and what is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Sliding, Stream, Tumbling, monotonous
from flowcore.api.operators import JoinAsOf, JoinInterval, JoinLatest
from flowcore.errors import InvalidWindowError, PlanError
from flowcore.planner import plan_flow
from flowcore.planner.rules.columns import trace_columns

HOUR = timedelta(hours=1)
NONE = timedelta(0)
ORDERS = "id BIGINT, item STRING, at TIMESTAMP"
PAYMENTS = "order_id BIGINT, amount DOUBLE, paid TIMESTAMP"


def read(flow: Flow, name: str, schema: str, **changed: Any) -> Stream:
    return flow.read(name, KafkaTopic(name, schema=schema, **{"watermark": monotonous(), **changed}))


def sides() -> tuple[Stream, Stream]:
    flow = Flow("shop")
    return read(flow, "orders", ORDERS), read(flow, "payments", PAYMENTS)


def joined(orders: Stream, payments: Stream, **changed: Any) -> Stream:
    given = {"on": {"id": "order_id"}, "before": NONE, "after": HOUR, "name": "paid_orders", **changed}
    return orders.join_interval(payments, **given)


def test_output_has_the_columns_of_both_sides_without_the_right_key() -> None:
    stream = joined(*sides(), how="full")

    assert isinstance(stream.operator, JoinInterval)
    assert stream.columns == ("id", "item", "at", "amount", "paid")
    origins = {
        column: {(source.name, name) for source, name in found}
        for column, found in trace_columns(stream.operator).items()
    }
    assert origins["id"] == {("orders", "id"), ("payments", "order_id")}
    assert origins["amount"] == {("payments", "amount")}


def test_late_records_have_the_columns_of_their_side() -> None:
    stream = joined(*sides(), late="side-output")

    assert stream.late_left.columns == ("id", "item", "at")
    assert stream.late_right.columns == ("order_id", "amount", "paid")
    origins = trace_columns(stream.late_right.operator)
    assert [[source.name for source, _ in found] for found in origins.values()] == [["payments"]] * 3
    with pytest.raises(PlanError, match="no side output 'late_left'"):
        _ = joined(*sides()).late_left


def test_plan_says_what_is_kept_and_what_holds_unmatched_records() -> None:
    """A join is one exchange for both topics, and windows over it are the next one."""
    orders, payments = sides()
    stream = joined(orders, payments, how="left", before=timedelta(minutes=5))
    stream.write("out", KafkaTopic("out"))
    windows = stream.window(Tumbling(60), by="item", name="sums")
    windows.aggregate(total="sum(amount)").write("sums_out", KafkaTopic("sums"))
    plan = plan_flow(stream.graph)

    (query,) = plan.live_queries
    assert [[node.name for node in each] for each in query.exchanges] == [["paid_orders"], ["sums"]]
    text = plan.explain(verbose=True)
    for part in (
        "left join on id = order_id, right up to 5 min before and up to 1 h after left",
        "it keeps a left record until the watermark is 1 h past it, and a right one 5 min",
        "late: dropped and counted",
        "a partition of orders and payments without records holds them",
    ):
        assert part in text


def test_window_join_adds_the_window() -> None:
    """A semi-join has no right columns, so both sides may have columns of one name."""
    orders, payments = sides()
    named = orders.with_columns(amount="1")
    windows = Tumbling(10, offset=3)
    stream = orders.join_window(payments, windows, on={"id": "order_id"}, name="in_window")
    semi = named.join_window(payments, windows, on={"id": "order_id"}, how="semi")

    assert stream.columns == ("id", "item", "at", "amount", "paid", "window_start", "window_end")
    assert semi.columns == ("id", "item", "at", "amount", "window_start", "window_end")
    stream.write("out", KafkaTopic("out"))
    text = plan_flow(stream.graph).explain()
    assert "inner join on id = order_id, in tumbling windows of 10 s from 3 s" in text
    with pytest.raises(PlanError, match="pass Tumbling"):
        orders.join_window(payments, Sliding(10, slide=5), on={"id": "order_id"})  # type: ignore[arg-type]


def in_window(orders: Stream, payments: Stream, **changed: Any) -> Stream:
    given = {"on": {"id": "order_id"}, "name": "in_window", **changed}
    return orders.join_window(payments, Tumbling(10), **given)


def test_plan_says_what_an_allowed_lateness_delays() -> None:
    """How long records are kept, and that its watermark is older; without lateness it says nothing of it."""
    declared = {
        "interval": lambda **changed: joined(*sides(), before=timedelta(minutes=5), **changed),
        "window": lambda **changed: in_window(*sides(), late="side-output", **changed),
    }
    texts = {}
    for name, declare in declared.items():
        for lateness in (0, 0.0, timedelta(minutes=2), 120):
            stream = declare(allowed_lateness=lateness)
            stream.write("out", KafkaTopic("out"))
            texts.setdefault((name, bool(lateness)), set()).add(plan_flow(stream.graph).explain(verbose=True))

    assert all(len(each) == 1 for each in texts.values())
    shown = {key: text for key, (text,) in texts.items()}
    for part in (
        "inner join on id = order_id, right up to 5 min before and up to 1 h after left, late by up to 2 min",
        "it keeps a left record until the watermark is 62 min past it, and a right one 7 min",
        "its watermark is 2 min older, so that pairs of late records are not late downstream",
    ):
        assert part in shown["interval", True]
    for part in (
        "in tumbling windows of 10 s, late by up to 2 min, later records to side outputs",
        "it keeps a record until the watermark is 2 min past the end of its window",
        "its watermark is 2 min older",
    ):
        assert part in shown["window", True]
    assert "it keeps a record until the watermark reaches the end of its window" in shown["window", False]
    for kind in declared:
        assert not re.search(r"late by|older", shown[kind, False])


def as_of(orders: Stream, payments: Stream, **changed: Any) -> Stream:
    return orders.join_asof(payments, **{"on": {"id": "order_id"}, "name": "as_of", **changed})


def test_plan_says_when_an_as_of_join_emits_and_what_it_keeps() -> None:
    """Without tolerance its state has no bound; with one it has."""
    texts = []
    for tolerance in (None, timedelta(minutes=5)):
        stream = as_of(*sides(), how="left", tolerance=tolerance)
        stream.write("out", KafkaTopic("out"))
        texts.append(plan_flow(stream.graph).explain(verbose=True))

    assert isinstance(stream.operator, JoinAsOf)
    assert stream.columns == ("id", "item", "at", "amount", "paid")
    for part in (
        "left join on id = order_id, newest right up to left, at most 5 min before it",
        "and the newest right one of each key until the watermark is 5 min past it",
        "when the watermark reaches the left record",
        "a partition of orders and payments without records holds them",
    ):
        assert part in texts[1]
    assert "and the newest right one of each key for ever" in texts[0]
    assert ["declare tolerance=" in text for text in texts] == [True, False]


def test_window_over_an_as_of_join_is_the_next_exchange() -> None:
    """Its late records have the columns of their side."""
    stream = as_of(*sides(), late="side-output")
    stream.window(Tumbling(60), by="item", name="sums").aggregate(n="count(*)").write("n", KafkaTopic("n"))
    stream.late_right.write("late", KafkaTopic("late"))
    (query,) = plan_flow(stream.graph).live_queries

    assert [[node.name for node in each] for each in query.exchanges] == [["as_of"], ["sums"]]
    assert stream.late_left.columns == ("id", "item", "at")
    assert stream.late_right.columns == ("order_id", "amount", "paid")


def newest(orders: Stream, payments: Stream, **changed: Any) -> Stream:
    return orders.join_latest(payments, **{"on": {"id": "order_id"}, "name": "newest", **changed})


def test_plan_says_what_a_join_with_the_newest_record_waits_for() -> None:
    texts = []
    for load, ttl in (("caught-up", None), (datetime(2026, 1, 1, tzinfo=UTC), 24 * HOUR), (None, HOUR)):
        stream = newest(*sides(), how="left", load=load, ttl=ttl)
        stream.write("out", KafkaTopic("out"))
        texts.append(plan_flow(stream.graph).explain(verbose=True))

    assert isinstance(stream.operator, JoinLatest)
    assert stream.columns == ("id", "item", "at", "amount", "paid")
    assert all("left join on id = order_id, newest right on arrival" in text for text in texts)
    for text, part in zip(
        texts,
        (
            "before the watermark of both sides reaches the start of the query, left records wait",
            "before the watermark of both sides reaches 2026-01-01T00:00:00+00:00, left records wait",
            "load=None does not wait for the right side",
        ),
        strict=True,
    ):
        assert part in text
    assert (
        "left records until the right side is loaded, and the newest right record of each key for ever"
        in (texts[0])
    )
    assert "it keeps the newest right record of each key for 1 h of processing time" in texts[2]
    assert ["declare ttl=" in text for text in texts] == [True, False, False]


def test_join_with_the_newest_record_needs_no_watermarks_without_a_load() -> None:
    """It waits for nothing then; with a load it waits for the watermarks of both sides."""
    flow = Flow("shop")
    orders = read(flow, "orders", ORDERS, watermark=None)
    payments = read(flow, "payments", PAYMENTS, watermark=None)

    newest(orders, payments, load=None).write("out", KafkaTopic("out"))
    with pytest.raises(PlanError, match="'orders' sets no watermarks"):
        newest(orders, payments, name="loaded")
    with pytest.raises(PlanError, match="downstream of 'paid' a record has no timestamp"):
        newest(kept(orders, payments), read(flow, "more", "order_id INT"), load=None, name="untimed")

    assert "load=None does not wait for the right side" in plan_flow(flow).explain(verbose=True)


def test_advice_for_a_side_whose_records_replace_each_other_is_one_that_it_may_follow() -> None:
    """A tombstone has no value for event_time= to read."""
    flow = Flow("shop")
    orders = read(flow, "orders", ORDERS)
    prices = read(flow, "prices", PAYMENTS, watermark=None, updating_by="order_id")

    with pytest.raises(PlanError, match=r"KafkaTopic\('prices', \.\.\., watermark=bounded\S+\)\)\)$"):
        newest(orders, prices)


def fired_again(orders: Stream) -> Stream:
    """Windows that late records fire once more."""
    return orders.window(Tumbling(10), by="id", allowed_lateness=60, name="counts").aggregate(n="count(*)")


REFUSED: dict[str, tuple[Callable[[Stream, Stream], object], str]] = {
    "unknown column": (lambda o, p: joined(o, p, on="nothing"), "nothing"),
    "negative": (lambda o, p: joined(o, p, before=-HOUR), "before=-1 h is not .*0 up.*timedelta"),
    "number": (lambda o, p: joined(o, p, after=5), r"after=5 \(a number: pass timedelta"),
    "kind": (lambda o, p: joined(o, p, how="semi"), "how='semi'.*inner, left, right, full"),
    "interval: lateness": (
        lambda o, p: joined(o, p, allowed_lateness=-HOUR), "allowed_lateness=-1 h is negative.*0 or more",
    ),
    "window: lateness": (
        lambda o, p: in_window(o, p, allowed_lateness=-2), "allowed_lateness=-2 s is negative.*0 or more",
    ),
    "endless lateness": (
        lambda o, p: in_window(o, p, allowed_lateness=math.inf),
        r"allowed_lateness=inf.*never advance.*join\(..., ttl=None\)",
    ),
    "as of: kind": (lambda o, p: as_of(o, p, how="full"), "how='full'.*one of inner, left$"),
    "as of: direction": (lambda o, p: as_of(o, p, direction="forward"), "direction='forward'.*'backward'"),
    "as of: negative": (lambda o, p: as_of(o, p, tolerance=-HOUR), "tolerance=.*0 up.*timedelta"),
    "newest: kind": (lambda o, p: newest(o, p, how="full"), "how='full'.*one of inner, left$"),
    "newest: load": (lambda o, p: newest(o, p, load="soon"), "load='soon' is not a moment.*'caught-up'"),
    "newest: zone": (lambda o, p: newest(o, p, load=datetime(2026, 1, 1)), "is not a moment.*its zone"),  # noqa: DTZ001
    "newest: ttl": (lambda o, p: newest(o, p, ttl=-HOUR), "ttl=.*not a positive"),
    "newest: replacing": (
        lambda o, p: newest(o.aggregate(by="id", n="count(*)"), p), "replace earlier ones.*join the records",
    ),
    "itself": (lambda o, _: joined(o, o, on="id"), "with itself.*select"),
    "same column": (
        lambda o, p: joined(o.with_columns(amount="1"), p), "both inputs .* have the column 'amount'",
    ),
    "replacing": (
        lambda o, p: joined(o.aggregate(by="id", n="count(*)"), p), "replace earlier ones.*join the records",
    ),
    "firing again": (
        lambda o, p: joined(fired_again(o), p), "replace earlier ones.*trigger of 'counts' out",
    ),
    "no watermarks": (
        lambda o, _: joined(o, read(_flow(o), "plain", PAYMENTS, watermark=None)),
        "'plain' sets no watermarks: event time would never advance; pass watermark=",
    ),
    "bounded": (
        lambda o, _: joined(o, read(_flow(o), "table", PAYMENTS, until="latest", watermark=None)),
        r"bounded 'table'.*orders\.join\(table",
    ),
}  # fmt: skip


@pytest.mark.parametrize("lateness", [0.0001, "1 h", None, math.nan, -math.inf])
@pytest.mark.parametrize("declare", [joined, in_window])
def test_lateness_that_is_not_a_length_is_refused(declare: Callable[..., Stream], lateness: Any) -> None:
    with pytest.raises(InvalidWindowError, match=r"allowed_lateness=.* whole number of milliseconds"):
        declare(*sides(), allowed_lateness=lateness)


def _flow(stream: Stream) -> Flow:
    assert isinstance(stream.graph, Flow)
    return stream.graph


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_joined_is_refused(name: str) -> None:
    declare, message = REFUSED[name]

    with pytest.raises(PlanError, match=message):
        declare(*sides())


def kept(orders: Stream, payments: Stream, **changed: Any) -> Stream:
    return orders.join(payments, **{"on": {"id": "order_id"}, "ttl": HOUR, "name": "paid", **changed})


def test_regular_join_needs_no_event_time_and_says_how_long_it_keeps_records() -> None:
    flow = Flow("shop")
    orders, payments = (
        read(flow, name, schema, watermark=None)
        for name, schema in (("orders", ORDERS), ("payments", PAYMENTS))
    )
    for_ever = kept(orders, payments, how="semi", ttl=None, name="ever")
    kept(orders, payments).write("out", KafkaTopic("out"))
    for_ever.write("ever_out", KafkaTopic("ever"))

    assert for_ever.columns == orders.columns
    text = plan_flow(flow).explain(verbose=True)
    for part in (
        "inner join on id = order_id, each record kept 1 h after arrival",
        "it keeps the records of both sides for 1 h of processing time",
        "semi join on id = order_id, each record kept for ever",
        "ttl=None keeps every record of both sides for ever",
    ):
        assert part in text
    assert "late:" not in text


@pytest.mark.parametrize("how", ["left", "right", "full", "anti"])
def test_regular_outer_join_is_updating_by_the_id_of_its_rows(how: Any) -> None:
    """The plan says so; the sink's key and deletions follow from that, and an aggregate takes rows back."""
    orders, payments = sides()
    rows = kept(orders, payments, how=how)
    rows.write("out", KafkaTopic("out"))
    rows.aggregate(by="item", n="count(*)", name="per_item").write("items", KafkaTopic("items"))
    both = orders.columns if how == "anti" else (*orders.columns, "amount", "paid")
    assert rows.columns == (*both, "row_id", "is_deleted")

    plan = plan_flow(orders.graph)  # type: ignore[arg-type]
    text = plan.explain(verbose=True)
    for part in (
        "paid is updating by row_id because a later row of a key replaces the earlier one",
        "is_deleted is true where a key is deleted",
        "an unmatched record is emitted at once, and deleted when its first partner arrives",
        "write KafkaTopic out, key row_id, tombstones where is_deleted",
        "per_item.changes",
    ):
        assert part in text
    (sink, _) = plan.live_queries[0].sinks
    assert (sink.key, sink.deleted) == (("row_id",), "is_deleted")


REFUSED_REGULAR: dict[str, tuple[Callable[[Stream, Stream], object], str]] = {
    "no ttl": (
        lambda o, p: o.join(p, on={"id": "order_id"}), "without ttl=.*ttl=timedelta.*ttl=None.*join_interval",
    ),
    "no time": (lambda o, p: kept(o, p, ttl=NONE), "ttl=.*positive"),
    "kind": (lambda o, p: kept(o, p, how="outer"), "how='outer'.*inner, left, right, full, semi, anti"),
    "row_id": (lambda o, p: kept(o.with_columns(row_id="id"), p, how="left"), "'row_id' twice"),
    "rows without id": (
        lambda o, p: kept(o.map_batches(list, schema=ORDERS, name="made"), p, how="anti"),
        "records of 'made' have no id.*flat_map",
    ),
    "ttl of a table": (
        lambda o, _: kept(o, read(_flow(o), "table", PAYMENTS, until="latest", watermark=None)),
        "'table' is bounded.*leave ttl= out",
    ),
    "window downstream": (
        lambda o, p: kept(o, p).window(Tumbling(60), by="item"),
        "downstream of 'paid' a record has no timestamp",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_REGULAR)
def test_what_a_regular_join_cannot_join_is_refused(name: str) -> None:
    declare, message = REFUSED_REGULAR[name]

    with pytest.raises(PlanError, match=message):
        declare(*sides())
