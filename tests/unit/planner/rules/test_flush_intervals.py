"""How long results are buffered: an operator's own interval, the setting, a trigger, backlog."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowcore import (
    Flow,
    KafkaTopic,
    Parquet,
    Stream,
)
from flowcore.api.keyed_aggregate import KeyedAggregate
from flowcore.errors import PlanError, SettingsError
from flowcore.flush.config import BufferOutput
from flowcore.planner import plan_flow
from flowcore.planner.rules.fingerprint import fingerprint_operators
from flowcore.settings import Settings
from tests.unit.planner.rules.planned_flush import (
    MINUTE,
    SALE,
    Each,
    Latest,
    Ranked,
    first,
    flush_of,
    query_of,
    same,
    windows,
)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda sales: windows(sales, flush=MINUTE).process(first, schema="n INT"), "an emission of its"),
        (lambda sales: sales.process(Each(), by="shop", schema="n INT", flush=MINUTE), "does not replace"),
        (lambda sales: sales.map(same, schema=SALE, flush=MINUTE), "does not replace"),
        (lambda sales: sales.flat_map(Latest(), schema=SALE, flush=MINUTE), "no key says which"),
        (
            lambda sales: sales.apply(same, schema=SALE, name="whole").map(
                Latest(), schema=SALE, key="shop", flush=MINUTE
            ),
            "a buffer would be state by key group, and whole upstream is a DataFrame function",
        ),
    ],
    ids=["window", "process", "map", "flat-map", "after-a-dataframe-function"],
)
def test_interval_of_an_operator_that_cannot_be_buffered_is_an_error(
    build: Callable[[Stream], Stream], why: str
) -> None:
    """The message has the reason and the fix."""
    with pytest.raises(PlanError, match=rf"flush=1 min, and .*{why}.* or leave flush out"):
        query_of(build, flush__max_interval="0")


@pytest.mark.parametrize("wrong", [timedelta(seconds=-1), timedelta(microseconds=1), 60], ids=str)
def test_interval_of_an_operator_is_a_length_of_time(wrong: Any) -> None:
    """Zero is valid; a negative one is refused."""
    with pytest.raises(PlanError, match=r"'held': flush=.* is not a whole number of milliseconds from 0 up"):
        query_of(lambda sales: sales.aggregate(by="shop", x="max(price)", flush=wrong, name="held"))


def test_key_of_a_function_is_refused_unless_later_output_replaces_earlier() -> None:
    """Readers of the topic would otherwise drop records that count."""
    with pytest.raises(PlanError, match="key='shop', and its function does not declare"):
        query_of(lambda sales: sales.map(same, schema=SALE, key="shop"))
    with pytest.raises(PlanError, match=r"key='shopp'.*did you mean 'shop'"):
        query_of(lambda sales: sales.map(Latest(), schema=SALE, key="shopp"))


def test_key_of_a_function_is_that_of_its_sink_and_keeps_it_out_of_files() -> None:
    """A later record replaces an earlier one, which a file cannot do."""
    query = query_of(lambda sales: sales.map(Latest(), schema=SALE, key="kind", name="held"))

    assert query.sinks[0].updating
    flow = Flow("f")
    held = flow.read("sales", KafkaTopic("sales", schema=SALE)).map(Latest(), schema=SALE, key="kind")
    held.write("out", KafkaTopic("out"))
    assert flow.sinks[0].key == ("kind",)
    with pytest.raises(PlanError, match="replaces its earlier output, which files cannot do"):
        held.write("files", Parquet("out"))


@pytest.mark.parametrize("flush", [MINUTE, timedelta(0)], ids=["held", "not-held"])
def test_branches_downstream_of_one_aggregate_are_one_query(flush: timedelta) -> None:
    """The aggregate flushes by the trigger, so no buffer separates the branches."""
    flow = Flow("f")
    top = flow.read("sales", KafkaTopic("sales", schema=SALE, on_error="fail")).aggregate(
        by="shop", x="max(price)", flush=flush
    )
    top.write("plain", KafkaTopic("plain"))
    top.map(Latest(), schema="shop STRING", passes=["shop"]).write("made", KafkaTopic("made"))
    live = plan_flow(flow, settings=Settings(flush_interval=MINUTE)).live

    assert live
    assert [query.name for query in live.queries] == ["plain"]


def test_interval_over_bounded_input_is_refused() -> None:
    """A stage emits once, so that the interval would have no effect."""
    rows = Flow("f").read("rows", Parquet("rows", schema=SALE))

    with pytest.raises(PlanError, match=r"'held': flush=1 min, and its input is bounded.*leave flush out"):
        rows.aggregate(by="shop", x="max(price)", flush=MINUTE, name="held")
    with pytest.raises(PlanError, match=r"'held': flush=1 min, and its input is bounded.*leave flush out"):
        rows.map(Latest(), schema=SALE, key="shop", flush=MINUTE, name="held")


def test_no_interval_does_not_make_a_stage_run_again() -> None:
    """It does not change the result of a bounded stage."""
    rows = Flow("f").read("rows", Parquet("rows", schema=SALE))
    none, unset = (
        Flow("f").read("rows", Parquet("rows", schema=SALE)).aggregate(by="shop", x="max(price)", flush=flush)
        for flush in (0 * MINUTE, None)
    )

    assert fingerprint_operators([rows.operator, none.operator]) == fingerprint_operators(
        [rows.operator, unset.operator]
    )


def test_interval_of_an_operator_overrides_the_setting() -> None:
    """It may be longer or shorter; without either there is no buffer."""
    flush = flush_of(lambda sales: sales.aggregate(by="shop", x="max(price)", name="held", flush=2 * MINUTE))
    unset = flush_of(
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
        lambda sales, flush: windows(sales, flush=flush).aggregate(x="max(price)"),
        lambda sales, flush: sales.process(Ranked(), by="shop", schema="n INT", name="held", flush=flush),
        lambda sales, flush: sales.map(Latest(), schema=SALE, key="shop", name="held", flush=flush),
        lambda sales, flush: sales.flat_map(Latest(), schema=SALE, key="shop", name="held", flush=flush),
    ],
    ids=["window", "process", "map", "flat-map"],
)
def test_every_buffered_operator_accepts_an_interval(
    build: Callable[[Stream, timedelta], Stream],
) -> None:
    """It is accepted with and without an interval of the run; zero turns the buffer off."""
    for setting in ("0", "1 min"):
        held = flush_of(lambda sales: build(sales, 2 * MINUTE), flush__max_interval=setting)
        assert held.config is not None
        assert held.config.interval_ms == 120_000
        assert flush_of(lambda sales: build(sales, timedelta(0)), flush__max_interval=setting).way == "off"


def test_interval_takes_an_aggregate_out_of_real_time() -> None:
    """Real-time mode emits each change; the plan states the reason and the fix."""
    query = query_of(lambda sales: sales.aggregate(by="shop", x="max(price)", name="held"))

    assert query.mode.value == "micro-batch"
    (why,) = query.mode.reasons
    assert why.startswith("held has a flush interval (execution.flush.max-interval is 1 min)")
    assert "or ask for --mode realtime" in query.mode.change[0]
    assert query.batch_interval_ms == 60_000


def test_requested_real_time_mode_overrides_the_interval_of_the_run() -> None:
    """An operator's own interval contradicts the mode, which is an error."""
    flush = flush_of(lambda sales: sales.aggregate(by="shop", x="max(price)", name="held"), mode="realtime")

    assert (flush.way, flush.config) == ("off", None)
    assert flush.decision.reasons == ("real-time mode was asked for, and emits each change at once",)
    with pytest.raises(PlanError, match="'realtime' is not possible: held has a flush interval"):
        query_of(
            lambda sales: sales.aggregate(by="shop", x="max(price)", name="held", flush=MINUTE), "realtime"
        )


