"""An aggregate over rows that replace each other: what is refused, and what the plan says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flowcore import Flow, Global, KafkaTopic, Parquet, Session, Stream, Tumbling
from flowcore.api.keyed_aggregate import KeyedAggregate
from flowcore.api.operators import ChangelogNormalize, RetractingAggregate, Write
from flowcore.api.updating_rows import decide_changes, find_deleted
from flowcore.errors import PlanError
from flowcore.planner import plan_flow
from flowcore.planner.views.details import collect_details
from flowcore.windows.triggers import Count
from tests.unit.api.updating_flows import BID, HOUR, bids, plan, same, top, written


def sums(flow: Flow) -> Stream:
    """The total price of the best bids of each shop."""
    return top(flow).aggregate(by="shop", total="sum(price)", name="sums")


def has_price(record: dict[str, Any]) -> bool:
    return bool(record["price"])


def firing(windows: Any, **options: Any) -> Callable[[Flow], Stream]:
    return lambda flow: (
        bids(flow).window(windows, by="auction", name="w", **options).aggregate(price="max(price)")
    )


def united_firings(flow: Flow) -> Stream:
    """Final rows, then those of windows that fire again."""
    fired = UPDATING["late-windows"][0](flow).select("auction", "price")
    return bids(flow, "more").select("auction", "price").union(fired, name="both")


SUMS = "shop STRING, price DOUBLE, is_deleted BOOLEAN"
"""The columns of a function over sums."""
FIRED = "auction BIGINT, price DOUBLE, window_start TIMESTAMP, window_end TIMESTAMP"
"""The columns of windows that fire again."""


class Newest:
    """A later output replaces the earlier one of its key."""

    is_output_idempotent = True

    def __call__(self, record: dict[str, Any]) -> Any:
        return record


UPDATING: dict[str, tuple[Callable[[Flow], Stream], tuple[str, ...]]] = {
    "top": (top, ("auction", "rank")),
    "latest": (lambda f: bids(f).latest(by=("auction", "shop")), ("auction", "shop")),
    "aggregate": (lambda f: bids(f).aggregate(by="auction", price="max(price)"), ("auction",)),
    "aggregate-with-ttl": (
        lambda f: bids(f).aggregate(by="auction", price="max(price)", ttl=HOUR),
        ("auction",),
    ),
    "aggregate-without-key": (lambda f: bids(f).aggregate(price="max(price)"), ()),
    "reduce": (lambda f: bids(f).reduce(max, by="auction", schema=BID), ("auction",)),
    "function": (lambda f: bids(f).map(Newest(), schema=BID, key="shop"), ("shop",)),
    "late-windows": (firing(Tumbling(10), allowed_lateness=5), ("auction", "window_start", "window_end")),
    "renamed": (lambda f: top(f).select("auction as a", "rank as r", "price"), ("a", "r")),
    "more-columns": (lambda f: top(f).with_columns(price="price * 2").drop("shop"), ("auction", "rank")),
    "joined": (
        lambda f: top(f).join(
            f.read("shops", Parquet("shops", "shop STRING, city STRING")), on="shop", how="left"
        ),
        ("auction", "rank"),
    ),
    "cut": (lambda f: top(f).through("cut", schema=f"{BID}, rank INT"), ("auction", "rank")),
    "cut-of-late-windows": (
        lambda f: (
            firing(Tumbling(10), allowed_lateness=5)(f)
            .select("auction", "price", "window_start", "window_end")
            .through("cut", schema=FIRED)
        ),
        ("auction", "window_start", "window_end"),
    ),
    "cut-without-repeats": (
        lambda f: top(f).through(KafkaTopic("cut", deduplicate=True), schema=f"{BID}, rank INT"),
        ("auction", "rank"),
    ),
}


@pytest.mark.parametrize(("declare", "key"), UPDATING.values(), ids=UPDATING)
def test_the_changelog_is_by_the_key_of_the_rows(
    declare: Callable[[Flow], Stream], key: tuple[str, ...]
) -> None:
    """This holds for operators that create updating rows and for operators that pass them on.

    The flow can be planned.
    """
    flow = Flow("f")
    stream = declare(flow)
    assert decide_changes(stream.operator).value == f"updating by {', '.join(key) or 'nothing'}"
    found = stream.aggregate(n="count(price)", name="counted").operator

    assert isinstance(found, RetractingAggregate)
    (changes,) = found.inputs
    assert isinstance(changes, ChangelogNormalize)
    assert (changes.name, changes.by) == ("counted.changes", key)
    Stream(flow, found).write("out", KafkaTopic("out"))
    query = plan_flow(flow).live_queries[-1]
    assert [node.name for node in query.exchanges[-1]] == ["counted"]
    assert [node.name for node in query.exchanges[-2]] == ["counted.changes"]


@pytest.mark.parametrize(
    "declare",
    [
        bids,
        firing(Tumbling(10)),
        lambda f: bids(f).where("price > 1"),
        lambda f: bids(f).map(same, schema=BID),
        lambda f: f.read("old", Parquet("old", BID)).aggregate(by="auction", price="max(price)"),
        lambda f: f.read("old", Parquet("old", BID)).latest(by="auction", timestamp="at"),
    ],
)
def test_final_rows_are_aggregated_as_before(declare: Callable[[Flow], Stream]) -> None:
    """No state is kept to take them back."""
    stream = declare(Flow("f"))
    assert decide_changes(stream.operator).value == "append"
    assert type(stream.aggregate(n="count(price)").operator).__name__ == "Aggregate"


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda f: top(f).where("price > 1"), "'where_1' may drop or repeat some.*put the condition into"),
        (lambda f: top(f).with_columns(price="explode(array(price))"), "'with_columns_1' may drop or repeat"),
        (lambda f: top(f).filter(has_price), "'filter_1' may drop or repeat some"),
        (lambda f: top(f).flat_map(same, schema=BID), "'flat_map_1' may drop or repeat some"),
        (lambda f: top(f).map_batches(same, schema=BID), "'map_batches_1' may drop or repeat some"),
        (lambda f: top(f).apply(same), "'apply_1' may drop or repeat some"),
        (
            lambda f: top(f).join(f.read("shops", Parquet("shops", "shop STRING")), on="shop"),
            "'join_1' may drop or repeat some.*before 'top'",
        ),
        (united_firings, "'both' may drop .*; put 'counted' before 'both', on each of its inputs$"),
        (lambda f: top(f).select("auction", "price"), "by auction, rank, and 'select_1' does not"),
        (lambda f: top(f).map(same, schema=BID), "does not have all of these columns"),
        (firing(Session(10), allowed_lateness=5), "a late record merges sessions of 'w'"),
        (lambda f: sums(f).select("shop", "total as price"), "is_deleted that they delete.*select it"),
        (lambda f: sums(f).with_columns(price="1", is_deleted="false"), "say in is_deleted"),
        (
            lambda f: sums(f).map(Newest(), schema=SUMS, key="shop"),
            r"'map_1' may change this column.*declare passes=\['is_deleted'\]",
        ),
        (
            lambda f: top(f).where("price > 1").through("cut", schema=f"{BID}, rank INT"),
            "rows of 'top' .*'where_1' may drop or repeat some",
        ),
        (
            lambda f: (
                sums(f).select("shop", "total as price").through("cut", schema="shop STRING, price DOUBLE")
            ),
            "rows of 'sums' say in is_deleted",
        ),
        (
            lambda f: (
                firing(Session(10), allowed_lateness=5)(f)
                .select("auction", "price", "window_start", "window_end")
                .through("cut", schema=FIRED)
            ),
            "a late record merges sessions of 'w'",
        ),
    ],
)  # fmt: skip
def test_rows_that_could_not_be_taken_back_are_refused(
    declare: Callable[[Flow], Stream], message: str
) -> None:
    """The error names the operators, and what to do instead."""
    stream = declare(Flow("f"))
    with pytest.raises(PlanError, match=f"operator 'counted': .*{message}"):
        stream.aggregate(n="count(price)", name="counted")


@pytest.mark.parametrize(
    "text", ["first_value(price)", "sum(distinct price)", "stddev(price)", "collect_list(price)"]
)
def test_aggregates_that_cannot_take_a_value_back_are_refused(text: str) -> None:
    """The error has those that can."""
    with pytest.raises(PlanError, match=r"could not be taken back; those that can: avg, .*count\(distinct"):
        top(Flow("f")).aggregate(x=text)


@pytest.mark.parametrize(
    "declare",
    [
        lambda stream: stream.aggregate(by="auction", is_deleted="count(*)"),
        lambda stream: stream.aggregate(by="auction", Is_Deleted="count(*)"),
        lambda stream: stream.with_columns(is_deleted="price > 1").aggregate(by="is_deleted", n="count(*)"),
    ],
)
def test_no_other_column_is_named_as_that_of_deletions(declare: Callable[[Stream], Stream]) -> None:
    """An aggregate without a key has no column of deletions, so the name is free."""
    with pytest.raises(PlanError, match=r"output column '(is_deleted|Is_Deleted)' twice"):
        declare(top(Flow("f")))
    assert top(Flow("f")).aggregate(is_deleted="count(*)").columns == ("is_deleted",)


def test_arguments_that_change_with_each_call_are_refused() -> None:
    """What is taken back would not be what was added; as a column of the rows it is kept with them."""
    stream = top(Flow("f"))
    with pytest.raises(PlanError, match=r"'rand\(\)' may have another value .*with_columns\(value='rand"):
        stream.aggregate(x="sum(rand())")
    with pytest.raises(PlanError, match="may have another value when a row of 'top' is taken back"):
        stream.aggregate(x="count_if(timestamp_millis(at) > current_timestamp())")
    changes, total = stream.with_columns(value="rand()").aggregate(x="sum(value)").operator.upstream[-2:]
    assert isinstance(changes, ChangelogNormalize)
    assert "value" in changes.columns
    assert isinstance(total, RetractingAggregate)
    assert not total.computed
    named = stream.with_columns(current_price="price", now="price")
    named.aggregate(x="sum(if(shop = 'rand()', current_price + `now`, 0))")
    bids(Flow("f")).aggregate(x="count(distinct round(rand()))")  # these rows are final


@pytest.mark.parametrize(
    "argument",
    [
        "unix_timestamp() - price", "UNIX_TIMESTAMP ( ) - price", "hour(localtimestamp())",
        "hour(localtime())", "month(curdate())", "uniform(0, price)", "length(randstr(3))", "length(user())",
        "length(session_user)", "length(version())", "length(current_timezone())",
        "length(aes_encrypt(shop, 'k'))",
        "year(date 'today')", "year(timestamp 'now')", "year(cast('tomorrow' as date))",
        "year(to_date('Yesterday UTC'))", "year('now'::timestamp)",
    ],
)  # fmt: skip
def test_arguments_of_clock_chance_and_session_are_refused(argument: str) -> None:
    with pytest.raises(PlanError, match="may have another value when a row of 'top' is taken back"):
        top(Flow("f")).aggregate(x=f"sum({argument})")


@pytest.mark.parametrize(
    "argument",
    [
        "unix_timestamp(shop)", "unix_timestamp('2026-01-01', 'yyyy-MM-dd')", "unix_timestamp('2026')",
        "to_unix_timestamp(shop)", "if(shop = 'today', 1, 0)", "if(shop = 'now()', 1, 0)",
        "year(date '2026-01-01')", "year(cast(shop as date))", "named_struct('user', price).user",
    ],
)  # fmt: skip
def test_arguments_of_the_row_alone_are_accepted(argument: str) -> None:
    top(Flow("f")).aggregate(x=f"sum({argument})")


def test_an_aggregate_by_key_group_has_the_functions_of_windows() -> None:
    """If the upstream aggregate cannot run by key group, the plan is refused."""
    flow = Flow("f")
    first = bids(flow).aggregate(by="auction", price="percentile(price, 0.5)", name="first")
    first.aggregate(n="count(price)").write("out", KafkaTopic("out"))
    with pytest.raises(PlanError, match=r"operator 'first': .*'percentile' is not a built-in aggregate"):
        plan_flow(flow)


def test_groups_without_rows_are_deleted() -> None:
    """`is_deleted` is not written as a column; it makes tombstones.

    Another column can be named instead. Without it, all rows are ordinary rows.
    """
    assert sums(Flow("f")).columns == ("shop", "total", "is_deleted")
    assert written(sums(Flow("f"))).deleted == "is_deleted"
    assert written(sums(Flow("f")).select("total", "shop", "is_deleted as gone")).deleted == "gone"
    assert written(sums(Flow("f")).where("total > 1 or is_deleted")).deleted == "is_deleted"
    assert written(sums(Flow("f")).drop("is_deleted")).deleted is None
    assert written(sums(Flow("f")).with_columns(empty="total is null"), deleted="empty").deleted == "empty"
    assert written(sums(Flow("f")), key="total").deleted is None
    assert written(sums(Flow("f")).filter(has_price)).deleted == "is_deleted"
    passing = sums(Flow("f")).map(Newest(), schema=SUMS, key="shop", passes=("shop", "is_deleted"))
    assert written(passing).deleted == "is_deleted"
    assert isinstance(passing.aggregate(price="sum(price)").operator, RetractingAggregate)
    for key, deleted in ((("auction", "shop"), "is_deleted"), ("shop", None)):
        of_two = top(Flow("f")).aggregate(by=("shop", "auction"), total="sum(price)")
        assert written(of_two, key=key).deleted == deleted
    assert top(Flow("f")).aggregate(total="sum(price)").columns == ("total",)


def outer_join(flow: Flow) -> Stream:
    """Unmatched bids, which are deleted when a partner arrives."""
    more = bids(flow, "more").select("auction", "shop as other")
    return bids(flow).join(more, on="auction", how="left", ttl=None, name="joined")


@pytest.mark.parametrize(
    ("declare", "by"),
    [
        (outer_join, "row_id"),
        (lambda f: outer_join(f).drop("is_deleted", "row_id"), "row_id"),
        (lambda f: sums(f).where("total > 1"), "shop"),
        (
            lambda f: sums(f).through("cut", schema="shop STRING, total DOUBLE, is_deleted BOOLEAN"),
            "shop",
        ),
        (lambda f: sums(f).drop("is_deleted").through("cut", schema="shop STRING, total DOUBLE"), "shop"),
    ],
)
def test_operators_that_would_count_a_deletion_as_a_row_are_refused(
    declare: Callable[[Flow], Stream], by: str
) -> None:
    """Windows and `reduce` cannot process deletions."""
    wanted = f"operator 'n': rows of .* replace and delete earlier ones by {by}: those would still be counted"
    with pytest.raises(PlanError, match=wanted):
        declare(Flow("f")).window(Global(), trigger=Count(2), name="n")
    with pytest.raises(PlanError, match=wanted):
        declare(Flow("f")).reduce(lambda _, new: new, schema=BID, name="n")


def test_deletions_cross_a_cut_as_records() -> None:
    """The next aggregate of them takes back what is deleted."""
    flow = Flow("f")
    cut = sums(flow).through("cut", schema="shop STRING, total DOUBLE, is_deleted BOOLEAN")
    (sink,) = flow.sinks
    assert isinstance(sink, Write)
    assert (sink.deleted, find_deleted(cut.operator)) == (None, "is_deleted")
    (changes,) = cut.aggregate(n="count(*)").operator.inputs
    assert isinstance(changes, ChangelogNormalize)
    assert (changes.by, changes.deleted) == (("shop",), "is_deleted")


def test_the_plan_says_which_rows_are_replaced_and_what_is_kept() -> None:
    """The text names the operator where replacing begins; the details have it for each operator."""
    found = plan(top(Flow("f")).aggregate(by="shop", total="sum(price)", dear="max(price)", name="sums"))
    text = found.explain()
    assert (
        "    top is updating by auction, rank because a later row of a key replaces the earlier one" in text
    )
    assert "    sums is updating by shop because a later" in text
    assert "is_deleted is true where a key is deleted" in text
    assert "sums.changes <- top: changelog of the last row by auction, rank" in text
    assert (
        "sums <- sums.changes: aggregate sum(price) as total, max(price) as dear of a changelog by shop"
        in text
    )
    assert "it counts each value, for max(price)" in text
    assert (
        "the state of sums.changes is unbounded because it keeps the last row of each key of auction" in text
    )
    (part,) = collect_details(found)
    changes = {each.node.name: each.outcomes["changes"].value for each in part.operators[:-1]}
    assert changes == {
        "bids": "append", "top": "updating by auction, rank", "sums.changes": "append",
        "sums": "updating by shop",
    }  # fmt: skip
    states = {state.operator: state.kind for query in found.live_queries for node in query.operators
              if (state := node.kept_state(16))}  # fmt: skip
    assert states == {"top": "rank", "sums.changes": "changelog", "sums": "retraction"}


def test_a_time_to_live_bounds_the_changelog() -> None:
    """Rows that are not replaced within the TTL are retracted, so groups are removed too."""
    found = plan(bids(Flow("f")).latest(by="auction", ttl=HOUR).aggregate(by="shop", n="count(*)", ttl=HOUR))
    assert "is unbounded" not in found.explain()
    assert "changelog of the last row by auction, each 1 h" in found.explain()


def test_an_aggregate_upstream_runs_by_key_group_for_all_its_readers() -> None:
    """All readers share one query. Without a reader that retracts its rows, the aggregate is Spark's own."""
    flow = Flow("f")
    first = bids(flow).aggregate(by=("auction", "shop"), price="max(price)", name="first")
    first.write("all", KafkaTopic("all"))
    alone = plan_flow(flow)
    assert [node.name for query in alone.live_queries for node in query.keyed] == []
    first.select("auction", "shop", "price").aggregate(by="shop", n="count(*)", name="second").write(
        "out", KafkaTopic("out")
    )
    (query,) = plan_flow(flow).live_queries
    assert [[node.name for node in each] for each in query.exchanges] == [
        ["first"],
        ["second.changes"],
        ["second"],
    ]
    assert isinstance(query.keyed[0], KeyedAggregate)
    assert {sink.name for sink in query.sinks} == {"all", "out"}
    assert (
        "first is key-group in 16 key groups because Spark's own aggregate shares no"
        in plan_flow(flow).explain()
    )
    assert "emitted at each change\n" in plan_flow(flow).explain()


def test_ranks_that_are_forgotten_without_output_are_refused_unless_their_rows_expire() -> None:
    """A key that begins anew has rank 1 only; with ttl= the aggregate forgets the other ranks, too."""

    def ranked(n: int, **ttl: Any) -> Stream:
        return bids(Flow("f")).top_n(n, by="auction", order="price desc", name="top", **ttl)

    with pytest.raises(PlanError, match=r"'top' forgets a key .*counted for ever; pass ttl= to 'sums', too"):
        ranked(2, ttl=HOUR).select("auction", "rank", "price").aggregate(total="sum(price)", name="sums")

    ranked(2, ttl=HOUR).aggregate(total="sum(price)", ttl=HOUR)
    ranked(1, ttl=HOUR).aggregate(total="sum(price)")
    ranked(2).aggregate(total="sum(price)")
