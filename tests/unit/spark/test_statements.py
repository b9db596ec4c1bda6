"""What a plan says about triggers, backlog and late records is what the run does."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Stream, Tumbling, monotonous
from flowcore.api.operators import Window
from flowcore.backlog import batch_records
from flowcore.planner import plan_flow
from flowcore.planner.model import LiveQuery, Mode
from flowcore.planner.plan import Plan
from flowcore.planner.rules.execution import read_backlog_interval, read_thresholds
from flowcore.settings import Settings
from flowcore.spark.run.running_query import choose_trigger
from flowcore.testing.harness import WindowHarness

ROW = "shop STRING, price BIGINT, at BIGINT"


def _plan(declare: Callable[[Stream], Stream], mode: Mode | None, settings: Settings) -> Plan:
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema=ROW, event_time="at", watermark=monotonous()))
    declare(bids).write("out", KafkaTopic("out"))
    return plan_flow(flow, mode, settings)


def _query(plan: Plan) -> LiveQuery:
    return next(query for query in plan.live_queries if query.sinks)


def _top(bids: Stream) -> Stream:
    return bids.aggregate(by="shop", most="max(price)", flush=timedelta(minutes=2), name="top")


@pytest.mark.parametrize(
    ("declare", "mode", "settings", "says", "trigger"),
    [
        (lambda bids: bids, None, {}, "checkpoint: every 5 min because", {"realTime": "300000 milliseconds"}),
        (
            lambda bids: bids,
            None,
            {"execution.realtime.batch-duration": "30 s"},
            "checkpoint: every 30 s because execution.realtime.batch-duration is 30 s",
            {"realTime": "30000 milliseconds"},
        ),
        (
            lambda bids: bids,
            "micro-batch",
            {},
            "checkpoint: after each batch because micro-batch takes one",
            {"processingTime": "0 milliseconds"},
        ),
        (lambda bids: bids, "slice", {}, "mode: slice because", {"availableNow": True}),
        (_top, None, {}, "flush: every 2 min, by the trigger", {"processingTime": "120000 milliseconds"}),
        (
            _top,
            None,
            {"execution.trigger-interval": "3 min"},
            "flush: every 3 min, by the trigger",
            {"processingTime": "180000 milliseconds"},
        ),
        (
            lambda bids: bids.aggregate(by="shop", most="max(price)"),
            "realtime",
            {"execution.flush.max-interval": "2 min"},
            "flush: off because real-time",
            {"realTime": "300000 milliseconds"},
        ),
    ],
    ids=["realtime", "duration", "micro-batch", "slice", "flush", "longer trigger", "flush in realtime"],
)
def test_a_query_has_the_trigger_that_the_plan_says(
    declare: Callable[[Stream], Stream], mode: Mode | None, settings: Any, says: str, trigger: Any
) -> None:
    """Checkpoints are as far apart as it says, and results of an aggregate leave once in the interval."""
    given = Settings.of(settings, environment={})
    plan = _plan(declare, mode, given)

    assert says in plan.explain(verbose=True)
    found = choose_trigger(_query(plan), given, catching_up=False, by_processing_time=False)
    assert found == trigger


def test_a_source_is_in_backlog_between_the_lags_that_the_plan_says() -> None:
    """It begins above the first number, and lasts to the second."""
    settings = Settings.of({"backlog.enter": 3000, "backlog.leave": 70}, environment={})
    (reason,) = _query(_plan(lambda bids: bids, None, settings)).backlog.reasons

    enter, leave = (int(each.replace(",", "")) for each in re.findall(r"over ([\d,]+)", reason))
    thresholds = read_thresholds(settings)
    assert [thresholds.in_backlog(lag, before=False) for lag in (enter, enter + 1)] == [False, True]
    assert [thresholds.in_backlog(lag, before=True) for lag in (leave, leave + 1)] == [False, True]


def test_batches_of_a_backlog_are_as_large_as_the_plan_says() -> None:
    """Up to a number of records, or what is read in the interval if that is less."""
    settings = Settings.of(
        {
            "execution.max-records-per-batch": 1_000_000,
            "execution.checkpointing.interval-during-backlog": "10 min",
        },
        environment={},
    )
    query = _query(_plan(lambda bids: bids, None, settings))

    (text,) = (each for each in query.catch_up.reasons if "up to" in each)
    found = re.search(r"up to ([\d,]+) records .* in ([\d,]+) s, at least ([\d,]+)", text)
    assert found is not None
    limit, seconds, least = (int(each.replace(",", "")) for each in found.groups())
    interval = read_backlog_interval(settings)
    sizes = [batch_records(interval, rate, settings.max_batch_records) for rate in (None, 1e6, 1000.0, 0.1)]
    assert sizes == [limit, limit, 1000 * seconds, least]


@pytest.mark.parametrize("late", ["drop", "side-output"])
def test_late_records_go_where_the_plan_says(late: Any) -> None:
    """To the side output, or to a counter."""

    def declare(bids: Stream) -> Stream:
        return bids.window(Tumbling(1), by="shop", late=late, name="windows").aggregate(n="count(*)")

    plan = _plan(declare, None, Settings())
    (node,) = (each for each in _query(plan).operators if isinstance(each, Window))
    harness: WindowHarness = WindowHarness(node.config)
    harness.feed(("a", (), 1))
    harness.watermark(5000)
    harness.feed(("a", (), 2))

    said = re.search(r" late: (.*?) because", plan.explain(verbose=True))
    assert said is not None
    assert (len(harness.late), harness.dropped_records) == {
        "side output": (1, 0), "dropped and counted": (0, 1),
    }[said[1]]  # fmt: skip
