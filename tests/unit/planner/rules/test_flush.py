"""Which operators are buffered, how, and why others are not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from flowcore import (
    Global,
    OperatorAttributesBuilder,
    Parquet,
    Stream,
)
from flowcore.errors import PlanError
from flowcore.flush.config import BufferOutput
from flowcore.windows.triggers import Count, Purging
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

DECLARED = OperatorAttributesBuilder().set_output_idempotent(True)


class Fold:
    """A user's aggregate function."""

    def __init__(self, *, idempotent: bool | None = None) -> None:
        if idempotent is not None:
            self.is_output_idempotent = idempotent

    create = add = merge = result = print


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
    "of-a-row": "max(my_own(price))", "downstream": "my_own(max(price))",
}  # fmt: skip


@pytest.mark.parametrize("text", BUILT_IN.values(), ids=BUILT_IN)
def test_built_in_aggregate_is_emitted_once_per_interval_by_the_trigger(text: str | None) -> None:
    """This holds with a key, and for one row over everything, if it has aggregates."""
    computed = {} if text is None else {"x": text}

    flush = flush_of(lambda sales: sales.aggregate(by="shop", name="held", **computed))

    assert (flush.way, flush.key) == ("trigger", ("shop",))
    assert flush.config == BufferOutput(interval_ms=60_000, max_entries=1_000_000)
    assert "execution.flush.max-interval is 1 min" in flush.decision.reasons
    if computed:
        alone = flush_of(lambda sales: sales.aggregate(name="held", **computed))
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
def test_other_aggregate_is_buffered_only_if_declared(text: str) -> None:
    """The plan names the function; an interval of the operator itself is an error."""
    flush = flush_of(lambda sales: sales.aggregate(by="shop", name="held", x=text))

    assert flush.way == "off"
    assert "it is not known that a later result replaces earlier ones" in flush.decision.reasons[0]
    assert any("set_output_idempotent(True)" in each for each in flush.decision.change)
    with pytest.raises(PlanError, match=r"'held': flush=1 min, and of .* it is not known"):
        flush_of(lambda sales: sales.aggregate(by="shop", name="held", x=text, flush=MINUTE))
    declared = flush_of(lambda sales: sales.aggregate(by="shop", name="held", x=text, attributes=DECLARED))
    assert declared.way == "trigger"


