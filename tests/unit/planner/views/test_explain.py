"""What a plan says of itself: read these files to see how flows are planned, and why so.

A change of the planner shows as a change of a file in ``golden``: the text, the diagram, and every
decision. To accept it, run ``python tests/unit/planner/views/test_explain.py``.
"""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flowcore import (
    Csv,
    EndOfStream,
    Flow,
    KafkaTopic,
    KeyedProcessFunction,
    OperatorAttributes,
    OperatorAttributesBuilder,
    Parquet,
    RichFunction,
    Session,
    Stream,
    Tumbling,
    bounded_out_of_orderness,
)
from flowcore.planner import plan_flow
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.windows.triggers import Count, Purging
from pipelines.auctions.flow import flow as reference

GOLDEN = Path(__file__).parent / "golden"
SALE = "shop STRING, price DOUBLE"


def _bids(flow: Flow, name: str = "bids") -> Stream:
    return flow.read(name, KafkaTopic(name, schema=SALE))


def _shops(flow: Flow) -> Stream:
    return flow.read("shops", Parquet("shops", schema="shop STRING, city STRING"))


def auctions() -> Flow:
    """The bounded stage runs first, then the stream that joins its result."""
    return reference


def all_bounded() -> Flow:
    """No stream at all: two parts that have nothing in common are two stages."""
    flow = Flow("all_bounded")
    sales = flow.read("sales", Csv("sales", schema=SALE))
    sales.aggregate(by="shop", total="sum(price)").write("totals", Parquet("out/totals"))
    _shops(flow).where("city = 'Bern'").write("bern", Parquet("out/bern"))
    return flow


def all_live() -> Flow:
    """No bounded stage: no query waits."""
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


def tracked() -> Flow:
    """Latency markers are written to topics only, and pass through no DataFrame function."""
    flow = Flow("tracked")
    bids = _bids(flow)
    bids.write("copy", KafkaTopic("copy"))
    bids.write("archive", Parquet("archive"))
    bids.apply(_dearest, schema="shop STRING").write("dear", KafkaTopic("dear"))
    return flow


def python_chain() -> Flow:
    """Plain functions in a row: one call of a worker, and no copies."""
    flow = Flow("python_chain")
    ends = _bids(flow).map(_same, schema=SALE).filter(_keep).flat_map(_twice, schema=SALE)
    ends.map_batches(_same, schema=SALE).write("out", KafkaTopic("out"))
    return flow


def rich_functions() -> Flow:
    """What may be kept is copied, unless the function says that it keeps nothing."""
    flow = Flow("rich_functions")
    careful = _bids(flow).map(_Lookup(), schema=SALE, name="careful")
    trusted = careful.map(_Trusted(), schema=SALE, name="trusted")
    trusted.map(_same, schema=SALE, name="plain").write("out", KafkaTopic("out"))
    return flow


def kept_objects() -> Flow:
    """The second function keeps its output: it gets the first one's objects, the third gets copies."""
    flow = Flow("kept_objects")
    op1 = _bids(flow).map(_same, schema=SALE, name="op1")
    op2 = op1.map(_same, schema=SALE, name="op2", attributes=_builder().set_output_value_stored(True))
    op2.map(_same, schema=SALE, name="op3").write("out", KafkaTopic("out"))
    return flow


def kept_objects_in_a_fan_out() -> Flow:
    """Two functions get the same objects; the readers of one that keeps them get a copy each."""
    flow = Flow("kept_objects_in_a_fan_out")
    op1 = _bids(flow).map(_same, schema=SALE, name="op1")
    op1.map(_same, schema=SALE, name="op2").write("out2", KafkaTopic("out2"))
    op3 = op1.map(_same, schema=SALE, name="op3", attributes=_builder().set_output_value_stored(True))
    op3.map(_same, schema=SALE, name="op4").write("out4", KafkaTopic("out4"))
    op3.map(_same, schema=SALE, name="op5").write("out5", KafkaTopic("out5"))
    return flow


