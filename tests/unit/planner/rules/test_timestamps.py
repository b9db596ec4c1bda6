"""Elements have timestamps if an operator needs them, and the plan names it (FLIP-330)."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

from flowcore import (
    Flow,
    KafkaTopic,
    Parquet,
    Stream,
    Tumbling,
    bounded_out_of_orderness,
    monotonous,
    no_watermarks,
)
from flowcore.errors import PlanError
from flowcore.planner import plan_flow
from flowcore.planner.plan import Plan
from flowcore.planner.rules.timestamps import (
    choose_format,
    uses_timestamps,
)
from flowcore.planner.views.text import render_text
from flowcore.settings import Settings
from flowcore.watermarks import WatermarkStrategy
from tests.idle_functions import IdleProcess

SALE = "shop STRING, at TIMESTAMP"
OFF = Settings(force_timestamp_support=False, auto_watermark_interval=timedelta(0))
ZERO, SOME = timedelta(0), timedelta(milliseconds=200)
FOUR_SECONDS = bounded_out_of_orderness(timedelta(seconds=4))

FORCED = "pipeline.force-timestamp-support is true"
LOOKING = "pipeline.auto-watermark-interval is 200 ms"
SET = "bids sets watermarks (out of order by up to 4 s)"
ALONE = "nothing else asks for timestamps"
NOTHING = (
    "pipeline.force-timestamp-support is false",
    "pipeline.auto-watermark-interval is 0",
    "no source sets watermarks",
)

GATE: dict[tuple[bool, timedelta, timedelta, WatermarkStrategy | None], tuple[str, tuple[str, ...]]] = {
    (False, ZERO, ZERO, None): ("value-only", NOTHING),
    (False, ZERO, SOME, None): ("value-only", NOTHING),
    (False, ZERO, ZERO, FOUR_SECONDS): ("tagged", (SET,)),
    (False, ZERO, SOME, FOUR_SECONDS): ("tagged", (SET,)),
    (False, SOME, ZERO, None): ("tagged", (LOOKING, ALONE)),
    (False, SOME, SOME, None): ("tagged", (LOOKING, ALONE)),
    (False, SOME, ZERO, FOUR_SECONDS): ("tagged", (LOOKING, SET)),
    (False, SOME, SOME, FOUR_SECONDS): ("tagged", (LOOKING, SET)),
    (True, ZERO, ZERO, None): ("tagged", (FORCED, ALONE)),
    (True, ZERO, SOME, None): ("tagged", (FORCED, ALONE)),
    (True, ZERO, ZERO, FOUR_SECONDS): ("tagged", (FORCED, SET)),
    (True, ZERO, SOME, FOUR_SECONDS): ("tagged", (FORCED, SET)),
    (True, SOME, ZERO, None): ("tagged", (FORCED, LOOKING, ALONE)),
    (True, SOME, SOME, None): ("tagged", (FORCED, LOOKING, ALONE)),
    (True, SOME, ZERO, FOUR_SECONDS): ("tagged", (FORCED, LOOKING, SET)),
    (True, SOME, SOME, FOUR_SECONDS): ("tagged", (FORCED, LOOKING, SET)),
}


def read_bids(flow: Flow, name: str = "bids", **topic: object) -> Stream:
    return flow.read(name, KafkaTopic(name, schema=SALE, **topic))  # type: ignore[arg-type]


def _case(
    force: bool, interval: timedelta, latency: timedelta, strategy: WatermarkStrategy | None
) -> tuple[str, Settings]:
    words = [
        "force" * force,
        "looks" * bool(interval),
        "latency" * bool(latency),
        "strategy" * bool(strategy),
    ]
    return "-".join(filter(None, words)) or "nothing", Settings(
        force_timestamp_support=force, auto_watermark_interval=interval, latency_interval=latency
    )


def test_gate_is_tested_with_every_combination() -> None:
    """There are two to the fourth."""
    assert {*GATE} == {
        *itertools.product((False, True), (ZERO, SOME), (ZERO, SOME), (None, FOUR_SECONDS)),
    }


@pytest.mark.parametrize("given", GATE, ids=lambda given: _case(*given)[0])
def test_gate_names_every_reason_for_timestamps(
    given: tuple[bool, timedelta, timedelta, WatermarkStrategy | None],
) -> None:
    """This holds as a function, for a job and in a plan; no_watermarks() equals no strategy."""
    *rest, strategy = given
    _, settings = _case(*given)
    for same in (strategy,) if strategy else (None, no_watermarks()):
        decision = choose_format(*rest[:2], {"bids": same})  # type: ignore[arg-type]
        assert (decision.value, decision.reasons) == GATE[given]
        assert uses_timestamps(settings, [None, same]) == (decision.value == "tagged")

        flow = Flow("f")
        read_bids(flow, watermark=same).write("out", KafkaTopic("out", elements="auto"))
        (query,) = plan_flow(flow, settings=settings).live_queries
        (inner,) = (edge for edge in query.edges if edge.topic is None)
        assert inner.elements == decision


def test_gate_names_the_interval_as_it_was_set() -> None:
    """The user can find this text in the settings."""
    decision = choose_format(False, timedelta(seconds=90), {})

    assert decision.reasons[0] == "pipeline.auto-watermark-interval is 90 s"


def test_gate_names_every_source_that_sets_watermarks() -> None:
    """Each of them would have to be changed."""
    decision = choose_format(False, ZERO, {"a": monotonous(), "b": None, "c": FOUR_SECONDS})

    assert decision.reasons == (
        "a sets watermarks (monotonous)",
        "c sets watermarks (out of order by up to 4 s)",
    )


def _formats(plan: Plan) -> dict[str, str]:
    parts = (*plan.bounded, *plan.live_queries)
    return {str(edge): edge.elements.value for part in parts for edge in part.edges}


def test_each_edge_follows_the_sources_upstream_of_it() -> None:
    """One branch needs timestamps, the other does not, and their union does."""
    flow = Flow("f")
    timed, plain = read_bids(flow, "timed", watermark=FOUR_SECONDS), read_bids(flow, "plain")
    plain.where("shop = 'a'", name="some").write("left", KafkaTopic("left"))
    timed.union(plain, name="both").write("right", KafkaTopic("right", elements="tagged"))

    assert _formats(plan_flow(flow, settings=OFF)) == {
        "topic timed -> timed": "plain",
        "timed -> both": "tagged",
        "topic plain -> plain": "plain",
        "plain -> some": "value-only",
        "some -> left": "value-only",
        "left -> topic left": "plain",
        "plain -> both": "value-only",
        "both -> right": "tagged",
        "right -> topic right": "tagged",
    }


def test_timestamps_are_carried_to_their_last_reader_only() -> None:
    """The plan of a branch without a reader is that of the query, whose rows it shares."""
    flow = Flow("f")
    bids = read_bids(flow, watermark=FOUR_SECONDS)
    bids.where("shop = 'a'", name="some").write("copy", KafkaTopic("copy"))
    counts = bids.window(Tumbling(10), by="shop", name="counts").aggregate(n="count(*)")
    counts.where("n > 1", name="many").write("out", KafkaTopic("out"))
    shared, windows = plan_flow(flow, settings=Settings(force_timestamp_support=False)).live_queries

    assert {str(edge): edge.elements.value for edge in shared.edges if edge.topic is None} == {
        "bids -> some": "value-only",
        "some -> copy": "value-only",
    }
    assert {str(edge): edge.elements.value for edge in windows.edges if edge.topic is None} == {
        "bids -> counts": "tagged",
        "counts -> many": "value-only",
        "many -> out": "value-only",
    }
    (why,) = {edge.elements.reasons for edge in windows.edges if edge.elements.value == "value-only"}
    assert why == ("nothing downstream reads timestamps",)


def test_branches_of_a_query_share_rows_with_timestamps() -> None:
    """One column serves all branches, so that also a branch without a reader has it."""
    flow = Flow("f")
    bids = read_bids(flow, watermark=FOUR_SECONDS)
    bids.filter(bool, name="some").write("copy", KafkaTopic("copy"))
    bids.write("timed", KafkaTopic("timed", elements="tagged"))
    (query,) = plan_flow(flow, settings=OFF).live_queries

    assert {edge.elements.value for edge in query.edges if edge.topic is None} == {"tagged"}


def test_dataframe_function_loses_timestamps() -> None:
    """Its rows are made by Spark, without the columns of the engine."""
    flow = Flow("f")
    bids = read_bids(flow, watermark=FOUR_SECONDS)
    bids.apply(lambda frame: frame, name="applied").write("out", KafkaTopic("out", elements="tagged"))

    formats = _formats(plan_flow(flow, settings=OFF))

    assert (formats["bids -> applied"], formats["applied -> out"]) == ("tagged", "value-only")


def test_timestamps_do_not_cross_a_blocking_edge() -> None:
    """A table crosses it: watermarks of a bounded source do not make a downstream stream tagged."""
    flow = Flow("f")
    past = read_bids(flow, "past", until="latest", watermark=FOUR_SECONDS).select("shop as x", name="table")
    read_bids(flow).join(past, on={"shop": "x"}, name="joined").write("out", KafkaTopic("out"))

    formats = _formats(plan_flow(flow, settings=OFF))

    assert formats["bids -> joined"] == formats["joined -> out"] == "value-only"
    assert not {"past -> table", "table -> joined"} & {*formats}


class First(IdleProcess):
    """Emits nothing."""


def _newest(flow: Flow, orders: Stream) -> Stream:
    """A join of sales that takes records without watermarks, but none without a timestamp."""
    prices = flow.read("prices", KafkaTopic("prices", schema="shop STRING, price BIGINT"))
    return orders.join_latest(prices, on="shop", load=None, name="newest")


def test_operator_that_needs_timestamps_gets_them_without_watermarks() -> None:
    """It would fail at its first record. Other queries of its sources carry no timestamps."""
    flow = Flow("f")
    bids = read_bids(flow)
    _newest(flow, bids.where("shop = 'a'", name="some")).select("shop").write("out", KafkaTopic("out"))
    bids.process(First(), by="shop", schema="shop STRING", name="first").write("one", Parquet("one"))

    plan = plan_flow(flow, settings=OFF)

    edges = [edge for query in plan.live_queries for edge in query.edges if edge.topic is None]
    tagged = {str(edge): edge.elements.reasons for edge in edges if edge.elements.value == "tagged"}
    needs = ("newest needs the timestamps of its records",)
    assert tagged == dict.fromkeys(("bids -> some", "some -> newest", "prices -> newest"), needs)
    assert "bids -> first" in map(str, edges)


@pytest.mark.parametrize("event_time", [None, "at"], ids=["crosses", "anew"])
def test_timestamps_that_are_needed_cross_a_cut(event_time: str | None) -> None:
    """Downstream of a cut that has event time of its own, those from upstream are not read."""
    flow = Flow("f")
    cut = KafkaTopic("cut", schema=SALE, event_time=event_time)
    _newest(flow, read_bids(flow).through(cut, name="cut")).write("out", KafkaTopic("out"))

    formats = _formats(plan_flow(flow, settings=OFF))

    assert formats["bids -> to_cut"] == ("value-only" if event_time else "tagged")
    assert formats["cut -> newest"] == formats["prices -> newest"] == "tagged"


def test_timestamps_that_are_assigned_anew_are_not_needed_before() -> None:
    flow = Flow("f")
    timed = read_bids(flow).with_event_time("at", watermark=no_watermarks(), name="timed")
    _newest(flow, timed).write("out", KafkaTopic("out"))

    formats = _formats(plan_flow(flow, settings=OFF))

    assert (formats["bids -> timed"], formats["timed -> newest"]) == ("value-only", "tagged")


def test_edges_are_those_of_running_operators() -> None:
    """An operator that no sink needs has no edges; files have no elements."""
    flow = Flow("f")
    bids = read_bids(flow)
    bids.where("shop = 'a'", name="unused")
    bids.write("archive", Parquet("archive"))

    assert [*_formats(plan_flow(flow))] == ["topic bids -> bids", "bids -> archive"]


def test_edges_of_a_query_are_its_own_also_where_names_are_shared() -> None:
    """A topic may have the name of another query's operator."""
    flow = Flow("f")
    read_bids(flow, "a").write("x", KafkaTopic("b"))
    read_bids(flow, "c").write("b", KafkaTopic("x"))

    plan = plan_flow(flow)

    assert [[str(edge) for edge in query.edges] for query in plan.live_queries] == [
        ["topic a -> a", "a -> x", "x -> topic b"],
        ["topic c -> c", "c -> b", "b -> topic x"],
    ]


