"""Ranks of rows that replace each other: what is refused, and what the plan says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flowcore import Flow, Global, KafkaTopic, Parquet, Stream
from flowcore.api.keyed_aggregate import KeyedAggregate
from flowcore.api.operators import ChangelogNormalize, Ranked, RetractingTopN, Write
from flowcore.api.updating_rows import find_deleted
from flowcore.errors import PlanError
from flowcore.planner import plan_flow
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.windows.triggers import Count
from tests.unit.api.test_retraction import UPDATING, outer_join, sums
from tests.unit.api.updating_flows import BID, HOUR, bids, plan, top, written

DELETED = "shop STRING NOT NULL, total DOUBLE NOT NULL"


def source(flow: Flow) -> Stream:
    """Rows that replace and delete each other in a topic."""
    return flow.read("shops", KafkaTopic("shops", DELETED, updating_by="shop"))


def ranked(stream: Stream) -> RetractingTopN:
    assert isinstance(stream.operator, RetractingTopN)
    return stream.operator


def best(stream: Stream, n: int = 3, **options: object) -> Stream:
    return stream.top_n(n, **{"order": "price desc", "name": "best", **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(("declare", "key"), UPDATING.values(), ids=UPDATING)
def test_the_changelog_is_by_the_key_of_the_rows(
    declare: Callable[[Flow], Stream], key: tuple[str, ...]
) -> None:
    """For all rows that replace each other; the flow can run."""
    flow = Flow("f")
    found = best(declare(flow), rank="place")
    node = ranked(found)

    (changes,) = node.inputs
    assert isinstance(changes, ChangelogNormalize)
    assert (changes.name, changes.by) == ("best.changes", key)
    assert (node.row_key, node.key, node.updating) == (key, ("place",), True)
    found.write("out", KafkaTopic("out"), key="place")
    query = plan_flow(flow).live_queries[-1]
    assert [[node.name for node in each] for each in query.exchanges[-2:]] == [["best.changes"], ["best"]]


@pytest.mark.parametrize(
    ("declare", "by", "key"),
    [
        (sums, (), ("shop",)),
        (source, ("shop",), ("shop",)),
        (lambda f: outer_join(f).with_columns(total="price"), ("auction",), ("row_id",)),
        (lambda f: best(sums(f), order="total", by="shop").drop("rank"), (), None),
        (lambda f: best(sums(f), order="total", by="shop", name="first"), ("rank",), ("shop", "rank")),
        (
            lambda f: best(sums(f), order="total", by="shop", name="first").through(
                "cut", schema="shop STRING, total DOUBLE, rank INT, is_deleted BOOLEAN"
            ),
            ("rank",),
            ("shop", "rank"),
        ),
    ],
)  # fmt: skip
def test_rows_that_are_deleted_lose_their_rank(
    declare: Callable[[Flow], Stream], by: tuple[str, ...], key: tuple[str, ...] | None
) -> None:
    """The last column is true where a rank vanishes; that of the rows is not one of the results."""
    stream = declare(Flow("f"))
    if key is None:
        with pytest.raises(PlanError, match="does not have all of these columns"):
            best(stream, order="total")
        return
    found = best(stream, order="total", by=by, rank="place")
    node = ranked(found)
    (changes,) = node.inputs
    assert isinstance(changes, ChangelogNormalize)
    assert (changes.by, changes.deleted) == (key, "is_deleted")
    assert node.columns == (*(each for each in stream.columns if each != "is_deleted"), "place", "is_deleted")
    assert find_deleted(node) == "is_deleted"
    assert node.types()["is_deleted"] == "BOOLEAN"


def test_vanished_ranks_are_tombstones() -> None:
    """Also after a selection; an aggregate takes their rows back, and windows are refused."""
    found = best(sums(Flow("f")), order="total", by="shop")
    assert written(found).deleted == "is_deleted"
    assert (
        written(best(sums(Flow("f")), order="total").select("rank", "is_deleted as gone")).deleted == "gone"
    )
    assert (
        written(best(top(Flow("f")).select("auction", "rank as r", "price"), by="r")).deleted == "is_deleted"
    )
    (changes,) = found.aggregate(by="rank", total="sum(total)").operator.inputs
    assert isinstance(changes, ChangelogNormalize)
    assert (changes.by, changes.deleted) == (("shop", "rank"), "is_deleted")
    with pytest.raises(PlanError, match=r"rows of 'best' replace and delete earlier ones by shop, rank"):
        found.window(Global(), trigger=Count(2), name="n")
    with pytest.raises(PlanError, match=r"records of 'best' replace earlier ones"):
        found.latest(by="shop")


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (
            lambda f: best(top(f).where("price > 1"), rank="r"),
            r"'where_1' may drop .* give rows that do not count a value that is last in order='price desc'",
        ),
        (lambda f: best(top(f).select("auction", "price")), "by auction, rank, and 'select_1' does not"),
        (lambda f: best(sums(f).select("shop", "total as price")), "is_deleted that they delete.*select it"),
        (lambda f: best(top(f)), "rank='rank' is also another column"),
        (lambda f: best(sums(f), order="total", rank="is_deleted"), "rank='is_deleted' is also another"),
        (lambda f: best(sums(f), order="total", by="is_deleted"), "output column 'is_deleted' twice"),
        (lambda f: best(sums(f), order="totall"), "did you mean 'total'"),
        (lambda f: best(sums(f), 0, order="total"), "n=0 is not a number of ranks"),
        (lambda f: best(sums(f), order="total", by="shopp"), "did you mean 'shop'"),
        (
            lambda f: best(bids(f).top_n(2, by="auction", order="price", name="few", ttl=HOUR), rank="r"),
            r"'few' forgets a key after its ttl= without output.*pass ttl= to 'best', too",
        ),
    ],
)  # fmt: skip
def test_ranks_that_could_not_be_taken_back_are_refused(
    declare: Callable[[Flow], object], message: str
) -> None:
    """The error names the operators, and what to do instead."""
    with pytest.raises(PlanError, match=f"operator 'best'.*{message}"):
        declare(Flow("f"))


def test_final_and_bounded_rows_are_ranked_as_before() -> None:
    """No other rows are kept, and no column says what is deleted."""
    old = Flow("g").read("old", Parquet("old", BID)).aggregate(by="shop", price="max(price)")
    for stream in (bids(Flow("f")), old):
        found = best(stream)
        assert type(found.operator) is Ranked
        assert found.columns[-1] == "rank"


def test_the_plan_says_what_is_ranked_and_kept() -> None:
    """Without a time to live, it names the state that grows."""
    flow = Flow("f")
    counts = bids(flow).aggregate(by=("auction", "shop"), bids="count(*)", at="max(at)", name="counts")
    found = plan(best(counts, by="shop", order="bids desc"))
    text = found.explain()
    assert "best.changes <- counts: changelog of the last row by auction, shop\n" in text
    assert "best <- best.changes: top 3 in order of bids desc of a changelog by shop\n" in text
    assert "best is updating by shop, rank because a later row of a key replaces the earlier one; " in text
    assert "is_deleted is true where a key is deleted" in text
    assert "because a row that is taken back gives its rank to the next one of its key" in text
    assert (
        "the state of best.changes is unbounded because it keeps the last row of each key of auction" in text
    )
    assert "declare ttl= on best, if a row of a key of auction, shop" in text
    assert "because Spark's own aggregate shares no query with the operators with state around it" in text
    (query,) = found.live_queries
    assert isinstance(query.keyed[0], KeyedAggregate)
    states = {state.operator: state for node in query.operators if (state := node.kept_state(16))}
    assert states["best"].kind == "retracting-rank"
    (sink,) = query.sinks
    assert isinstance(sink, Write)
    assert sink.deleted == "is_deleted"
    expiring = plan(best(bids(Flow("f")).latest(by="auction", ttl=HOUR), by="shop", ttl=HOUR))
    assert "is unbounded" not in expiring.explain()
    assert "changelog of the last row by auction, each 1 h" in expiring.explain()


def test_only_columns_that_are_read_are_stored() -> None:
    """The others do not reach the changelog."""
    flow = Flow("f")
    latest = bids(flow).latest(by="auction", name="latest")
    best(latest, by="shop").select("shop", "rank", "at", "is_deleted").write("out", KafkaTopic("out"))
    (query,) = plan_flow(flow).live_queries
    changes, node = query.operators[2:4]
    assert isinstance(changes, ChangelogNormalize)
    assert changes.stored_columns(query.used_columns[changes]) == ("auction", "shop", "price", "at")
    assert isinstance(node, RetractingTopN)
    assert node.stored_columns(query.used_columns[node]) == ("at",)
    assert not node.keeps_timestamps
    flow = Flow("g")
    best(sums(flow), order="total").write("out", KafkaTopic("out"))
    (query,) = plan_flow(flow).live_queries
    changes = query.operators[-3]
    assert isinstance(changes, ChangelogNormalize)
    assert query.used_columns[changes] == {"shop", "total", "_flowcore_change"}


def test_ranks_can_be_buffered() -> None:
    """A buffer keeps the latest row of each key and rank, deletions included."""
    flow = Flow("f")
    best(sums(flow), by="shop", order="total").write("out", KafkaTopic("out"))
    settings = Settings.of({"execution.flush.max-interval": "1 s"}, environment={})
    found: Plan = plan_flow(flow, settings=settings)
    (query,) = found.live_queries
    (flush,) = (each for each in query.flushes if each.operator.name == "best")
    assert (flush.way, flush.key) == ("key-groups", ("shop", "rank"))
