"""Windows by event time need it of every source upstream."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flowcore import (
    Flow,
    Global,
    KafkaTopic,
    Parquet,
    Stream,
    Tumbling,
    monotonous,
    periodic,
    punctuated,
)
from flowcore.api.windowed_stream import WindowedStream
from flowcore.errors import PlanError
from flowcore.planner import plan_flow
from flowcore.planner.rules.timestamps import (
    find_timed_sources,
)
from flowcore.watermarks import WatermarkStrategy
from flowcore.windows.triggers import Count
from tests.unit.planner.rules.test_timestamps import FOUR_SECONDS, OFF, SALE, read_bids


@pytest.mark.parametrize(
    ("strategy", "refused"),
    [(monotonous(), True), (periodic("unix_millis(at)"), True), (punctuated("shop = 'end'"), False)],
    ids=["monotonous", "periodic", "punctuated"],
)
def test_windows_need_watermarks_that_an_interval_of_zero_emits(
    strategy: WatermarkStrategy, refused: bool
) -> None:
    """Periodic watermarks are not emitted; those of markers and those that arrive are."""
    flow = Flow("f")
    topic = KafkaTopic("bids", schema=SALE, event_time="at", watermark=strategy)
    windows = flow.read("bids", topic).window(Tumbling(10), by="shop", name="counted")
    windows.aggregate(n="count(*)").write("out", KafkaTopic("out"))
    plan_flow(flow)

    if not refused:
        plan_flow(flow, settings=OFF)
        return
    with pytest.raises(PlanError, match="source 'bids' of 'counted' has periodic watermarks"):
        plan_flow(flow, settings=OFF)


@pytest.mark.parametrize(
    ("windows", "dated"),
    [
        (lambda both: both.window(Tumbling(10)), {"bids", "asks"}),
        (lambda both: both.window(Tumbling(10), time="processing"), set()),
        (lambda both: both.window(Global(), trigger=Count(2)), set()),
    ],
    ids=["by-event-time", "by-the-clock", "global"],
)
def test_windows_that_end_by_event_time_need_that_of_every_live_source(
    windows: Callable[[Stream], WindowedStream], dated: set[str]
) -> None:
    """Joined tables and other windows do not need event time."""
    flow = Flow("f")
    settings = {"event_time": "at", "watermark": FOUR_SECONDS}
    both = read_bids(flow, **settings).union(read_bids(flow, "asks", **settings))
    names = flow.read("names", Parquet("names", schema="shop STRING, name STRING"))
    windows(both.join(names, on="shop")).aggregate(n="count(*)").write("out", KafkaTopic("out"))
    plan = plan_flow(flow)

    assert plan.live is not None
    assert {node.name for node in find_timed_sources(plan.live.queries[0].operators)} == dated


def test_query_knows_the_sources_that_windows_of_other_queries_need_timed() -> None:
    """Bad records leave through one query, which may run before that with the windows."""
    flow = Flow("f")
    bids = read_bids(flow, event_time="at", watermark=FOUR_SECONDS)
    bids.write("copy", KafkaTopic("copy"))
    read_bids(flow, "asks", event_time="at", watermark=FOUR_SECONDS).write("more", KafkaTopic("more"))
    bids.window(Tumbling(10)).aggregate(n="count(*)").write("out", KafkaTopic("out"))
    plan = plan_flow(flow)
    found = {query.name: {node.name for node in query.untimed_sources} for query in plan.live_queries}

    assert found == {"bids": {"bids"}, "asks": set(), "bids-batches": set()}


def test_branches_of_a_query_that_need_no_timestamps_keep_records_without() -> None:
    """Windows beside a function skip such records; where all branches are windows, they are only bad."""

    def untimed(*, function: bool) -> set[str]:
        flow = Flow("f")
        bids = read_bids(flow, event_time="at", watermark=FOUR_SECONDS)
        bids.window(Tumbling(10)).aggregate(n="count(*)").write("out", KafkaTopic("out"))
        bids.window(Tumbling(20)).aggregate(n="count(*)").write("more", KafkaTopic("more"))
        if function:
            bids.filter(bool, name="some").write("copy", KafkaTopic("copy"))
        (query,) = plan_flow(flow).live_queries
        return {node.name for node in query.untimed_sources}

    assert untimed(function=True) == {"bids"}
    assert untimed(function=False) == set()