@pytest.mark.parametrize(
    ("elements", "watermark", "settings", "written"),
    [
        ("plain", None, OFF, "plain"),
        ("plain", FOUR_SECONDS, OFF, "plain"),
        ("auto", None, OFF, "value-only"),
        ("auto", no_watermarks(), OFF, "value-only"),
        ("auto", FOUR_SECONDS, OFF, "tagged"),
        ("auto", None, Settings(), "tagged"),
        ("tagged", None, OFF, "tagged"),
        ("tagged", FOUR_SECONDS, OFF, "tagged"),
        ("value-only", None, OFF, "value-only"),
        ("value-only", None, Settings(), "value-only"),
    ],
)
def test_topic_is_written_as_it_declares(
    elements: str, watermark: WatermarkStrategy | None, settings: Settings, written: str
) -> None:
    """The plan chooses only if the topic leaves the choice open."""
    flow = Flow("f")
    read_bids(flow, watermark=watermark).write("out", KafkaTopic("out", elements=elements))  # type: ignore[arg-type]

    assert _formats(plan_flow(flow, settings=settings))["out -> topic out"] == written


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ({"watermark": FOUR_SECONDS}, "bids sets watermarks (out of order by up to 4 s)"),
        ({"elements": "tagged"}, "bids reads watermarks with its tagged elements"),
    ],
    ids=["strategy", "tagged-source"],
)
def test_topic_of_values_refuses_watermarks_in_the_plan(source: dict[str, object], why: str) -> None:
    """The first watermark would otherwise stop the query."""
    flow = Flow("f")
    read_bids(flow, **source).write("out", KafkaTopic("out", elements="value-only"))

    with pytest.raises(PlanError) as caught:
        plan_flow(flow)

    assert str(caught.value) == (
        f"sink 'out': topic 'out' takes values only, and {why}: a watermark could not be written; pass "
        "elements='plain' to write no watermarks, 'tagged' to write them, or set no watermark strategy"
    )


