"""A plan holds back what replaces itself and has an interval, by what is enough for it, and says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from flowcore import (
    Flow,
    Global,
    KafkaTopic,
    KeyedProcessFunction,
    OperatorAttributesBuilder,
    Parquet,
    RichFunction,
    Stream,
    Tumbling,
)
from flowcore.errors import PlanError, SettingsError
from flowcore.flush.config import BufferOutput
from flowcore.planner import plan_flow
from flowcore.planner.fingerprint import fingerprint
from flowcore.planner.plan import Flush, LiveQuery, Mode
from flowcore.settings import Settings
from flowcore.windows.triggers import Count, Purging

SALE = "shop STRING, price DOUBLE, kind STRING"
MINUTE = timedelta(minutes=1)
DECLARED = OperatorAttributesBuilder().set_output_idempotent(True)


class Latest(RichFunction):
    """A user's function of which a later output replaces the earlier ones."""

    is_output_idempotent = True  # type: ignore[assignment]

    def __call__(self, record: Any) -> Any:
        return record


class Each(KeyedProcessFunction):
    """One that promises nothing."""


class Ranked(KeyedProcessFunction):
    """One that promises it."""

    is_output_idempotent = True


class Fold:
    """A user's aggregate function."""

    def __init__(self, *, idempotent: bool) -> None:
        self.is_output_idempotent = idempotent

    create = add = merge = result = print


def _same(record: Any) -> Any:
    return record


def _first(key: Any, values: Any) -> Iterator[Any]:
    del key
    yield from values[:1]


def _queries(
    build: Callable[[Stream], Stream], mode: Mode | None = None, **settings: object
) -> tuple[LiveQuery, ...]:
    flow = Flow("f")
    built = build(flow.read("sales", KafkaTopic("sales", schema=SALE, on_error="fail")))
    built.write("out", KafkaTopic("out"), key=built.columns[0])
    keys = {"execution.flush.max-interval": "1 min"} | {
        f"execution.{name.replace('__', '.').replace('_', '-')}": value for name, value in settings.items()
    }
    live = plan_flow(flow, mode, Settings.of(keys, environment={})).live
    assert live
    return live.queries


def _query(build: Callable[[Stream], Stream], mode: Mode | None = None, **settings: object) -> LiveQuery:
    (query,) = _queries(build, mode, **settings)
    return query


def _flush(
    build: Callable[[Stream], Stream], name: str = "held", mode: Mode | None = None, **settings: object
) -> Flush:
    query = _query(build, mode, **settings)
    return next(each for each in query.flushes if each.operator.name == name)


BUILT_IN = {
    "distinct": None, "sum": "sum(price)", "sum0": "coalesce(sum(price), 0)", "min": "min(price)",
    "max": "max(price)", "min-by": "min_by(kind, price)", "max-by": "max_by(kind, price)",
    "count": "count(price)", "count-star": "count(*)", "avg": "avg(price)", "mean": "mean(price)",
    "first-value": "first_value(price)", "first": "first(price, true)", "any-value": "any_value(price)",
    "last-value": "last_value(price)", "last": "last(price) ignore nulls", "list-agg": "listagg(kind, ',')",
    "string-agg": "string_agg(kind, ',')", "stddev-pop": "stddev_pop(price)",
    "stddev-samp": "stddev_samp(price)", "stddev": "stddev(price)", "std": "std(price)",
    "var-pop": "var_pop(price)", "var-samp": "var_samp(price)", "variance": "variance(price)",
    "collect-list": "collect_list(kind)", "collect-set": "collect_set(kind)", "array-agg": "array_agg(kind)",
    "of-several": "round(sum(price) / count(*), 2)", "where": "sum(price) filter (where kind = 'a')",
    "of-a-row": "max(my_own(price))", "behind": "my_own(max(price))",
}  # fmt: skip