def test_longer_trigger_is_kept() -> None:
    """A query with long batches needs no other delay."""
    flush = flush_of(
        lambda sales: sales.aggregate(by="shop", x="max(price)", name="held"), trigger_interval="5 min"
    )

    assert flush.decision.value == "every 5 min, by the trigger"
    assert "execution.trigger-interval is 5 min" in flush.decision.reasons[-1]


def test_slice_emits_once() -> None:
    """All of its input is backlog."""
    flush = flush_of(lambda sales: sales.aggregate(by="shop", x="max(price)", name="held"), mode="slice")

    def ranked(**settings: str) -> str:
        return flush_of(
            lambda sales: sales.process(Ranked(), by="shop", schema="n INT", name="held"),
            mode="slice", **settings,
        ).decision.value  # fmt: skip

    assert ranked() == "once, at the slice's end, by key group"
    often = ranked(flush__max_interval_during_backlog="10 min")
    assert often == "every 10 min and at the slice's end, by key group"

    assert (flush.way, flush.decision.value) == ("trigger", "once, with the slice")


def _front_and_two_functions(
    sales: Stream, *, aggregate: bool, between: timedelta | None, front: timedelta | None = None
) -> Stream:
    first = (
        sales.aggregate(by="shop", x="max(price)", flush=front, name="front")
        if aggregate
        else sales.map(Latest(), schema="shop STRING, x DOUBLE", key="shop", name="front")
    )
    row = "shop STRING, x DOUBLE"
    middle = (
        first.where("x > 1")
        .with_columns(y="x / 2")
        .map(Latest(), schema=row, passes=["shop"], name="between", flush=between)
    )
    return middle.map(Latest(), schema="shop STRING", passes=["shop"], name="held")