@pytest.mark.parametrize(
    ("watermark", "inner", "why"),
    [
        (None, "tagged", "bids reads watermarks with its tagged elements"),
        (monotonous(), "tagged", "bids sets watermarks (monotonous)"),
        (no_watermarks(), "value-only", "no source sets watermarks"),
    ],
    ids=["passed-on", "made-anew", "dropped"],
)
def test_tagged_source_has_watermarks(watermark: WatermarkStrategy | None, inner: str, why: str) -> None:
    """The source may declare another strategy."""
    flow = Flow("f")
    read_bids(flow, elements="tagged", watermark=watermark).write("out", KafkaTopic("out", elements="auto"))

    (query,) = plan_flow(flow, settings=OFF).live_queries
    read, between, write = query.edges

    assert (read.elements.value, between.elements.value, write.elements.value) == ("tagged", inner, inner)
    assert between.elements.reasons[-1] == why


def test_explain_is_one_line_where_all_edges_agree() -> None:
    """The plan of a simple flow stays short."""
    flow = Flow("f")
    read_bids(flow).where("shop = 'a'").select("shop").write("out", KafkaTopic("out"))

    lines = render_text(plan_flow(flow, settings=OFF)).splitlines()

    assert [line for line in lines if "elements" in line] == [
        f"    value-only elements because {'; '.join(NOTHING)}"
    ]