@pytest.mark.parametrize("text", BUILT_IN.values(), ids=BUILT_IN)
def test_built_in_aggregate_leaves_once_an_interval_by_the_trigger(text: str | None) -> None:
    """By key, and also where there is one row over everything, if there is anything to compute."""
    computed = {} if text is None else {"x": text}

    flush = _flush(lambda sales: sales.aggregate(by="shop", name="held", **computed))

    assert (flush.way, flush.key) == ("trigger", ("shop",))
    assert flush.config == BufferOutput(interval_ms=60_000, max_entries=1_000_000)
    assert "execution.flush.max-interval is 1 min" in flush.decision.reasons
    if computed:
        alone = _flush(lambda sales: sales.aggregate(name="held", **computed))
        assert (alone.way, alone.key) == ("trigger", ())
        assert alone.config is not None
        assert not alone.config.keyed


NOT_BUILT_IN = {
    "median": "median(price)", "approx-count-distinct": "approx_count_distinct(price)",
    "percentile": "percentile(price, 0.5)",
    "percentile-cont": "percentile_cont(0.5) within group (order by price)",
    "count-if": "count_if(price > 1)", "bool-and": "bool_and(price > 1)", "every": "every(price > 1)",
    "any": "any(price > 1)", "corr": "corr(price, price)", "mode": "mode(kind)",
    "try-sum": "try_sum(price)",
    "sketch": "hll_sketch_agg(price)", "my-own": "my_own(price)",
    "one-of-several": "max(price) + median(price)",
    "around": "my_own(median(price))",
}  # fmt: skip


@pytest.mark.parametrize("text", NOT_BUILT_IN.values(), ids=NOT_BUILT_IN)
def test_other_aggregate_is_never_held_back_unless_that_is_declared(text: str) -> None:
    """The plan names the function; an interval of the operator's own is an error."""
    flush = _flush(lambda sales: sales.aggregate(by="shop", name="held", x=text))

    assert flush.way == "off"
    assert "it is not known that a later result replaces earlier ones" in flush.decision.reasons[0]
    assert any("set_output_idempotent(True)" in each for each in flush.decision.change)
    with pytest.raises(PlanError, match=r"'held': flush=1 min, and of .* it is not known"):
        _flush(lambda sales: sales.aggregate(by="shop", name="held", x=text, flush=MINUTE))
    declared = _flush(lambda sales: sales.aggregate(by="shop", name="held", x=text, attributes=DECLARED))
    assert declared.way == "trigger"


def _windows(sales: Stream, **kept: Any) -> Any:
    return sales.window(Tumbling(10), by="shop", time="processing", name="held", **kept)


