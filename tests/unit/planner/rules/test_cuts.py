"""A cut ends a live query at a topic, which the next query of the flow reads."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Parquet, Stream, Tumbling, bounded_out_of_orderness, monotonous
from flowcore.api.operators import Read, Write
from flowcore.errors import PlanError, SettingsError
from flowcore.planner import plan_flow
from flowcore.planner.plan import Plan
from flowcore.settings import Settings

BID = "shop STRING, price BIGINT, at BIGINT"
COUNT = "shop STRING, n BIGINT"


def _bids(flow: Flow, **topic: Any) -> Stream:
    topic = {"event_time": "at", "watermark": monotonous(), **topic}
    return flow.read("bids", KafkaTopic("bids", schema=BID, **topic))


def _counted(flow: Flow) -> Stream:
    windows = _bids(flow).window(Tumbling(10), by="shop", name="counted")
    return windows.aggregate(n="count(*)").select("shop", "n")


def _window_then_aggregate() -> Flow:
    flow = Flow("f")
    cut = _counted(flow).through("counts", schema=COUNT)
    cut.aggregate(by="shop", most="max(n)", name="top").write("out", KafkaTopic("out"))
    return flow


def _names(plan: Plan) -> list[tuple[str, list[str], tuple[str, ...]]]:
    return [(query.name, [sink.name for sink in query.sinks], query.follows) for query in plan.live_queries]


def test_a_cut_makes_two_queries_of_operators_that_cannot_share_one() -> None:
    """The plan has both in order, the topic between them, and the elements that cross it."""
    plan = plan_flow(_window_then_aggregate())

    assert _names(plan) == [
        ("bids-batches", ["to_counts"], ()),
        ("out", ["out"], ("bids-batches",)),
        ("counts", [], ("bids-batches",)),
    ]
    text = plan.explain()
    assert "to_counts <- select_1: write KafkaTopic counts, a cut" in text
    assert "counts is a cut: query bids-batches writes its topic" in text
    assert "to_counts -> topic counts: tagged elements" in text
    assert "topic counts -> counts: tagged elements" in text
    assert "p1n4 ==>|cut| p2n1" in plan.to_mermaid()
    assert plan.to_dict()["parts"][1]["follows"] == ["bids-batches"]


def test_a_slice_downstream_of_a_cut_starts_when_the_one_before_has_ended() -> None:
    """In other modes both start together."""
    flow = _window_then_aggregate()

    assert [query.start.value for query in plan_flow(flow, "slice").live_queries] == [
        "at once", "when bids-batches has ended", "when bids-batches has ended",
    ]  # fmt: skip
    assert {query.start.value for query in plan_flow(flow).live_queries} == {"at once"}


def test_a_cut_keeps_key_and_changes_of_its_stream() -> None:
    """Rows that replace earlier ones do so downstream of the cut, too."""
    flow = Flow("f")
    top = _bids(flow).aggregate(by="shop", most="max(price)")
    cut = top.through(KafkaTopic("top", partitions=3), schema="shop STRING, most BIGINT", name="latest")

    written = flow.sinks[0]
    assert (written.name, written.key, cut.operator.key) == ("to_latest", ("shop",), ("shop",))
    assert cut.operator.updating
    assert cut.operator.topic == KafkaTopic(
        "top", schema=cut.operator.schema, partitions=3, elements="tagged"
    )  # type: ignore[attr-defined]


def test_a_cut_has_the_schema_of_its_topic_or_of_the_operator_before_it() -> None:
    """A schema that is declared there need not be declared again."""
    flow = Flow("f")
    first = _bids(flow).through("first")
    second = first.select("shop", "price").through(KafkaTopic("second", schema="shop STRING, price BIGINT"))

    assert first.columns == ("shop", "price", "at")
    assert second.columns == ("shop", "price")


def test_a_query_does_not_read_the_topic_that_it_writes() -> None:
    """A union of a stream with what it was before the cut is downstream of the cut."""
    flow = Flow("f")
    bids = _bids(flow)
    cut = bids.map(dict, schema=BID, name="made").through("made_bids", schema=BID)
    cut.union(bids).filter(bool).write("out", KafkaTopic("out"))

    assert _names(plan_flow(flow)) == [
        ("bids-batches", ["to_made_bids"], ()),
        ("made_bids-batches", ["out"], ("bids-batches",)),
    ]


def test_exclusive_queries_on_both_sides_of_a_cut_are_two() -> None:
    """Even if the same DataFrame function is upstream of both."""
    flow = Flow("f")
    framed = _bids(flow).apply(lambda frame: frame, schema=BID, name="framed")
    framed.through("cut", schema=BID).union(framed).write("out", KafkaTopic("out"))

    written = [each for each in _names(plan_flow(flow)) if each[1]]
    assert written == [("to_cut", ["to_cut"], ()), ("out", ["out"], ("to_cut",))]


def test_event_time_continues_downstream_of_a_cut() -> None:
    """Windows there are ended by the watermarks that cross it, and need those of the first source."""
    flow = Flow("f")
    cut = _counted(flow).through("counts", schema=COUNT)
    cut.window(Tumbling(60), by="shop").aggregate(n="sum(n)").write("out", KafkaTopic("out"))

    assert [query.name for query in plan_flow(flow).live_queries] == ["bids-batches", "counts-batches"]
    with pytest.raises((PlanError, SettingsError), match=r"auto-watermark-interval=0.*'bids'"):
        plan_flow(flow, settings=Settings.of({"pipeline.auto-watermark-interval": "0"}, environment={}))


def test_an_aggregate_upstream_of_a_cut_gives_its_results_the_time_of_their_newest_record() -> None:
    """Without the cut, windows of them are refused, and the error names the cut."""
    flow = Flow("f")
    top = _bids(flow).aggregate(by="shop", most="max(price)")
    with pytest.raises(PlanError, match=r"cut the flow downstream of 'aggregate_1' with \.through"):
        top.window(Tumbling(10))
    cut = top.through("top", schema="shop STRING, most BIGINT")
    cut.window(Tumbling(10)).aggregate(n="max(most)").write("out", KafkaTopic("out"))

    assert len(plan_flow(flow).live_queries) == 3


@pytest.mark.parametrize(
    ("declare", "why"),
    [
        (lambda bids, _: bids.through("counts", schema="shop STRING"), "differ in at, price"),
        (lambda bids, _: bids.select("shop").through("counts"), "types of shop are not known"),
        (lambda _, table: table.through("counts"), "'table' is bounded"),
        (lambda bids, _: bids.through(KafkaTopic("counts", elements="value-only")), "would be lost"),
        (lambda bids, _: bids.through(KafkaTopic("counts", until="latest")), "start and until"),
        (lambda bids, _: bids.through(KafkaTopic("counts", start="latest")), "start and until"),
        (lambda bids, _: bids.through("bids", name="again"), "which 'bids' uses too"),
        (lambda bids, _: bids.through("counts").through("counts", name="again"), "'to_counts' uses too"),
        (lambda bids, _: bids.through("counts").write("x", KafkaTopic("counts")), "'x' uses too"),
        (lambda bids, _: bids.through("bids"), "'to_bids' cuts|two operators named 'bids'"),
        (lambda bids, _: bids.through("9"), "name '9' cannot name"),
        (
            lambda bids, _: bids.map_batches(bytes, schema=BID).through("a").window(Tumbling(1)),
            r"downstream of 'map_batches_1' .*event_time=",
        ),
    ],
    ids=[
        "columns", "types", "bounded", "elements", "until", "start", "circle", "twice", "written", "names",
        "no name", "no timestamps",
    ],
)  # fmt: skip
def test_a_cut_that_would_lose_or_mix_records_is_refused(
    declare: Callable[[Stream, Stream], object], why: str
) -> None:
    flow = Flow("f")
    table = flow.read("table", Parquet("table", schema=COUNT))

    with pytest.raises(PlanError, match=why):
        declare(_bids(flow), table)


def test_a_source_of_watermarks_must_be_before_the_cut() -> None:
    """The elements of the topic alone do not make windows end."""
    flow = Flow("f")
    cut = _bids(flow, watermark=None).through("cut")

    with pytest.raises(PlanError, match="'bids' sets no watermarks"):
        cut.window(Tumbling(10))


def test_the_topic_of_a_cut_may_set_event_time_and_watermarks_anew() -> None:
    """For a stream that has lost its timestamps."""
    flow = Flow("f")
    batches = _bids(flow).map_batches(lambda batch: batch, schema=BID)
    cut = batches.through(KafkaTopic("cut", event_time="at"))
    cut.window(Tumbling(10)).aggregate(n="count(*)").write("out", KafkaTopic("out"))

    read, written = cut.operator, flow.sinks[0]
    assert isinstance(read, Read)
    assert isinstance(written, Write)
    assert (read.source.event_time, written.sink.event_time) == ("at", None)  # type: ignore[union-attr]
    assert len(plan_flow(flow).live_queries) == 2


OLD_ROWS: dict[str, Callable[[Stream], Stream]] = {
    "join": lambda bids: bids.join(bids.select("shop", "price as other"), on="shop", ttl=None, name="old"),
    "top_n": lambda bids: bids.top_n(3, by="shop", order="price", name="old"),
    "two_cuts": lambda bids: bids.top_n(3, order="price", name="old").through(
        "one", schema=f"{BID}, rank INT"
    ),
}


@pytest.mark.parametrize("case", OLD_ROWS)
def test_old_rows_do_not_get_event_time_by_a_cut_without_a_watermark(case: str) -> None:
    """The watermarks of the sources would cross, and windows would drop the rows as late."""
    rows = OLD_ROWS[case](_bids(Flow("f")))
    types = {"shop": "STRING", "price": "BIGINT", "at": "BIGINT", "other": "BIGINT", "rank": "INT"}
    schema = ", ".join(f"{column} {types[column]}" for column in rows.columns)

    with pytest.raises(
        PlanError, match=r"cut 'cut': .*rows of 'old' may be older .* give the topic a watermar"
    ):
        rows.through(KafkaTopic("cut", event_time="at"), schema=schema)
    own = KafkaTopic("cut", event_time="at", watermark=bounded_out_of_orderness(timedelta(hours=1)))
    assert rows.through(own, schema=schema).window(Tumbling(10)).aggregate(n="count(*)").columns


def _with_best_items(flow: Flow) -> Stream:
    items = flow.read("items", Parquet("items", schema="shop STRING, rate INT"))
    return _bids(flow).join(items.top_n(1, by="shop", order="rate"), on="shop")


def _in_processing_time(flow: Flow) -> Stream:
    joined = OLD_ROWS["join"](_bids(flow))
    return joined.window(Tumbling(10), by="shop", time="processing").aggregate(at="max(at)")


YOUNG_ROWS = {"table": _with_best_items, "windows": _in_processing_time}


@pytest.mark.parametrize("case", YOUNG_ROWS)
def test_rows_with_a_time_of_their_own_may_cross_a_cut(case: str) -> None:
    """A table has no watermarks, and windows by processing time give their results a time."""
    rows = YOUNG_ROWS[case](Flow("f")).select("shop", "at")

    assert rows.through(KafkaTopic("cut", event_time="at"), schema="shop STRING, at BIGINT").columns


def test_windows_over_old_rows_do_not_propose_a_cut() -> None:
    """The cut that the error proposes for aggregates would let windows drop these rows."""
    for case, instead in (
        ("join", "; use join_interval"),
        ("top_n", "; put 'window_1' before 'old', or use t"),
    ):
        with pytest.raises(PlanError, match=instead):
            OLD_ROWS[case](_bids(Flow("f"))).window(Tumbling(10))


class _Latest:
    """A later result of a shop replaces the earlier one."""

    is_output_idempotent = True

    def __call__(self, record: Any) -> Any:
        return record


def _latest(stream: Stream, schema: str, **flush: Any) -> Stream:
    return stream.map(_Latest(), schema=schema, key="shop", name="latest", **flush)


def test_the_buffer_of_a_function_after_an_aggregate_needs_its_own_interval_or_a_cut() -> None:
    """For its own interval the aggregate runs by key group; the plan says why one of settings is off."""

    def declare(*, cut: bool, **flush: Any) -> Flow:
        flow = Flow("f")
        bids = _bids(flow)
        highest = bids.aggregate(by="at", shop="max(shop)", price="max(price)").select(*bids.columns)
        latest = _latest(highest.through("cut", schema=BID) if cut else highest, BID, **flush)
        latest.write("out", KafkaTopic("out"))
        return flow

    settings = Settings.of({"execution.flush.max-interval": "1 min"}, environment={})
    text = plan_flow(declare(cut=False), settings=settings).explain(verbose=True)
    way_out = r"give latest a flush= of its own, or cut the flow upstream of latest with \.through"
    assert re.search(rf"flush: off because a buffer would be state.*{way_out}", text)

    plans = [
        plan_flow(declare(cut=False, flush=timedelta(minutes=1))),
        plan_flow(declare(cut=True, flush=timedelta(minutes=1))),
        plan_flow(declare(cut=True), settings=settings),
    ]
    for plan in plans:
        buffered = {node.name for query in plan.live_queries for node in query.buffers}
        assert "latest" in buffered


def test_the_buffer_of_a_function_is_an_exchange_among_those_of_other_operators() -> None:
    """It needs no cut: the operator downstream reads its key groups, and it reads those upstream."""
    flow = Flow("f")
    found = _latest(_bids(flow), BID, flush=timedelta(minutes=1))
    windows = found.window(Tumbling(10), by="shop", name="counted").aggregate(n="count(*)")
    last = windows.map(_Latest(), schema=COUNT, key="shop", flush=timedelta(minutes=1), name="last")
    last.write("out", KafkaTopic("out"))
    (query,) = plan_flow(flow).live_queries

    assert [[node.name for node in each] for each in query.exchanges] == [["latest"], ["counted"], ["last"]]
    senders = {node.name: [each.name for each in query.find_senders(node)] for node in query.keyed}
    assert senders == {"latest": ["bids"], "counted": ["latest"], "last": ["counted"]}
    assert query.split.reasons[-1] == "it has 3 exchanges: latest, then counted, then last"
    assert query.failures[found.operator].value == "dead letter"
    assert "counted made its record" in query.failures[last.operator].reasons[0]


def test_a_cut_that_is_written_exactly_once_has_each_record_once() -> None:
    """So operators with state downstream count no record twice."""
    flow = Flow("f")
    cut = _counted(flow).through(KafkaTopic("counts", delivery="exactly-once"), schema=COUNT)
    cut.aggregate(by="shop", most="max(n)").write("out", KafkaTopic("out"))
    first, *others = plan_flow(flow).live_queries

    assert first.exactly_once
    assert not any(each.exactly_once for each in others)
