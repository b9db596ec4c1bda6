"""The delays of consecutive flushes do not add up."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import pytest

from flowcore import Flow, KafkaTopic, Stream, Tumbling
from flowcore.errors import ConfigurationError
from flowcore.planner import plan_flow
from flowcore.planner.model import Flush, LiveQuery
from flowcore.settings import Settings
from flowcore.watermarks import monotonous

SCHEMA = "shop STRING, price DOUBLE"
MINUTE = timedelta(minutes=1)


def _topic(name: str, **settings: timedelta) -> KafkaTopic:
    return KafkaTopic(name, schema=SCHEMA, on_error="fail", **settings)  # type: ignore[arg-type]


def _top(flow: Flow, reads: str, writes: str, *, flush: timedelta | None = None) -> None:
    rows = flow.read(f"read_{reads}", _topic(reads))
    rows.aggregate(by="shop", price="max(price)", flush=flush, name=f"top_{reads}").write(
        f"to_{writes}", _topic(writes)
    )


def _queries(flow: Flow) -> dict[str, LiveQuery]:
    live = plan_flow(flow, settings=Settings(flush_interval=MINUTE)).live
    assert live
    return {query.name: query for query in live.queries}


def _one(query: LiveQuery) -> Flush:
    (flush,) = (each for each in query.flushes if each.way != "off")
    return flush


@pytest.mark.parametrize("order", [(1, 2, 3, 4), (4, 3, 2, 1), (2, 4, 1, 3)], ids=str)
def test_chain_of_flushes_costs_one_interval_and_a_tenth_for_each_that_follows(order: Iterable[int]) -> None:
    """The order of declarations does not matter."""
    flow = Flow("f")
    for number in order:
        _top(flow, f"t{number}", f"t{number + 1}")

    queries = _queries(flow)

    held_ms = {name: queries[name].batch_interval_ms for name in sorted(queries)}
    assert held_ms == {"to_t2": 60_000, "to_t3": 6_000, "to_t4": 6_000, "to_t5": 6_000}
    after = {name: flush.after.name for name in queries if (flush := _one(queries[name])).after}
    assert after == {"to_t3": "top_t1", "to_t4": "top_t2", "to_t5": "top_t3"}
    assert _one(queries["to_t3"]).decision.value == "6 s after top_t1, by the trigger"
    assert list(queries) == [f"to_t{number + 1}" for number in order]


def test_queries_that_read_each_other_have_their_own_intervals_once() -> None:
    """A circle of queries has a first query, too."""
    flow = Flow("f")
    _top(flow, "t1", "t2")
    _top(flow, "t2", "t1")

    queries = _queries(flow)

    assert sorted(query.batch_interval_ms or 0 for query in queries.values()) == [6_000, 60_000]


def test_interval_longer_than_that_of_the_input_is_kept() -> None:
    """Input that arrives more often than it may be emitted is buffered."""
    flow = Flow("f")
    _top(flow, "t1", "t2", flush=MINUTE / 2)
    _top(flow, "t2", "t3")

    assert _queries(flow)["to_t3"].batch_interval_ms == 60_000


def test_topic_of_another_flow_may_be_declared_to_be_flushed() -> None:
    """The plan of the other flow is not known."""
    flow = Flow("f")
    rows = flow.read("rows", _topic("rows", flushed=2 * MINUTE))
    rows.aggregate(by="shop", price="max(price)").write("out", KafkaTopic("out"))

    flush = _one(_queries(flow)["out"])

    assert flush.config is not None
    assert (flush.config.interval_ms, flush.after) == (12_000, None)
    assert flush.decision.value == "12 s after topic rows, by the trigger"
    assert "topic rows fills once in 2 min: results leave no more often" in flush.decision.reasons


def test_partly_unflushed_input_is_buffered() -> None:
    """The unflushed part would otherwise cause results with each batch."""
    flow = Flow("f")
    _top(flow, "t1", "t2")
    both = flow.read("rows", _topic("rows")).union(flow.read("tops", _topic("t2")))
    both.aggregate(by="shop", price="max(price)").write("out", KafkaTopic("out"))

    assert _queries(flow)["out"].batch_interval_ms == 60_000


@pytest.mark.parametrize("other", ["union", "late"])
def test_topic_with_other_records_than_those_of_a_buffer_is_not_flushed_once(other: str) -> None:
    """Its reader would emit ten times in the interval."""
    flow = Flow("f")
    topic = KafkaTopic("rows", schema=SCHEMA, on_error="fail", watermark=monotonous())
    windows = flow.read("rows", topic).window(Tumbling(10), by="shop", late="side-output", name="held")
    held = windows.aggregate(price="max(price)")
    others = held.late if other == "late" else flow.read("others", _topic("others"))
    rows = others if other == "late" else held.select("shop", "price").union(others)
    held.select("shop", "price").write("t3", KafkaTopic("t3"), key="shop")
    rows.select("shop", "price").write("t1", KafkaTopic("t1"))
    _top(flow, "t1", "t2")

    assert _queries(flow)["to_t2"].batch_interval_ms == 60_000


def test_topic_of_another_broker_is_another_topic() -> None:
    """A topic is identified by broker and name."""
    flow = Flow("f")
    _top(flow, "t1", "t2")
    rows = flow.read("rows", KafkaTopic("t2", schema=SCHEMA, on_error="fail", servers="other:1"))
    rows.aggregate(by="shop", price="max(price)").write("out", KafkaTopic("out"))

    assert _queries(flow)["out"].batch_interval_ms == 60_000


def test_flushed_windows_start_a_chain() -> None:
    """This holds for every way of flushing them."""

    def windows(rows: Stream) -> Stream:
        return rows.window(Tumbling(10), by="shop", time="processing", name="held").aggregate(
            price="max(price)"
        )

    flow = Flow("f")
    windows(flow.read("rows", _topic("rows"))).select("shop", "price").write(
        "out", KafkaTopic("t1"), key="shop"
    )
    _top(flow, "t1", "t2")

    found = _queries(flow)

    assert _one(found["rows-batches"]).way == "key-groups"
    assert _one(found["to_t2"]).after is _one(found["rows-batches"]).operator
    assert found["to_t2"].batch_interval_ms == 6_000


def _windows_in_a_row(*flushes: timedelta | None) -> dict[str, Flush]:
    """The flushes of windows that read each other in one query."""
    flow = Flow("f")
    rows: Stream = flow.read("rows", _topic("rows"))
    for number, flush in enumerate(flushes):
        windows = rows.window(Tumbling(10), by="shop", time="processing", flush=flush, name=f"w{number}")
        rows = windows.aggregate(price="max(price)")
    rows.select("shop", "price").write("out", KafkaTopic("t1"), key="shop")
    _top(flow, "t1", "t2")
    found = _queries(flow)
    assert [each.name for each in found["rows-batches"].buffers] == [
        f"w{number}" for number, flush in enumerate(flushes) if flush != timedelta(0)
    ]
    flushed = {each.operator.name: each for each in found["rows-batches"].flushes if each.way == "key-groups"}
    return flushed | {"top": _one(found["to_t2"])}


def _gathers_ms(flush: Flush) -> int | None:
    assert flush.config is not None
    return flush.config.gather_ms


def test_buffers_of_one_query_are_flushed_a_tenth_after_each_other() -> None:
    """The plan says after which operator; the topic downstream continues the chain."""
    found = _windows_in_a_row(None, None, None)

    assert {name: _gathers_ms(each) for name, each in found.items()} == {
        "w0": None, "w1": 6_000, "w2": 6_000, "top": None,
    }  # fmt: skip
    assert [found[name].decision.value for name in ("w0", "w1", "w2", "top")] == [
        "every 1 min, by key group", "6 s after w0, by key group", "6 s after w1, by key group",
        "6 s after w2, by the trigger",
    ]  # fmt: skip


def test_buffer_that_is_flushed_less_often_than_the_upstream_one_keeps_its_interval() -> None:
    """The next one follows it; an operator without a buffer between them changes nothing."""
    found = _windows_in_a_row(MINUTE / 2, None, timedelta(0), MINUTE / 6)

    assert {name: _gathers_ms(each) for name, each in found.items()} == {
        "w0": None, "w1": None, "w3": 6_000, "top": None,
    }  # fmt: skip
    assert found["w1"].after is None
    assert found["w3"].after is found["w1"].operator
    assert found["top"].decision.value == "6 s after w3, by the trigger"


def test_slice_has_no_chain() -> None:
    """A slice is one batch for any input."""
    flow = Flow("f")
    rows = flow.read("rows", _topic("rows", flushed=2 * MINUTE))
    rows.aggregate(by="shop", price="max(price)").write("out", KafkaTopic("out"))
    live = plan_flow(flow, "slice", Settings(flush_interval=MINUTE)).live

    assert live
    assert _one(live.queries[0]).decision.value == "once, with the slice"


@pytest.mark.parametrize("wrong", [timedelta(0), timedelta(seconds=-1), 60], ids=str)
def test_flushed_interval_is_positive(wrong: timedelta) -> None:
    """An interval of zero would mean no flush."""
    with pytest.raises(
        ConfigurationError, match=r"flushed=.* of topic 'rows' is not a time between two flushes"
    ):
        _topic("rows", flushed=wrong)