BY_KEY_GROUP: dict[str, tuple[Callable[[Stream], Stream], tuple[str, ...]]] = {
    "window": (
        lambda sales: _windows(sales).aggregate(x="max(price)"), ("shop", "window_start", "window_end"),
    ),
    "grouped-reduce": (
        lambda sales: _windows(sales).reduce(_first), ("shop", "window_start", "window_end"),
    ),
    "window-function": (
        lambda sales: _windows(sales).process(Latest(), schema="n INT"),
        ("shop", "window_start", "window_end"),
    ),
    "fold": (
        lambda sales: _windows(sales).aggregate_with(Fold(idempotent=True), schema="n INT"),
        ("shop", "window_start", "window_end"),
    ),
    "global-window": (
        lambda sales: sales.window(
            Global(), by="shop", time="processing", trigger=Count(1), name="held"
        ).aggregate(x="max(price)"),
        ("shop", "window_start", "window_end"),
    ),
    "process": (
        lambda sales: sales.process(Ranked(), by="kind", schema="rank INT", name="held"), ("kind",),
    ),
    "process-in-one-place": (lambda sales: sales.process(Ranked(), schema="rank INT", name="held"), ()),
    "map": (lambda sales: sales.map(Latest(), schema=SALE, key="shop", name="held"), ("shop",)),
    "flat-map": (
        lambda sales: sales.flat_map(Latest(), schema=SALE, key=["KIND", "shop"], name="held"),
        ("kind", "shop"),
    ),
    "declared-map": (
        lambda sales: sales.map(_same, schema=SALE, key="shop", name="held", attributes=DECLARED), ("shop",),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("build", "key"), BY_KEY_GROUP.values(), ids=BY_KEY_GROUP)
def test_what_reads_as_input_comes_has_a_buffer_by_key_group(
    build: Callable[[Stream], Stream], key: tuple[str, ...]
) -> None:
    """It is the query's one operator with state, in micro-batches."""
    query = _query(build)
    flush = query.buffer

    assert flush is not None
    assert (flush.operator.name, flush.key) == ("held", key)
    assert flush.config == BufferOutput(interval_ms=60_000, keyed=bool(key), max_entries=1_000_000)
    assert (query.mode.value, query.split.value) == ("micro-batch", "its own query")
    assert query.batch_interval_ms is None
    assert flush.decision.value == "every 1 min, by key group"


REFUSED: dict[str, tuple[Callable[[Stream], Stream], str]] = {
    "window-of-others": (
        lambda sales: _windows(sales).aggregate(x="bool_and(price > 1)"), "does not replace earlier output",
    ),
    "purged-window": (
        lambda sales: _windows(sales, trigger=Purging(Count(2))).aggregate(x="max(price)"),
        "an emission of its windows does not replace",
    ),
    "window-function": (
        lambda sales: _windows(sales).process(_first, schema="n INT"), "an emission of its windows",
    ),
    "fold": (
        lambda sales: _windows(sales).aggregate_with(Fold(idempotent=False), schema="n INT"),
        "does not replace earlier output",
    ),
    "process": (
        lambda sales: sales.process(Each(), by="shop", schema="n INT", name="held"), "does not replace",
    ),
    "map": (lambda sales: sales.map(_same, schema=SALE, name="held"), "does not replace earlier output"),
    "filter": (lambda sales: sales.filter(_same, name="held"), "does not replace earlier output"),
    "flat-map": (lambda sales: sales.flat_map(_same, schema=SALE, name="held"), "does not replace"),
    "map-without-key": (lambda sales: sales.map(Latest(), schema=SALE, name="held"), "no key says which"),
    "batches-without-key": (
        lambda sales: sales.map_batches(Latest(), schema=SALE, name="held"), "no key says which",
    ),
    "select": (lambda sales: sales.select("shop", name="held"), "what it reads is held back"),
    "declared-select": (
        lambda sales: sales.select("shop", name="held", attributes=DECLARED), "what it reads is held back",
    ),
    "with-columns": (lambda sales: sales.with_columns(n="1", name="held"), "what it reads is held back"),
    "where": (lambda sales: sales.where("price > 1", name="held"), "what it reads is held back"),
    "union": (lambda sales: sales.union(sales, name="held"), "what it reads is held back"),
    "apply": (
        lambda sales: sales.apply(_same, name="held", attributes=DECLARED), "what it reads is held back",
    ),
    "join": (
        lambda sales: sales.join(
            sales._flow.read("shops", Parquet("shops", schema="shop STRING")), on="shop", name="held"
        ),
        "what it reads is held back",
    ),
    "select-behind-an-aggregate": (
        lambda sales: sales.aggregate(by="shop", x="max(price)").select("shop", name="held"), "what it reads",
    ),
    "before-an-aggregate": (
        lambda sales: sales.map(Latest(), schema=SALE, key="shop", name="held").aggregate(x="max(price)"),
        "a buffer would be state, and aggregate_1 behind it keeps some",
    ),
    "several-of-a-key": (
        lambda sales: sales.aggregate(by="shop", x="max(price)").flat_map(
            Latest(), schema="shop STRING", key="shop", name="held"
        ),
        "a buffer would be state, and aggregate_1 in front of it keeps some",
    ),
    "another-key": (
        lambda sales: sales.aggregate(by="shop", x="max(price)").map(
            Latest(), schema="x DOUBLE", key="x", name="held"
        ),
        "a buffer would be state",
    ),
    "zero": (
        lambda sales: sales.aggregate(by="shop", x="max(price)", flush=timedelta(0), name="held"),
        "flush=0 is declared with it",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("build", "why"), REFUSED.values(), ids=REFUSED)
def test_anything_else_is_not_held_back_and_the_plan_says_why(
    build: Callable[[Stream], Stream], why: str
) -> None:
    """Whatever the setting is."""
    flush = _flush(build)

    assert (flush.way, flush.config, flush.decision.value) == ("off", None, "off")
    assert why in flush.decision.reasons[0]


def test_source_and_sink_are_not_held_back() -> None:
    """What leaves a sink has been held back in front of it."""
    query = _query(lambda sales: sales.aggregate(by="shop", x="max(price)"))
    ends = {each.operator.name: each.decision.reasons for each in query.flushes if each.way == "off"}

    assert ends == {"sales": ("it is a source",), "out": ("it is a sink",)}


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda sales: _windows(sales, flush=MINUTE).process(_first, schema="n INT"), "an emission of its"),
        (lambda sales: sales.process(Each(), by="shop", schema="n INT", flush=MINUTE), "does not replace"),
        (lambda sales: sales.map(_same, schema=SALE, flush=MINUTE), "does not replace"),
        (lambda sales: sales.flat_map(Latest(), schema=SALE, flush=MINUTE), "no key says which"),
        (
            lambda sales: sales.map(Latest(), schema=SALE, key="shop", flush=MINUTE).aggregate(
                x="max(price)"
            ),
            "a buffer would be state, and aggregate_1 behind it keeps some",
        ),
    ],
    ids=["window", "process", "map", "flat-map", "before-state"],
)
def test_interval_of_an_operator_that_cannot_be_held_back_is_an_error(
    build: Callable[[Stream], Stream], why: str
) -> None:
    """The message says why it cannot, and what to do."""
    with pytest.raises(PlanError, match=rf"flush=1 min, and .*{why}.* or leave flush out"):
        _query(build, flush__max_interval="0")


