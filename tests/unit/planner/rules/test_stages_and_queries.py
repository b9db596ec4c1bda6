"""The plan splits a flow only where Spark requires it."""

import pytest

from flowcore import Flow, KafkaTopic, Parquet, Stream
from flowcore.api.operators import Read
from flowcore.errors import PlanError
from flowcore.planner import plan_flow
from flowcore.planner.model import LiveQuery
from flowcore.planner.plan import Plan
from flowcore.settings import Settings

SALE = "shop STRING, price DOUBLE"


def _bounded(flow: Flow, name: str) -> Stream:
    return flow.read(name, Parquet(name, schema=f"shop STRING, {name}_value DOUBLE"))


def _live(flow: Flow, name: str = "bids", on_error: str = "dead-letter") -> Stream:
    return flow.read(name, KafkaTopic(name, schema=SALE, on_error=on_error))  # type: ignore[arg-type]


def _queries(plan: Plan) -> tuple[LiveQuery, ...]:
    return plan.live_queries


def test_plan_refuses_a_flow_without_sink() -> None:
    """It would compute nothing."""
    flow = Flow("nothing")
    _bounded(flow, "a")

    with pytest.raises(PlanError, match="'nothing' has no sink"):
        plan_flow(flow)


def test_independent_stages_are_separate() -> None:
    """Each can be run, skipped and repeated separately."""
    flow = Flow("f")
    joined = _live(flow).join(_bounded(flow, "a"), on="shop").join(_bounded(flow, "b"), on="shop")
    joined.write("out", KafkaTopic("out"))

    assert [stage.name for stage in plan_flow(flow).bounded] == ["a", "b"]


def test_stages_that_share_an_operator_are_one() -> None:
    """The shared part is computed once, and one stage writes the results and the sink."""
    flow = Flow("f")
    base = _bounded(flow, "a")
    first, second = base.where("a_value > 1", name="first"), base.select("shop", name="second")
    base.aggregate(by="shop", n="count(*)").write("report", Parquet("report"))
    _live(flow).join(first, on="shop").join(second, on="shop").write("out", KafkaTopic("out"))

    (stage,) = plan_flow(flow).bounded

    assert stage.name == "first+second+report"
    assert [result.name for result in stage.results] == ["first", "second"]
    assert [sink.name for sink in stage.sinks] == ["report"]
    assert [source.name for source in stage.sources] == ["a"]


def test_stages_connected_by_a_third_are_one() -> None:
    """Being connected is transitive, for any order of declarations."""
    flow = Flow("f")
    a, b = _bounded(flow, "a"), _bounded(flow, "b")
    a.write("only_a", Parquet("x"))
    b.write("only_b", Parquet("y"))
    a.join(b, on="shop").write("both", Parquet("z"))

    assert [stage.name for stage in plan_flow(flow).bounded] == ["only_a+only_b+both"]


def test_stage_leaves_out_what_no_result_needs() -> None:
    """An operator without readers does not run."""
    flow = Flow("f")
    a = _bounded(flow, "a")
    a.where("a_value > 1", name="unused")
    a.write("out", Parquet("x"))

    (stage,) = plan_flow(flow).bounded

    assert "unused" not in [node.name for node in stage.operators]


def test_result_that_two_queries_join_is_one() -> None:
    """A bounded result is computed once and names all its readers."""
    flow = Flow("f")
    shops = _bounded(flow, "a")
    bids = _live(flow)
    bids.join(shops, on="shop", name="one").aggregate(by="shop", n="count(*)").write("n", KafkaTopic("n"))
    bids.join(shops, on="shop", name="two").write("out", KafkaTopic("out"))

    plan = plan_flow(flow)

    ((result,),) = (stage.results for stage in plan.bounded)
    assert result.consumers == ("one", "two")
    assert [query.results for query in _queries(plan)] == [(shops.operator,), (shops.operator,)]


def test_queries_without_state_share_a_read() -> None:
    """Branches of one source, and of united sources, are one query."""
    flow = Flow("f")
    bids, asks = _live(flow), _live(flow, "asks")
    bids.write("one", KafkaTopic("one"))
    asks.write("two", KafkaTopic("two"))
    bids.union(asks).write("both", KafkaTopic("both"))

    (query,) = _queries(plan_flow(flow))

    assert {sink.name for sink in query.sinks} == {"one", "two", "both"}


