"""Regular joins of streams whose rows replace and delete earlier ones, as flows declare them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Stream, Tumbling, monotonous
from flowcore.api.operators import ChangelogNormalize, JoinRegular
from flowcore.api.updating_rows import decide_changes
from flowcore.errors import PlanError
from flowcore.planner import plan_flow
from flowcore.planner.rules.compatibility import derive_needs, find_differences

HOUR = timedelta(hours=1)
KINDS = ["inner", "left", "right", "full", "semi", "anti"]


def bids(flow: Flow) -> Stream:
    return flow.read(
        "bids", KafkaTopic("bids", "auction BIGINT, bidder STRING, bid DOUBLE", watermark=monotonous())
    )


def prices(flow: Flow, **changed: Any) -> Stream:
    return flow.read(
        "prices", KafkaTopic("prices", "auction BIGINT, price DOUBLE", updating_by="auction", **changed)
    )


def totals(flow: Flow) -> Stream:
    return bids(flow).aggregate(by="auction", bids="count(*)", name="totals")


def explain(stream: Stream) -> str:
    stream.write("out", KafkaTopic("out"))
    return plan_flow(stream.graph).explain(verbose=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", KINDS)
def test_a_side_that_changes_makes_the_join_updating(how: Any) -> None:
    """Each such side has a changelog; the columns that say what is replaced are those of the join."""
    flow = Flow("market")
    both = totals(flow).join(prices(flow), on="auction", how=how, ttl=None, name="both")

    own = ("auction", "bids") if how in ("semi", "anti") else ("auction", "bids", "price")
    assert both.columns == (*own, "row_id", "is_deleted")
    text = explain(both)
    for part in (
        "totals and both.right.changes, then both.left.changes, then both",
        "both.left.changes <- totals: changelog of the last row by auction\n",
        "both.right.changes <- prices: changelog of the last row by auction, deletions where is_deleted\n",
        f"{how} join on auction, each record kept for ever, takes rows of totals and prices back",
        "both is updating by row_id because a later row of a key replaces the earlier one",
        "a row that is taken back deletes the rows that are made of it",
        "declare ttl= on both, a time after which a row of a key of auction has no partner",
        "write KafkaTopic out, key row_id, tombstones where is_deleted",
    ):
        assert part in text


def test_a_final_side_has_no_changelog_and_the_time_to_live_counts_for_all_state() -> None:
    flow = Flow("market")
    both = bids(flow).join(prices(flow), on="auction", ttl=HOUR, name="both")

    join = both.operator
    assert isinstance(join, JoinRegular)
    left, right = join.changelogs
    assert left is None
    assert isinstance(right, ChangelogNormalize)
    assert not right.emits_without_input
    text = explain(both)
    assert "changelog of the last row by auction, deletions where is_deleted, each kept for 1 h" in text
    assert "the state of both" not in text


def test_final_sides_are_joined_as_before() -> None:
    flow = Flow("market")
    asks = flow.read("asks", KafkaTopic("asks", "auction BIGINT, ask DOUBLE"))
    both = bids(flow).join(asks, on="auction", ttl=None, name="both")

    assert both.columns == ("auction", "bidder", "bid", "ask")
    assert decide_changes(both.operator).value == "append"
    assert "changes" not in [node.name for node in both.operator.upstream]


def test_joins_of_joins_and_aggregates_of_them_take_rows_back() -> None:
    """The columns of the first join that say what is replaced are not in the second one."""
    flow = Flow("market")
    both = totals(flow).join(prices(flow), on="auction", how="left", ttl=None, name="both")
    names = flow.read("names", KafkaTopic("names", "auction BIGINT, title STRING"))
    titled = both.join(names, on="auction", how="full", ttl=HOUR, name="titled")
    sums = titled.aggregate(by="title", total="sum(bids)", name="sums")

    assert titled.columns == ("auction", "bids", "price", "title", "row_id", "is_deleted")
    text = explain(sums)
    assert (
        "titled.left.changes <- both: changelog of the last row by row_id, deletions where is_deleted" in text
    )
    assert "sums.changes <- titled: changelog of the last row by row_id, deletions where is_deleted" in text
    query = plan_flow(flow).live_queries[0]
    used = {node.name: columns for node, columns in query.used_columns.items()}
    assert used["both"] == {"auction", "bids", "row_id", "is_deleted"}


def test_deletions_have_any_name() -> None:
    flow = Flow("market")
    renamed = prices(flow).select("auction as Number", "price", "is_deleted as Gone")
    both = renamed.join(bids(flow), on={"Number": "auction"}, ttl=None, name="both")

    assert both.columns == ("Number", "price", "bidder", "bid", "row_id", "is_deleted")


@pytest.mark.parametrize("deletes", ["left", "right"])
def test_a_column_is_not_taken_for_the_deletions_of_the_other_side(deletes: str) -> None:
    """They are not in the output, which would have them in place of the column of that name."""
    flow = Flow("market")
    renamed = prices(flow).select("auction", "price", "is_deleted as gone")
    others = bids(flow).select("auction", "bidder as gone")
    left, right = (renamed, others) if deletes == "left" else (others, renamed)

    with pytest.raises(PlanError, match="have the column 'gone', which is not joined on"):
        left.join(right, on="auction", how="left", ttl=None)


def test_a_side_that_changes_now_and_did_not_before_needs_a_new_checkpoint() -> None:
    """In both directions; another time to live does not."""

    def needs(*, updating: bool, ttl: timedelta | None = HOUR) -> Any:
        flow = Flow("market")
        topic = KafkaTopic(
            "prices", "auction BIGINT, price DOUBLE", updating_by="auction" if updating else None
        )
        both = bids(flow).join(flow.read("prices", topic), on="auction", how="left", ttl=ttl, name="both")
        both.write("out", KafkaTopic("out"))
        return derive_needs(plan_flow(flow).live_queries[0])

    final, changing = needs(updating=False), needs(updating=True)
    kept = "rows of both sides, left, in processing time"
    for before, now in ((final, changing), (changing, final)):
        assert f"{kept} (right rows replaced by auction)" in " ".join(find_differences(before, now))
    assert [*find_differences(changing, needs(updating=True, ttl=None))] == []


def last(flow: Flow) -> Stream:
    return bids(flow).latest(by="bidder", name="last")


REFUSED: dict[str, tuple[Callable[[Flow], object], str]] = {
    "a condition": (
        lambda f: totals(f).where("bids > 1").join(prices(f), on="auction", ttl=None),
        "'where_1' may drop or repeat some.*make the condition a column.*deleted= of its sink",
    ),
    "no key": (
        lambda f: last(f).select("auction").join(prices(f), on="auction", ttl=None),
        "by bidder, and 'select_1' does not have all of these columns",
    ),
    "no deletions": (
        lambda f: totals(f).join(prices(f).drop("is_deleted"), on="auction", ttl=None),
        "say in is_deleted that they delete a key, and 'drop_1' does not have this column",
    ),
    "forgotten ranks": (
        lambda f: bids(f).top_n(2, by="auction", order="bid", ttl=HOUR, name="best").join(
            prices(f), on="auction", ttl=HOUR
        ),
        "rows of its other ranks would be counted for ever; leave ttl= of 'best' out",
    ),
    "a final side without ids": (
        lambda f: bids(f).map_batches(list, schema="auction BIGINT", name="made").join(
            prices(f), on="auction", ttl=None
        ),
        "records of 'made' have no id: .*; use flat_map$",
    ),
    "a column of its own": (
        lambda f: bids(f).with_columns(row_id="bid").join(prices(f), on="auction", ttl=None),
        "'row_id' twice",
    ),
    "columns of both": (
        lambda f: last(f).select("auction", "bidder", "bid as price").join(prices(f), on="auction", ttl=None),
        "both inputs 'select_1' and 'prices' have the column 'price'",
    ),
    "windows over it": (
        lambda f: totals(f).join(prices(f), on="auction", ttl=None).window(Tumbling(60), time="processing"),
        "replace and delete earlier ones by row_id: those would still be counted; use aggregate",
    ),
    "another join": (
        lambda f: totals(f).join_latest(prices(f), on="auction", load=None),
        r"would be joined as one more record; .*use join\(\.\.\., ttl=\), which takes replaced ones back",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_taken_back_is_refused(name: str) -> None:
    declare, message = REFUSED[name]
    with pytest.raises(PlanError, match=message):
        declare(Flow("market"))