def test_explain_names_edges_that_differ_and_topics_with_elements() -> None:
    """It also names the origin of event time."""
    flow = Flow("f")
    timed = read_bids(flow, "timed", event_time="at", watermark=FOUR_SECONDS, elements="value-only")
    timed.union(read_bids(flow, "plain", watermark=no_watermarks()), name="both").write(
        "out", KafkaTopic("out", elements="auto", headers=True)
    )

    text = render_text(plan_flow(flow, settings=OFF))

    for line in (
        f"    tagged elements on timed -> both, both -> out because {SET.replace('bids', 'timed')}",
        f"    value-only elements on plain -> both because {'; '.join(NOTHING)}",
        "      timed: read KafkaTopic timed from earliest, event time at, out of order by up to 4 s",
        "      plain: read KafkaTopic plain from earliest, event time as Kafka keeps it, no watermarks",
        "      topic timed -> timed: value-only elements because its topic declares elements='value-only'",
        "      out -> topic out: tagged elements in headers as what arrives",
    ):
        assert line in text.splitlines()


def test_explain_names_topics_of_bounded_stages_too() -> None:
    """They are written as elements, too."""
    flow = Flow("f")
    read_bids(flow, until="latest").write("copy", KafkaTopic("copied", elements="tagged"))

    assert "copy -> topic copied: tagged elements because its topic declares" in render_text(plan_flow(flow))