def test_queries_of_unrelated_sources_are_separate() -> None:
    """One can lag or fail without the other."""
    flow = Flow("f")
    _live(flow).write("one", KafkaTopic("one"))
    _live(flow, "asks").write("two", KafkaTopic("two"))

    assert [query.name for query in _queries(plan_flow(flow))] == ["bids", "asks"]


@pytest.mark.parametrize("ends", ["source", "sink"])
def test_queries_of_one_name_are_refused(ends: str) -> None:
    """They would share a checkpoint."""
    flow = Flow("f")
    sales = _live(flow)
    sales.map(dict, schema=SALE).write("copies", KafkaTopic("copies"))
    if ends == "source":
        _live(flow, "bids-Batches").write("more", KafkaTopic("more"))
    else:
        sales.aggregate(by="shop", n="count(*)").write("bids-Batches", KafkaTopic("more"))

    with pytest.raises(PlanError, match=r"'more' and 'copies'|'copies' and .*called 'bids-Batches'"):
        plan_flow(flow)


def test_query_with_state_may_have_several_sinks() -> None:
    """Only sinks downstream of the same state share a query."""
    flow = Flow("f")
    best = _live(flow, on_error="fail").aggregate(by="shop", best="max(price)")
    best.write("all", KafkaTopic("all"))
    best.where("best > 100").write("high", KafkaTopic("high"))
    best.apply(lambda frame: frame).write("other", KafkaTopic("other"), key="shop")

    assert [[sink.name for sink in query.sinks] for query in _queries(plan_flow(flow))] == [
        ["all", "high"],
        ["other"],
    ]


def test_queries_refuse_state_by_key_group_of_the_rows_of_a_dataframe_function() -> None:
    """They have no channels; downstream of a cut they have."""
    flow = Flow("f")
    applied = _live(flow).apply(lambda frame: frame, schema=SALE, name="applied")
    applied.reduce(lambda _, new: new, by="shop", schema=SALE, name="newest").write("out", KafkaTopic("out"))
    with pytest.raises(PlanError, match=r"'newest', .* DataFrame function 'applied': .* \.through"):
        plan_flow(flow)

    other = Flow("f")
    cut = _live(other).apply(lambda frame: frame, schema=SALE, name="applied").through("cut", schema=SALE)
    cut.reduce(lambda _, new: new, by="shop", schema=SALE).write("out", KafkaTopic("out"))
    assert [query.name for query in _queries(plan_flow(other)) if query.sinks] == ["to_cut", "cut-batches"]


def _branches(flow: Flow, which: set[str], on_error: str) -> None:
    bids = _live(flow, on_error=on_error)
    if "plain" in which:
        bids.write("plain", KafkaTopic("plain"))
    if "state" in which:
        bids.aggregate(by="shop", n="count(*)").write("state", KafkaTopic("state"))
    if "other_state" in which:
        bids.aggregate(by="price", n="count(*)").write("other_state", KafkaTopic("other_state"))
    if "files" in which:
        bids.write("files", Parquet("files"))
    if "function" in which:
        bids.apply(lambda frame: frame).write("function", KafkaTopic("function"))
    if "united" in which:
        bids.union(_live(flow, "asks")).write("united", KafkaTopic("united"))


BRANCHES = ["plain", "state", "other_state", "files", "function", "united"]


@pytest.mark.parametrize("subset", range(1, 2 ** len(BRANCHES)))
def test_bad_records_leave_through_exactly_one_query(subset: int) -> None:
    """This holds for every mix of branches; query names, which name checkpoints, are unique."""
    which = {name for bit, name in enumerate(BRANCHES) if subset >> bit & 1}
    flow = Flow("f")
    _branches(flow, which, "dead-letter")

    queries = _queries(plan_flow(flow))

    routed = [source.name for query in queries for source in query.dead_letters]
    live = {node.name for node in flow.operators if isinstance(node, Read)}
    assert sorted(routed) == sorted(live)
    assert len({query.name for query in queries}) == len(queries)
    assert sorted(sink.name for query in queries for sink in query.sinks) == sorted(which)


def test_source_with_on_error_fail_has_no_query_of_dead_letters() -> None:
    """on_error='fail' has no dead letters."""
    flow = Flow("f")
    _branches(flow, set(BRANCHES) - {"united"}, "fail")

    assert all(not query.dead_letters for query in _queries(plan_flow(flow)))