@pytest.mark.parametrize("way", ["trigger", "key-groups"])
def test_operators_downstream_of_a_flush_have_no_buffer(way: str) -> None:
    """They emit one record of a key for one record of the same key, so delays do not add up."""
    query = query_of(lambda sales: _front_and_two_functions(sales, aggregate=way == "trigger", between=None))
    found = {each.operator.name: each for each in query.flushes if each.way != "off"}

    assert {name: each.way for name, each in found.items()} == {
        "front": way, "between": "with", "held": "with",
    }  # fmt: skip
    assert found["between"].after is found["front"].operator
    assert found["held"].after is found["between"].operator
    assert found["held"].config == found["front"].config
    assert found["between"].decision.value == "with front"


@pytest.mark.parametrize("aggregate", [False, True])
def test_longer_interval_downstream_of_a_flush_has_a_buffer(aggregate: bool) -> None:
    """By its own interval, for which an aggregate upstream runs by key group."""
    query = query_of(lambda sales: _front_and_two_functions(sales, aggregate=aggregate, between=2 * MINUTE))
    found = {each.operator.name: each for each in query.flushes}

    assert (found["between"].way, found["between"].after) == ("key-groups", None)
    assert found["between"].decision.value == "every 2 min, by key group"
    assert (found["held"].way, found["held"].after) == ("with", found["between"].operator)
    assert found["front"].way == "key-groups"
    assert isinstance(found["front"].operator, KeyedAggregate) == aggregate


def test_longer_interval_of_a_setting_has_no_buffer_downstream_of_sparks_own_aggregate() -> None:
    """Which emits by its own interval; the plan says why, and the way out."""

    def build(sales: Stream) -> Stream:
        return _front_and_two_functions(sales, aggregate=True, between=None, front=MINUTE / 2)

    between = next(each for each in query_of(build).flushes if each.operator.name == "between")

    assert between.way == "with"
    assert "a longer interval would need a buffer of its own" in between.decision.reasons[-1]
    assert between.decision.change == ("give front flush=1 min",)


def test_chain_of_functions_ends_at_a_buffer() -> None:
    """Functions downstream of the buffer run in another call of a worker."""
    query = query_of(
        lambda sales: (
            sales.map(same, schema=SALE)
            .map(Latest(), schema=SALE, key="shop", name="held")
            .map(same, schema=SALE, name="after")
        )
    )

    assert [chain.name for chain in query.chains] == ["map_1 > held", "after"]


def test_backlog_and_memory_are_part_of_the_buffer() -> None:
    """They are settings of the run; the interval in backlog is never the shorter one."""

    def build(sales: Stream) -> Stream:
        return sales.process(Ranked(), by="shop", schema="n INT", name="held")

    flush = flush_of(build, flush__max_interval_during_backlog="10 min", flush__memory_buffer_only=True)
    own = flush_of(
        lambda sales: sales.process(Ranked(), by="shop", schema="n INT", name="held", flush=20 * MINUTE),
        flush__max_interval_during_backlog="10 min",
    )

    assert flush.config == BufferOutput(60_000, True, True, 1_000_000, 600_000)
    assert "during backlog it emits every 10 min, and when the backlog ends" in " ".join(
        flush.decision.reasons
    )
    assert "also when 1,000,000 records wait" in " ".join(flush.decision.reasons)
    assert own.config is not None
    assert own.config.backlog_interval_ms == 1_200_000


def test_interval_in_backlog_that_is_shorter_is_an_error() -> None:
    """A backlog would be emitted more often than live records."""
    with pytest.raises(SettingsError, match="max-interval-during-backlog='1 s' is shorter than"):
        Settings.of(
            {"execution.flush.max-interval": "2 s", "execution.flush.max-interval-during-backlog": "1 s"},
            environment={},
        )


@pytest.mark.parametrize("wrong", ["-1 s", -1, timedelta(seconds=-1)], ids=str)
def test_negative_interval_is_an_error(wrong: object) -> None:
    """The error has the key, the value and the reason."""
    with pytest.raises(SettingsError, match=r"execution\.flush\.max-interval=.*cannot be negative"):
        Settings.of({"execution.flush.max-interval": wrong}, environment={})


def test_bounded_stage_has_no_buffer() -> None:
    """It emits once, so an interval has no effect."""
    flow = Flow("f")
    sales = flow.read("sales", Parquet("sales", schema=SALE))
    sales.aggregate(by="shop", x="median(price)").write("out", Parquet("out"))
    plan = plan_flow(flow, settings=Settings(flush_interval=MINUTE))

    (part,) = plan.to_dict()["parts"]
    assert {each["flush"]["value"] for each in part["operators"]} == {"off"}
    assert part["operators"][1]["flush"]["because"] == ["its stage emits once"]