def nothing_declared() -> Flow:
    """Operators that promise nothing: copies everywhere."""
    flow = Flow("nothing_declared")
    stream = _bids(flow)
    for _ in range(3):
        stream = stream.map(_same, schema=SALE, attributes=OperatorAttributes())
    stream.write("out", KafkaTopic("out"))
    return flow


def object_reuse() -> Flow:
    """The same with ``pipeline.object-reuse``: copies nowhere."""
    return nothing_declared()


def shallow_copies() -> Flow:
    """A receiver that changes its record gets one of its own, with the same values."""
    flow = Flow("shallow_copies")
    bids = _bids(flow).map(_same, schema=SALE, name="made")
    changing = _builder().set_input_record_stored(True)
    bids.map(_same, schema=SALE, name="changing", attributes=changing).write("changed", KafkaTopic("changed"))
    bids.filter(_keep, name="kept").write("kept_out", KafkaTopic("kept"))
    return flow


def python_beside_native() -> Flow:
    """A chain ends where one of the readers is Spark's."""
    flow = Flow("python_beside_native")
    made = _bids(flow).map(_same, schema=SALE, name="made")
    made.filter(_keep, name="kept").write("kept_out", KafkaTopic("kept"))
    made.aggregate(by="shop", top="max(price)").write("top", KafkaTopic("top"))
    made.select("shop").write("shops", KafkaTopic("shops"))
    return flow


def bounded_python() -> Flow:
    """Functions over bounded input; unused columns do not reach them."""
    flow = Flow("bounded_python")
    sales = flow.read("sales", Parquet("sales", schema=f"{SALE}, note STRING, buyer STRING"))
    rounded = sales.map(_same, schema=SALE, uses=["shop", "price"], name="rounded")
    totals = rounded.aggregate(by="shop", total="sum(price)", name="totals")
    _bids(flow).join(totals, on="shop").write("out", KafkaTopic("out"))
    return flow


def co_grouped() -> Flow:
    """Both sides end before a key is complete, and the stream starts after that."""
    flow = Flow("co_grouped")
    sales = flow.read("sales", Parquet("sales", schema=f"{SALE}, note STRING"))
    shops = _shops(flow).co_group(
        sales, on="shop", city="max(left.city)", sold="count(right)", total="sum(right.price)", name="summed"
    )
    _bids(flow).join(shops, on="shop").write("out", KafkaTopic("out"))
    return flow


def co_grouped_by_a_function() -> Flow:
    """Spark makes the groups for the first function of a chain."""
    flow = Flow("co_grouped_by_a_function")
    sales = flow.read("sales", Parquet("sales", schema=SALE))
    best = _shops(flow).co_group(sales, _best, on="shop", schema=SALE, name="best")
    best.filter(_keep, name="kept").write("out", Parquet("out"))
    return flow


def early_filters() -> Flow:
    """A filter goes before the functions that hand its columns on; the other says what is missing."""
    flow = Flow("early_filters")
    made = _bids(flow).map(_same, schema=SALE, passes=["shop"], name="made").filter(_keep, name="kept")
    made.where("shop <> 'x'", name="early").where("price > 1", name="late").write("out", KafkaTopic("out"))
    return flow


def declared_attributes() -> Flow:
    """Promises that nobody could guess."""
    flow = Flow("declared_attributes")
    at_checkpoint = _builder().set_output_on_checkpoint(True)
    latest = _builder().set_output_idempotent(True)
    sales = flow.read("sales", Parquet("sales", schema=SALE))
    at_end = _builder().set_output_only_at_end(True)
    best = sales.map_batches(_same, schema=SALE, name="best", attributes=at_end)
    bids = _bids(flow).select("shop", "price", attributes=at_checkpoint)
    bids.join(best.select("shop", "price as best"), on="shop").aggregate(
        by="shop", top="max(price - best)", attributes=latest
    ).write("out", KafkaTopic("out"))
    return flow