@pytest.mark.parametrize("wrong", [timedelta(seconds=-1), timedelta(microseconds=1), 60], ids=str)
def test_interval_of_an_operator_is_a_length_of_time(wrong: Any) -> None:
    """Zero is one; a negative one would never be over."""
    with pytest.raises(PlanError, match=r"'held': flush=.* is no whole number of milliseconds from 0 up"):
        _query(lambda sales: sales.aggregate(by="shop", x="max(price)", flush=wrong, name="held"))


def test_key_of_a_function_is_refused_unless_later_output_replaces_earlier() -> None:
    """Else readers of the topic would drop records that count."""
    with pytest.raises(PlanError, match="key='shop', and its function does not declare"):
        _query(lambda sales: sales.map(_same, schema=SALE, key="shop"))
    with pytest.raises(PlanError, match=r"key='shopp'.*did you mean 'shop'"):
        _query(lambda sales: sales.map(Latest(), schema=SALE, key="shopp"))


def test_key_of_a_function_is_that_of_its_sink_and_keeps_it_out_of_files() -> None:
    """A later record replaces an earlier one, which a file cannot do."""
    query = _query(lambda sales: sales.map(Latest(), schema=SALE, key="kind", name="held"))

    assert query.updating
    flow = Flow("f")
    held = flow.read("sales", KafkaTopic("sales", schema=SALE)).map(Latest(), schema=SALE, key="kind")
    held.write("out", KafkaTopic("out"))
    assert flow.sinks[0].key == ("kind",)
    with pytest.raises(PlanError, match="replaces what it has put out before, which files cannot do"):
        held.write("files", Parquet("out"))


@pytest.mark.parametrize("flush", [MINUTE, timedelta(0)], ids=["held", "not-held"])
def test_branches_behind_one_aggregate_are_one_query(flush: timedelta) -> None:
    """No buffer parts them: what leaves with the aggregate needs none, and none can be behind it."""
    flow = Flow("f")
    top = flow.read("sales", KafkaTopic("sales", schema=SALE, on_error="fail")).aggregate(
        by="shop", x="max(price)", flush=flush
    )
    top.write("plain", KafkaTopic("plain"))
    top.map(Latest(), schema="shop STRING", passes=["shop"]).write("made", KafkaTopic("made"))
    live = plan_flow(flow, settings=Settings(flush_interval=MINUTE)).live

    assert live
    assert [query.name for query in live.queries] == ["plain"]


def test_interval_does_not_make_a_stage_run_again() -> None:
    """It changes nothing in what a bounded stage leaves."""
    rows = Flow("f").read("rows", Parquet("rows", schema=SALE))
    long, short = (
        Flow("f").read("rows", Parquet("rows", schema=SALE)).aggregate(by="shop", x="max(price)", flush=flush)
        for flush in (2 * MINUTE, MINUTE)
    )

    assert fingerprint([rows.operator, long.operator]) == fingerprint([rows.operator, short.operator])