def test_plan_lists_every_topic_once() -> None:
    """Sources and sinks, bounded and live."""
    flow = Flow("f")
    past = flow.read("past", KafkaTopic("past", schema=SALE, until="latest"))
    bids = _live(flow)
    bids.join(past.select("shop", "price as last"), on="shop").write("out", KafkaTopic("out"))
    bids.aggregate(by="shop", n="count(*)").write("n", KafkaTopic("n"))

    assert [(node.name, topic.name) for node, topic in plan_flow(flow).topics] == [
        ("past", "past"), ("bids", "bids"), ("out", "out"), ("n", "n"),
    ]  # fmt: skip


def test_stages_that_share_a_folder_run_in_sequence() -> None:
    """A stage waits for an earlier one if one of them writes a folder that the other reads or writes."""
    flow = Flow("f")
    _bounded(flow, "a").write("report", Parquet("out/report"))
    flow.read("again", Parquet("out", schema="shop STRING")).write("copy", Parquet("copy"))
    flow.read("other", Parquet("outside", schema="shop STRING")).write("back", Parquet("a/part"))

    report, copy, back = plan_flow(flow).bounded

    assert (report.after, copy.after, back.after) == ((), ("report",), ("report",))
    assert copy.start.value == "after report"
    assert copy.start.reasons == ("again reads what report writes",)
    assert back.start.reasons == ("back writes what a reads",)


def test_sinks_may_make_the_folders_that_later_stages_read() -> None:
    """A stage reads one value's folder of what an earlier stage writes."""
    flow = Flow("f")
    _bounded(flow, "a").write("report", Parquet("out", partition_by="shop"))
    flow.read("one", Parquet("out/shop=1", schema="a_value DOUBLE")).write("copy", Parquet("copy"))

    assert plan_flow(flow).bounded[1].after == ("report",)


@pytest.mark.parametrize(
    ("sink", "folders", "message"),
    [
        ("/data", {"data.dir": "/data/in"}, r"folder '/data', which is data.dir or around it \(/data/in\)"),
        ("state", {"data.dir": "/d", "state.dir": "/d/state"}, "folder '/d/state', which is state.dir"),
        ("/d/a", {"data.dir": "/d"}, "writes the folder '/d/a', which its source 'a' reads"),
    ],
)
def test_plan_refuses_sinks_around_what_is_kept(sink: str, folders: dict[str, str], message: str) -> None:
    """The settings say where the folders are; everything in that of a sink is replaced."""
    flow = Flow("f")
    _bounded(flow, "a").write("out", Parquet(sink))

    with pytest.raises(PlanError, match=message):
        plan_flow(flow, settings=Settings.of(folders, environment={}))


def test_stages_that_share_a_topic_run_in_sequence() -> None:
    """A bounded read of a topic must see all records that an earlier stage writes."""
    flow = Flow("f")
    _bounded(flow, "a").write("fill", KafkaTopic("t"))
    flow.read("filled", KafkaTopic("t", schema="shop STRING", until="latest")).write("x", Parquet("x"))
    flow.read("two", KafkaTopic("u", schema="shop STRING", until="latest")).write("y", Parquet("y"))

    assert [stage.after for stage in plan_flow(flow).bounded] == [(), ("fill",), ()]


def test_stages_may_read_the_same_at_once() -> None:
    """Concurrent readers do not affect each other."""
    flow = Flow("f")
    flow.read("one", Parquet("in", schema="shop STRING")).write("x", Parquet("x"))
    flow.read("two", Parquet("in", schema="shop STRING")).write("y", Parquet("y"))

    assert [stage.start.value for stage in plan_flow(flow).bounded] == ["at once", "at once"]


def test_stages_are_in_the_order_in_which_they_were_declared() -> None:
    """This covers sinks and results, since a result may read what an earlier sink wrote."""
    flow = Flow("f")
    _bounded(flow, "a").write("report", Parquet("out"))
    again = flow.read("again", Parquet("out", schema="shop STRING"))
    _live(flow).join(again, on="shop").write("out", KafkaTopic("out"))

    assert [(stage.name, stage.after) for stage in plan_flow(flow).bounded] == [
        ("report", ()), ("again", ("report",)),
    ]  # fmt: skip