def python_formats() -> Flow:
    """A format that Spark does not have runs in Python; values travel alone."""
    flow = Flow("python_formats")
    bids = flow.read(
        "bids", KafkaTopic("bids", schema="id BIGINT NOT NULL, price DOUBLE NOT NULL", format="fixed")
    )
    bids.where("price > 1").write("out", KafkaTopic("out", elements="auto"))
    return flow


def watermarked() -> Flow:
    """Timestamps are needed, and no setting stands in the way of anything."""
    flow = Flow("watermarked")
    topic = KafkaTopic(
        "bids",
        schema="shop STRING, at TIMESTAMP",
        event_time="at",
        watermark=bounded_out_of_orderness(timedelta(seconds=4)).with_alignment(timedelta(hours=1)),
    )
    flow.read("bids", topic).write("out", KafkaTopic("out", elements="tagged"))
    return flow


def _timed(flow: Flow) -> Stream:
    topic = KafkaTopic(
        "bids",
        schema=f"{SALE}, note STRING, at TIMESTAMP",
        event_time="at",
        watermark=bounded_out_of_orderness(timedelta(seconds=4)),
    )
    return flow.read("bids", topic)


def windows_by_key() -> Flow:
    """Results and late records leave through one query; what nobody reads does not cross the shuffle."""
    flow = Flow("windows_by_key")
    windows = _timed(flow).window(
        Tumbling(seconds=10), by="shop", allowed_lateness=timedelta(seconds=30), late="side-output",
        name="per_shop",
    )  # fmt: skip
    per_shop = windows.aggregate(bids="count(*)", top="max(price * 2)")
    per_shop.write("out", KafkaTopic("per-shop"))
    per_shop.late.select("shop", "at").write("late", KafkaTopic("late"))
    return flow


def sessions() -> Flow:
    """The gap is computed natively; one record a session is kept."""
    flow = Flow("sessions")
    windows = _timed(flow).window(
        Session(gap="if(price > 10, 5000, 1000)"), by="shop", uses=["shop", "price"]
    )
    windows.reduce(_same, then=_same, schema="label STRING").write("out", KafkaTopic("out"))
    return flow


def windows_by_the_clock() -> Flow:
    """They need no watermarks, and have nothing that is late."""
    flow = Flow("windows_by_the_clock")
    windows = _bids(flow).window(Tumbling(seconds=1), time="processing", trigger=Purging(Count(100)))
    windows.process(_same, schema="label STRING").write("out", KafkaTopic("out"))
    return flow


def keyed_process() -> Flow:
    """State and timers of a function by key, in four parts."""
    flow = Flow("keyed_process")
    found = _timed(flow).process(
        _Alarm(), by=["shop", "note"], uses=["price"], schema="label STRING",
        side_outputs={"rare": "n INT"}, name="alarm",
    )  # fmt: skip
    found.write("out", KafkaTopic("out"))
    found.side_output("rare").write("rare", KafkaTopic("rare"))
    return flow


def process_chain() -> Flow:
    """Functions upstream and downstream of a process, and a side output."""
    flow = Flow("process_chain")
    bids = _timed(flow).map(_same, schema="shop STRING, price DOUBLE", name="cleaned")
    found = bids.process(
        _Alarm(),
        by="shop",
        uses=["price"],
        schema="label STRING",
        side_outputs={"rare": "n INT"},
        name="alarm",
    )
    labels = found.filter(_keep, name="kept")
    labels.map(_same, schema="label STRING", name="shown").write("out", KafkaTopic("out"))
    labels.flat_map(_twice, schema="label STRING", name="copied").write("copies", KafkaTopic("copies"))
    found.side_output("rare").write("rare", KafkaTopic("rare"))
    return flow