def test_interval_of_an_operator_wins_over_the_setting() -> None:
    """Longer or shorter; without any there is no buffer."""
    flush = _flush(lambda sales: sales.aggregate(by="shop", x="max(price)", name="held", flush=2 * MINUTE))
    unset = _flush(
        lambda sales: sales.aggregate(by="shop", x="max(price)", name="held"), flush__max_interval="0"
    )

    assert flush.config is not None
    assert flush.config.interval_ms == 120_000
    assert flush.decision.value == "every 2 min, by the trigger"
    assert "flush=2 min is declared with held" in flush.decision.reasons
    assert (unset.way, unset.decision.reasons) == ("off", ("no flush interval is set",))
    assert unset.decision.change == ("set execution.flush.max-interval, or flush= on held",)


@pytest.mark.parametrize(
    "build",
    [
        lambda sales, flush: _windows(sales, flush=flush).aggregate(x="max(price)"),
        lambda sales, flush: sales.process(Ranked(), by="shop", schema="n INT", name="held", flush=flush),
        lambda sales, flush: sales.map(Latest(), schema=SALE, key="shop", name="held", flush=flush),
        lambda sales, flush: sales.flat_map(Latest(), schema=SALE, key="shop", name="held", flush=flush),
    ],
    ids=["window", "process", "map", "flat-map"],
)
def test_every_operator_that_can_be_held_back_takes_an_interval(
    build: Callable[[Stream, timedelta], Stream],
) -> None:
    """With and without one of the run; zero takes it out."""
    for setting in ("0", "1 min"):
        held = _flush(lambda sales: build(sales, 2 * MINUTE), flush__max_interval=setting)
        assert held.config is not None
        assert held.config.interval_ms == 120_000
        assert _flush(lambda sales: build(sales, timedelta(0)), flush__max_interval=setting).way == "off"


def test_interval_takes_an_aggregate_out_of_real_time() -> None:
    """There each change leaves; the plan says what stands in the way and what to do."""
    query = _query(lambda sales: sales.aggregate(by="shop", x="max(price)", name="held"))

    assert query.mode.value == "micro-batch"
    (why,) = query.mode.reasons
    assert why.startswith("held is to leave once in an interval (execution.flush.max-interval is 1 min)")
    assert "or ask for --mode realtime" in query.mode.change[0]
    assert query.batch_interval_ms == 60_000


def test_interval_gives_way_to_real_time_that_was_asked_for_unless_it_is_the_operators_own() -> None:
    """Who insists on each change at once has it; two wishes that contradict each other are an error."""
    flush = _flush(lambda sales: sales.aggregate(by="shop", x="max(price)", name="held"), mode="realtime")

    assert (flush.way, flush.config) == ("off", None)
    assert flush.decision.reasons == ("real-time mode was asked for, and puts out each change at once",)
    with pytest.raises(PlanError, match="'realtime' is not possible: held is to leave once in an interval"):
        _query(
            lambda sales: sales.aggregate(by="shop", x="max(price)", name="held", flush=MINUTE), "realtime"
        )


def test_trigger_that_is_longer_stands() -> None:
    """A query whose batches are far apart anyway needs nothing more."""
    flush = _flush(
        lambda sales: sales.aggregate(by="shop", x="max(price)", name="held"), trigger_interval="5 min"
    )

    assert flush.decision.value == "every 5 min, by the trigger"
    assert "execution.trigger-interval is 5 min" in flush.decision.reasons[-1]


def test_slice_puts_out_once() -> None:
    """All that is there is history."""
    flush = _flush(lambda sales: sales.aggregate(by="shop", x="max(price)", name="held"), mode="slice")

    def ranked(**settings: str) -> str:
        return _flush(
            lambda sales: sales.process(Ranked(), by="shop", schema="n INT", name="held"),
            mode="slice", **settings,
        ).decision.value  # fmt: skip

    assert ranked() == "once, at the slice's end, by key group"
    often = ranked(flush__max_interval_during_backlog="10 min")
    assert often == "every 10 min and at the slice's end, by key group"

    assert (flush.way, flush.decision.value) == ("trigger", "once, with the slice")


