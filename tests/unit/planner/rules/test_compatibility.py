"""The needs of a query on its checkpoint follow from its plan, without its changeable parts."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Parquet, Stream, Tumbling, bounded_out_of_orderness, monotonous
from flowcore.api.node import KeptState
from flowcore.errors import StateError
from flowcore.planner import plan_flow
from flowcore.planner.model import LiveQuery
from flowcore.planner.rules.compatibility import CheckpointNeeds, derive_needs, find_differences
from flowcore.settings import Settings
from flowcore.spark.checkpoint.plan_file import checkpoint_folder
from flowcore.spark.run.flow import run_flow
from flowcore.windows.triggers import (
    ContinuousEventTime,
    Count,
    Delta,
    EventTimeTrigger,
    Purging,
    Trigger,
)

SALE = "shop STRING, price DOUBLE"
TOP = KeptState("top", "aggregate", ("shop",), ("max(price)",))


def _bids(flow: Flow, name: str = "bids") -> Stream:
    return flow.read(name, KafkaTopic(name, schema=SALE))


def _queries(flow: Flow) -> tuple[LiveQuery, ...]:
    plan = plan_flow(flow)
    return plan.live_queries


def test_needs_are_topics_in_order_and_state() -> None:
    """Each operator with state has one entry; sinks and filters have none."""
    flow = Flow("f")
    both = _bids(flow).where("price > 0").union(_bids(flow, "asks"))
    both.aggregate(by="shop", best="max(price)", name="top").write("out", KafkaTopic("out"))

    (query,) = (query for query in _queries(flow) if query.sinks)

    assert derive_needs(query) == CheckpointNeeds(("bids", "asks"), (TOP,))


def test_fingerprint_is_of_needs_alone() -> None:
    """Other names, filters and sinks keep the fingerprint; other functions and topics change it."""

    def fingerprint(
        topic: str = "bids", function: str = "max", name: str = "top", where: str = "true"
    ) -> str:
        flow = Flow("f")
        top = _bids(flow, topic).where(where).aggregate(by="shop", best=f"{function}(price)", name=name)
        top.write("out", KafkaTopic("out"))
        return derive_needs(next(query for query in _queries(flow) if query.sinks)).fingerprint

    same = fingerprint()
    assert {fingerprint(name="other"), fingerprint(where="price > 1")} == {same}
    assert len({same, fingerprint("asks"), fingerprint(function="min")}) == 3


def test_operators_by_key_group_are_known_by_name_and_exchange() -> None:
    """One may come or go beside others; none may move to another exchange or get another name."""

    def needs(*names: str) -> CheckpointNeeds:
        flow = Flow("f")
        topic = KafkaTopic(
            "bids", schema=f"{SALE}, sold TIMESTAMP", event_time="sold", watermark=monotonous()
        )
        stream = flow.read("bids", topic)
        for name in names:
            stream = stream.window(Tumbling(10), by="shop", name=name).aggregate(price="sum(price)")
        stream.write("out", KafkaTopic("out"))
        return derive_needs(next(query for query in plan_flow(flow).live_queries if query.sinks))

    chain = needs("first", "second")
    assert [state.operator for state in chain.states] == ["first", "second"]
    assert [*find_differences(chain, chain)] == []
    assert needs("second", "first").fingerprint != chain.fingerprint
    one, other = find_differences(chain, needs("second", "first"))
    assert one.startswith("operator 'first' kept tumbling windows of 10 s")
    assert one.endswith("of exchange 2")
    assert other.endswith("of exchange 1")
    assert [*find_differences(needs("first"), needs("renamed"))] == [
        "operator 'first' is gone, and 'renamed' keeps the same: its state is found by its name"
    ]
    assert [*find_differences(needs("first"), chain)] == []  # the number of exchanges is another check
    assert [*find_differences(chain, needs("first"))] == []
    assert "nothing was kept before" in " ".join(find_differences(needs(), chain))
    assert "now nothing is kept" in " ".join(find_differences(chain, needs()))


STORING: dict[str, Callable[[Stream, Stream], Stream]] = {
    "latest": lambda bids, _: bids.latest(by="shop", name="op"),
    "top_n": lambda bids, _: bids.top_n(2, by="shop", order="price", name="op"),
    "sort": lambda bids, _: bids.sort_by_event_time(by="shop", name="op"),
    "interval": lambda bids, more: bids.join_interval(
        more, on="shop", before=timedelta(0), after=timedelta(1), name="op"
    ),
    "regular": lambda bids, more: bids.join(more, on="shop", ttl=None, name="op"),
    "latest-join": lambda more, bids: bids.join_latest(more, on="shop", name="op"),
}


@pytest.mark.parametrize("declare", STORING.values(), ids=STORING)
def test_needs_have_the_columns_that_are_stored_of_records(
    declare: Callable[[Stream, Stream], Stream],
) -> None:
    """Other columns, and ordinals because of a table or an array, are another state layout."""

    def needs(*columns: str, change: Callable[[Flow, Stream], Stream] = lambda _, s: s) -> CheckpointNeeds:
        flow = Flow("f")
        schema = f"{SALE}, sold TIMESTAMP, note STRING"
        topics = [
            KafkaTopic(name, schema=text, event_time="sold", watermark=monotonous())
            for name, text in (("bids", schema), ("more", "shop STRING, sold TIMESTAMP"))
        ]
        first, more = (flow.read(topic.name, topic) for topic in topics)
        stream = change(flow, declare(first, more.drop("sold")).select("shop", *columns))
        stream.write("out", KafkaTopic("out"), key="shop")
        return derive_needs(next(query for query in plan_flow(flow).live_queries if query.sinks))

    before = needs("price", "note")
    assert dict(before.stored)["op"][-2:] == ("price", "note")
    same = needs("note", "price", change=lambda _, s: s.where("price > 1"))
    assert (same.fingerprint, [*find_differences(before, same)]) == (before.fingerprint, [])

    fewer = needs("price")
    assert fewer.fingerprint != before.fingerprint
    (difference,) = find_differences(before, fewer)
    assert difference.startswith("operator 'op' stored of each record")
    assert difference.count("note") == 1

    joined = needs(
        "price", "note",
        change=lambda f, s: s.join(f.read("t", Parquet("t", "shop STRING, z INT")), on="shop", how="left"),
    )  # fmt: skip
    (difference,) = find_differences(before, joined)
    assert difference.endswith("price, note, the ordinal")

    unknown = replace(before, stored=())  # an earlier version wrote it
    assert [*find_differences(unknown, joined)] == []


def test_needs_of_a_join_of_streams_have_the_right_columns_joined_on() -> None:
    """Payments that were kept by one column would be found by another one."""

    def needs(right: str) -> CheckpointNeeds:
        flow = Flow("f")
        orders = flow.read("orders", KafkaTopic("orders", schema="id BIGINT"))
        payments = KafkaTopic("payments", schema="order_id BIGINT, ref BIGINT, amount BIGINT")
        joined = orders.join(flow.read("payments", payments), on={"id": right}, ttl=None, name="paid")
        joined.select("id", "amount").write("out", KafkaTopic("out"))
        return derive_needs(next(query for query in _queries(flow) if query.sinks))

    before, now = needs("order_id"), needs("ref")

    (difference,) = find_differences(before, now)
    assert difference == "operator 'paid' joined on right columns order_id, and now on ref"
    assert before.fingerprint != now.fingerprint
    assert [*find_differences(replace(before, joined=()), now)] == []  # an earlier version wrote it


def test_needs_of_windows_have_their_length_function_and_key_groups() -> None:
    """The allowed lateness is not among the needs."""

    def fingerprint(*, size_s: int = 10, total: str = "sum(price)", late_s: int = 0, groups: int = 16) -> str:
        flow = Flow("f")
        topic = KafkaTopic(
            "bids",
            schema=f"{SALE}, sold TIMESTAMP",
            event_time="sold",
            watermark=bounded_out_of_orderness(timedelta(seconds=4)),
        )
        windows = flow.read("bids", topic).window(
            Tumbling(seconds=size_s), by="shop", allowed_lateness=timedelta(seconds=late_s)
        )
        windows.aggregate(total=total).write("out", KafkaTopic("out"))
        plan = plan_flow(flow, settings=Settings.of({"state.key-groups": groups}, environment={}))
        assert plan.live is not None
        return derive_needs(next(query for query in plan.live.queries if query.sinks)).fingerprint

    same = fingerprint()
    assert fingerprint(late_s=30) == same
    others = {fingerprint(size_s=20), fingerprint(total="max(price)"), fingerprint(groups=8)}
    assert len({same} | others) == 4


@pytest.mark.parametrize("kind", ["interval", "window"])
def test_needs_of_joins_are_without_their_allowed_lateness(kind: str) -> None:
    """Their interval or window is among the needs."""

    def needs(length_s: int = 10, lateness_s: int = 0) -> CheckpointNeeds:
        flow = Flow("f")
        bids, more = (
            flow.read(name, KafkaTopic(name, schema=text, event_time="sold", watermark=monotonous()))
            for name, text in (("bids", f"{SALE}, sold TIMESTAMP"), ("more", "shop STRING, sold TIMESTAMP"))
        )
        options: dict[str, Any] = {"on": "shop", "name": "op", "allowed_lateness": lateness_s}
        right, length = more.drop("sold"), timedelta(seconds=length_s)
        if kind == "window":
            joined = bids.join_window(right, Tumbling(length), **options)
        else:
            joined = bids.join_interval(right, before=length, after=length, **options)
        joined.write("out", KafkaTopic("out"))
        return derive_needs(next(query for query in _queries(flow) if query.sinks))

    assert needs(lateness_s=30) == needs()
    assert needs(20) != needs()


def _needs_with(trigger: Trigger | None) -> CheckpointNeeds:
    flow = Flow("f")
    topic = KafkaTopic("bids", schema=f"{SALE}, sold TIMESTAMP", event_time="sold", watermark=monotonous())
    windows = flow.read("bids", topic).window(Tumbling(10), by="shop", trigger=trigger, name="w")
    windows.aggregate(total="sum(price)").write("out", KafkaTopic("out"))
    return derive_needs(next(query for query in _queries(flow) if query.sinks))


@pytest.mark.parametrize(
    ("before", "now", "difference"),
    [
        (Delta(1.0, max), Count(2), "operator 'w' had the trigger Delta, and now Count"),
        (Count(2), ContinuousEventTime(5), "operator 'w' had the trigger Count, and now ContinuousEventTime"),
        (Count(2), Purging(Count(2)), "operator 'w' had the trigger Count, and now Purging(Count)"),
        (None, Count(2), "operator 'w' had the trigger EventTimeTrigger, and now Count"),
        (Count(2), Count(3), None),
        (Purging(Count(2)), Purging(Count(3)), None),
        (Delta(1.0, max), Delta(2.0, min), None),
        (None, EventTimeTrigger(), None),
    ],
    ids=str,
)
def test_a_trigger_of_another_kind_is_refused(
    before: Trigger | None, now: Trigger | None, difference: str | None
) -> None:
    """It would misread the state of the other; a trigger with other numbers reads it."""
    old, new = _needs_with(before), _needs_with(now)

    assert [*find_differences(old, new)] == ([] if difference is None else [difference])
    assert (old.fingerprint == new.fingerprint) == (difference is None)
    assert [*find_differences(replace(old, triggers=()), new)] == []  # an earlier version wrote it


@pytest.mark.parametrize(
    ("now", "difference"),
    [
        (CheckpointNeeds(("asks",), (TOP,)), "it was reading topic bids, and now topic asks"),
        (CheckpointNeeds(("asks", "bids"), (TOP,)), "it was reading topic bids, and now topics asks, bids"),
        (CheckpointNeeds(("bids",), ()), "operator 'top' kept max(price) by shop, and now nothing is kept"),
        (
            CheckpointNeeds(("bids",), (TOP, KeptState("n", "aggregate", (), ()))),
            "operator 'n' keeps its keys by nothing, and nothing was kept before",
        ),
        (
            CheckpointNeeds(("bids",), (KeptState("w", "window", ("shop",), ("max(price)",)),)),
            "aggregate 'top' kept max(price) by shop, and now window 'w' keeps max(price) by shop",
        ),
        (
            CheckpointNeeds(
                ("bids",), (KeptState("top", "aggregate", ("shop",), ("max(price)",), key_groups=32),)
            ),
            "operator 'top' kept max(price) by shop, and now max(price) by shop in 32 key groups",
        ),
    ],
    ids=["topic", "one-more-topic", "state-gone", "state-new", "kind", "key-groups"],
)
def test_differences_show_both_sides(now: CheckpointNeeds, difference: str) -> None:
    """A difference has the old and the new value."""
    assert list(find_differences(CheckpointNeeds(("bids",), (TOP,)), now)) == [difference]


def test_differences_are_none_where_only_a_name_has_changed() -> None:
    """Operators are compared by their place in the query."""
    renamed = KeptState("other", TOP.kind, TOP.keys, TOP.values)

    assert not list(
        find_differences(CheckpointNeeds(("bids",), (TOP,)), CheckpointNeeds(("bids",), (renamed,)))
    )


def test_incompatible_run_is_refused_before_it_starts(tmp_path: Path) -> None:
    """No broker is contacted, no stage runs and no JVM starts for a plan that cannot resume."""
    flow = Flow("f")
    shops = flow.read("shops", Parquet("nowhere", schema="shop STRING"))
    live = _bids(flow).join(shops, on="shop")
    live.aggregate(by="shop", best="max(price)").write("out", KafkaTopic("out"))
    settings = Settings.of(
        {"state.dir": tmp_path / "state", "kafka.bootstrap.servers": "127.0.0.1:1"}, environment={}
    )
    query = next(query for query in _queries(flow) if query.sinks)
    checkpoint = checkpoint_folder(query, "f", settings)
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").write_text('v1\n{}\n{"asks":{"0":5}}')

    with pytest.raises(StateError, match="was reading asks, and now bids"):
        run_flow(flow, settings)

    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["0"]