def bounded_windows() -> Flow:
    """Over bounded input Spark's own window aggregate gives the same, unless there is Python in it."""
    flow = Flow("bounded_windows")
    sales = flow.read("sales", Parquet("sales", schema=f"{SALE}, at TIMESTAMP"))
    hours = sales.window(Tumbling(timedelta(hours=1)), by="shop", timestamp="at").aggregate(
        total="sum(price)"
    )
    hours.write("hours", Parquet("out/hours"))
    median = sales.window(EndOfStream(), by="shop").process(_same, schema="median DOUBLE")
    median.write("medians", Parquet("out/medians"))
    return flow


def flushed_by_the_trigger() -> Flow:
    """Batches as far apart as the interval; what follows leaves with them, and real time would not wait."""
    flow = Flow("flushed_by_the_trigger")
    top = _bids(flow).aggregate(by="shop", top="max(price)", name="highest").where("top > 1", name="high")
    top.map(_Latest(), schema="shop STRING", passes=["shop"], name="named").write("out", KafkaTopic("out"))
    return flow


def flushed_by_key_group() -> Flow:
    """Buffers of a function and of windows, each in a query of its own; of a median nothing is known."""
    flow = Flow("flushed_by_key_group")
    bids = _bids(flow)
    ranked = bids.map(_Latest(), schema=SALE, key="shop", flush=timedelta(minutes=2), name="ranked")
    ranked.filter(_keep, name="kept").write("ranks", KafkaTopic("ranks"))
    windows = bids.window(Tumbling(seconds=10), by="shop", time="processing", name="per_shop")
    windows.aggregate(top="max(price)").write("tops", KafkaTopic("tops"))
    bids.aggregate(by="shop", middle="median(price)", name="middle").write("middles", KafkaTopic("middles"))
    return flow


def _dearest(frame: object) -> object:
    return frame


def _same(record: Any) -> Any:
    return record


def _keep(record: Any) -> bool:
    return bool(record["price"])


def _twice(record: Any) -> Iterator[Any]:
    yield from (record, record)


def _best(key: Any, left: Any, right: Any) -> Iterator[Any]:
    del key, left
    yield from right


class _Lookup(RichFunction):
    """Keeps what it likes."""


class _Latest(RichFunction):
    """Its output replaces earlier output of the same shop."""

    def is_output_idempotent(self) -> bool:
        return True


class _Alarm(KeyedProcessFunction):
    """Rings."""


class _Trusted(RichFunction):
    """Keeps none of its output records."""

    def is_output_value_stored(self) -> bool:
        return False


def _builder() -> OperatorAttributesBuilder:
    return OperatorAttributesBuilder()


FLOWS: list[Callable[[], Flow]] = [
    auctions, all_bounded, all_live, diamond, shared_result, fan_out, stateful_and_stateless, only_stateful,
    united, applied, live_files, python_chain, rich_functions, kept_objects, kept_objects_in_a_fan_out,
    nothing_declared, object_reuse, shallow_copies, python_beside_native, bounded_python, early_filters,
    declared_attributes, python_formats, watermarked, tracked, co_grouped, co_grouped_by_a_function,
    windows_by_key, sessions, windows_by_the_clock, keyed_process, bounded_windows, flushed_by_the_trigger,
    flushed_by_key_group, process_chain,
]  # fmt: skip
SETTINGS = {
    "flushed_by_the_trigger": {"execution.flush.max-interval": "2 min"},
    "flushed_by_key_group": {
        "execution.flush.max-interval": "1 s",
        "execution.flush.memory-buffer-only": True,
    },
    "keyed_process": {"state.key-groups": 4},
    "tracked": {"metrics.latency.interval": "1 s"},
    "object_reuse": {"pipeline.object-reuse": True},
    "python_formats": {"pipeline.force-timestamp-support": False, "pipeline.auto-watermark-interval": "0"},
}
FORMS: dict[str, Callable[[Plan], str]] = {
    "txt": lambda plan: plan.explain(),
    "mmd": lambda plan: plan.to_mermaid(),
    "json": lambda plan: _one_line_each(plan.to_dict()),
}