@pytest.mark.parametrize("way", ["trigger", "key-groups"])
def test_what_follows_a_flush_leaves_with_it(way: str) -> None:
    """Delays do not add up: one record of a key gives one of the same key."""

    def build(sales: Stream) -> Stream:
        front = (
            sales.aggregate(by="shop", x="max(price)", name="front")
            if way == "trigger"
            else sales.map(Latest(), schema="shop STRING, x DOUBLE", key="shop", name="front")
        )
        between = (
            front.where("x > 1")
            .with_columns(y="x / 2")
            .map(Latest(), schema="shop STRING, x DOUBLE", passes=["shop"], name="between", flush=2 * MINUTE)
        )
        return between.map(Latest(), schema="shop STRING", passes=["shop"], name="held")

    query = _query(build)
    found = {each.operator.name: each for each in query.flushes if each.way != "off"}

    assert {name: each.way for name, each in found.items()} == {
        "front": way, "between": "with", "held": "with",
    }  # fmt: skip
    assert found["between"].after is found["front"].operator
    assert found["held"].after is found["between"].operator
    assert found["held"].config == found["front"].config
    assert found["between"].decision.value == "with front"
    assert "a longer interval would need a buffer of its own" in found["between"].decision.reasons[-1]
    assert found["between"].decision.change == ("give front flush=2 min",)


def test_chain_of_functions_ends_where_records_are_held_back() -> None:
    """What follows the buffer is another call of a worker."""
    query = _query(
        lambda sales: (
            sales.map(_same, schema=SALE)
            .map(Latest(), schema=SALE, key="shop", name="held")
            .map(_same, schema=SALE, name="behind")
        )
    )

    assert [chain.name for chain in query.chains] == ["map_1 > held", "behind"]


def test_backlog_and_memory_are_part_of_the_buffer() -> None:
    """Settings of the run; in backlog an interval is never shorter than out of it."""

    def build(sales: Stream) -> Stream:
        return sales.process(Ranked(), by="shop", schema="n INT", name="held")

    flush = _flush(build, flush__max_interval_during_backlog="10 min", flush__memory_buffer_only=True)
    own = _flush(
        lambda sales: sales.process(Ranked(), by="shop", schema="n INT", name="held", flush=20 * MINUTE),
        flush__max_interval_during_backlog="10 min",
    )

    assert flush.config == BufferOutput(60_000, True, True, 1_000_000, 600_000)
    assert "in backlog every 10 min, and when that is gone" in " ".join(flush.decision.reasons)
    assert "also when 1,000,000 records wait" in " ".join(flush.decision.reasons)
    assert own.config is not None
    assert own.config.backlog_interval_ms == 1_200_000


def test_interval_in_backlog_that_is_shorter_is_an_error() -> None:
    """History would leave more often than news."""
    with pytest.raises(SettingsError, match="max-interval-during-backlog='1 s' is shorter than"):
        Settings.of(
            {"execution.flush.max-interval": "2 s", "execution.flush.max-interval-during-backlog": "1 s"},
            environment={},
        )


@pytest.mark.parametrize("wrong", ["-1 s", -1, timedelta(seconds=-1)], ids=str)
def test_negative_interval_is_an_error(wrong: object) -> None:
    """With the key, the value and the reason."""
    with pytest.raises(SettingsError, match=r"execution\.flush\.max-interval=.*cannot be negative"):
        Settings.of({"execution.flush.max-interval": wrong}, environment={})


def test_bounded_stage_holds_nothing_back() -> None:
    """It puts out once, so an interval may stand there and do nothing."""
    flow = Flow("f")
    sales = flow.read("sales", Parquet("sales", schema=SALE))
    sales.aggregate(by="shop", x="median(price)", flush=MINUTE).write("out", Parquet("out"))
    plan = plan_flow(flow, settings=Settings(flush_interval=MINUTE))

    (part,) = plan.to_dict()["parts"]
    assert {each["flush"]["value"] for each in part["operators"]} == {"off"}
    assert part["operators"][1]["flush"]["because"] == ["its stage puts out once"]