BY_KEY_GROUP: dict[str, tuple[Callable[[Stream], Stream], tuple[str, ...]]] = {
    "window": (
        lambda sales: windows(sales).aggregate(x="max(price)"), ("shop", "window_start", "window_end"),
    ),
    "grouped-reduce": (
        lambda sales: windows(sales).reduce(first), ("shop", "window_start", "window_end"),
    ),
    "window-function": (
        lambda sales: windows(sales).process(Latest(), schema="n INT"),
        ("shop", "window_start", "window_end"),
    ),
    "window-of-others": (
        lambda sales: windows(sales).aggregate(x="bool_and(price > 1)", y="count_if(price > 1)"),
        ("shop", "window_start", "window_end"),
    ),
    "fold": (
        lambda sales: windows(sales).aggregate_with(Fold(), schema="n INT"),
        ("shop", "window_start", "window_end"),
    ),
    "global-window": (
        lambda sales: sales.window(
            Global(), by="shop", time="processing", trigger=Count(1), name="held"
        ).aggregate(x="max(price)"),
        ("shop", "window_start", "window_end"),
    ),
    "aggregate-with-ttl": (
        lambda sales: sales.aggregate(
            by="shop", ttl=timedelta(hours=1), name="held", n="count_if(price > 1)",
            all="bool_and(price > 1)", any="bool_or(price > 1)",
        ),
        ("shop",),
    ),
    "one-aggregate-with-ttl": (
        lambda sales: sales.aggregate(
            ttl=timedelta(hours=1), name="held", n="count_if(price > 1)", flush=MINUTE
        ),
        (),
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
        lambda sales: sales.map(same, schema=SALE, key="shop", name="held", attributes=DECLARED), ("shop",),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("build", "key"), BY_KEY_GROUP.values(), ids=BY_KEY_GROUP)
def test_row_by_row_operator_has_a_buffer_by_key_group(
    build: Callable[[Stream], Stream], key: tuple[str, ...]
) -> None:
    """It runs in micro-batches, in the query of all branches that need them."""
    query = query_of(build)
    flush = next(iter(query.buffers.values()), None)

    assert flush is not None
    assert (flush.operator.name, flush.key) == ("held", key)
    assert flush.config == BufferOutput(interval_ms=60_000, keyed=bool(key), max_entries=1_000_000)
    assert (query.mode.value, query.split.value) == ("micro-batch", "shared query")
    assert query.keyed == (flush.operator,)
    assert query.batch_interval_ms is None
    assert flush.decision.value == "every 1 min, by key group"


REFUSED: dict[str, tuple[Callable[[Stream], Stream], str]] = {
    "purged-window": (
        lambda sales: windows(sales, trigger=Purging(Count(2))).aggregate(x="max(price)"),
        "an emission of its windows does not replace",
    ),
    "window-function": (
        lambda sales: windows(sales).process(first, schema="n INT"), "an emission of its windows",
    ),
    "fold": (
        lambda sales: windows(sales).aggregate_with(Fold(idempotent=False), schema="n INT"),
        "does not replace earlier output",
    ),
    "process": (
        lambda sales: sales.process(Each(), by="shop", schema="n INT", name="held"), "does not replace",
    ),
    "map": (lambda sales: sales.map(same, schema=SALE, name="held"), "does not replace earlier output"),
    "filter": (lambda sales: sales.filter(same, name="held"), "does not replace earlier output"),
    "flat-map": (lambda sales: sales.flat_map(same, schema=SALE, name="held"), "does not replace"),
    "map-without-key": (lambda sales: sales.map(Latest(), schema=SALE, name="held"), "no key says which"),
    "batches-without-key": (
        lambda sales: sales.map_batches(Latest(), schema=SALE, name="held"), "no key says which",
    ),
    "select": (lambda sales: sales.select("shop", name="held"), "its input is buffered instead"),
    "declared-select": (
        lambda sales: sales.select("shop", name="held", attributes=DECLARED), "its input is buffered instead",
    ),
    "with-columns": (lambda sales: sales.with_columns(n="1", name="held"), "its input is buffered instead"),
    "where": (lambda sales: sales.where("price > 1", name="held"), "its input is buffered instead"),
    "union": (lambda sales: sales.union(sales, name="held"), "its input is buffered instead"),
    "apply": (
        lambda sales: sales.apply(same, name="held", attributes=DECLARED), "its input is buffered instead",
    ),
    "join": (
        lambda sales: sales.join(
            sales.graph.read("shops", Parquet("shops", schema="shop STRING")), on="shop", name="held"
        ),
        "its input is buffered instead",
    ),
    "select-after-an-aggregate": (
        lambda sales: sales.aggregate(by="shop", x="max(price)").select("shop", name="held"), "what it reads",
    ),
    "several-of-a-key": (
        lambda sales: sales.aggregate(by="shop", x="max(price)").flat_map(
            Latest(), schema="shop STRING", key="shop", name="held"
        ),
        "a buffer would be state by key group, and aggregate_1 upstream is Spark's own aggregate",
    ),
    "another-key": (
        lambda sales: sales.aggregate(by="shop", x="max(price)").map(
            Latest(), schema="x DOUBLE", key="x", name="held"
        ),
        "a buffer would be state",
    ),
    "after-a-dataframe-function": (
        lambda sales: sales.apply(same, schema=SALE, name="whole").map(
            Latest(), schema=SALE, key="shop", name="held"
        ),
        "a buffer would be state by key group, and whole upstream is a DataFrame function",
    ),
    "before-batches-and-state": (
        lambda sales: (
            sales.map(Latest(), schema=SALE, key="shop", name="held")
            .map_batches(same, schema=SALE, name="batches")
            .process(Each(), by="shop", schema=SALE)
        ),
        "and batches gets batches, so the key group that emitted a record of it is unknown",
    ),
    "after-state-and-batches": (
        lambda sales: (
            sales.process(Each(), by="shop", schema=SALE)
            .map_batches(same, schema=SALE, name="batches")
            .map(Latest(), schema=SALE, key="shop", name="held")
        ),
        "and batches gets batches, so the key group that emitted a record of it is unknown",
    ),
    "zero": (
        lambda sales: sales.aggregate(by="shop", x="max(price)", flush=timedelta(0), name="held"),
        "flush=0 is declared with it",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("build", "why"), REFUSED.values(), ids=REFUSED)
def test_other_operators_are_not_buffered_and_the_plan_has_the_reason(
    build: Callable[[Stream], Stream], why: str
) -> None:
    """This holds for every value of the setting."""
    flush = flush_of(build)

    assert (flush.way, flush.config, flush.decision.value) == ("off", None, "off")
    assert why in flush.decision.reasons[0]


def test_source_and_sink_are_not_buffered() -> None:
    """A sink's input has been buffered upstream."""
    query = query_of(lambda sales: sales.aggregate(by="shop", x="max(price)"))
    ends = {each.operator.name: each.decision.reasons for each in query.flushes if each.way == "off"}

    assert ends == {"sales": ("it is a source",), "out": ("it is a sink",)}