def _plan(declare: Callable[[], Flow]) -> Plan:
    return plan_flow(declare(), settings=Settings.of(SETTINGS.get(declare.__name__, {}), environment={}))


def _one_line_each(document: dict[str, Any]) -> str:
    """JSON with one operator, edge or chain a line: a change of one decision changes one line."""
    lines = [json.dumps(document["flow"])]
    for part in document["parts"]:
        lists = ("operators", "edges", "chains")
        lines.append(json.dumps({key: value for key, value in part.items() if key not in lists}))
        lines += [f"  {key[:-1]} {json.dumps(each)}" for key in lists for each in part[key]]
    return "\n".join(lines)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("declare", FLOWS, ids=lambda declare: declare.__name__)
def test_plan_equals_its_golden_files(declare: Callable[[], Flow], form: str) -> None:
    """Text, diagram and decisions equal the reviewed ones."""
    expected = (GOLDEN / f"{declare.__name__}.{form}").read_text()

    assert FORMS[form](_plan(declare)) + "\n" == expected


def test_golden_files_all_belong_to_a_flow() -> None:
    """A golden file without a flow fails the test."""
    named = {f"{declare.__name__}.{form}" for declare in FLOWS for form in FORMS}

    assert {path.name for path in GOLDEN.iterdir()} == named


@pytest.mark.parametrize("declare", FLOWS, ids=lambda declare: declare.__name__)
def test_plan_is_the_same_each_time(declare: Callable[[], Flow]) -> None:
    """It depends on flow and settings only."""
    first, again = _plan(declare), _plan(declare)

    assert first.explain(verbose=True) == again.explain(verbose=True)
    assert json.loads(json.dumps(first.to_dict())) == again.to_dict()


@pytest.mark.parametrize("declare", FLOWS, ids=lambda declare: declare.__name__)
def test_verbose_text_begins_with_the_short_one_and_names_every_rule(declare: Callable[[], Flow]) -> None:
    """Every inactive rule has a reason."""
    plan = _plan(declare)
    text = plan.explain(verbose=True)

    assert text.startswith(plan.explain())
    for part in plan.to_dict()["parts"]:
        for each in [*part["operators"], *part["edges"]]:
            decisions = [value for value in each.values() if isinstance(value, dict) and "because" in value]
            assert decisions
            for decision in decisions:
                assert decision["because"]
                assert f": {decision['value']} because {', '.join(decision['because'])}" in text


@pytest.mark.parametrize("declare", FLOWS, ids=lambda declare: declare.__name__)
def test_diagram_has_every_operator_and_closes_every_box(declare: Callable[[], Flow]) -> None:
    """Arrows connect declared nodes, and no name ends a label early."""
    plan = _plan(declare)
    lines = [line.strip() for line in plan.to_mermaid().splitlines()]
    nodes = {line.partition("[")[0] for line in lines if "[" in line and "--" not in line.partition("[")[0]}
    arrows = [line for line in lines if any(arrow in line.split('"')[0] for arrow in ("-->", "==>", "-.->"))]

    assert sum(line.startswith("subgraph") for line in lines) == lines.count("end")
    for arrow in arrows:
        sender, receiver = arrow.split()[0], arrow.split()[-1].partition("[")[0]
        assert sender in nodes
        assert receiver in nodes or "dead-letter" in arrow
    assert all(line.count('"') % 2 == 0 and line.count('"') <= 2 for line in lines)
    for stage in plan.bounded:
        assert all(f"{node.name}: " in plan.to_mermaid() for node in stage.operators)


if __name__ == "__main__":
    for declare in FLOWS:
        for form, show in FORMS.items():
            (GOLDEN / f"{declare.__name__}.{form}").write_text(show(_plan(declare)) + "\n")
