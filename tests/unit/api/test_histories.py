"""Topics that begin with a history: what is refused at the seam, and what the plan says."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Parquet, Stream, monotonous
from flowcore.errors import PlanError
from flowcore.planner import plan_flow
from flowcore.planner.rules.compatibility import derive_needs, find_differences

BID = "id BIGINT, price DOUBLE, at TIMESTAMP"
SEAM = datetime(2026, 3, 1, tzinfo=UTC)


def past(flow: Flow, schema: str = BID) -> Stream:
    return flow.read("past", Parquet("past", schema=schema))


def bids(flow: Flow, **settings: Any) -> Stream:
    topic = {"schema": BID, "event_time": "at", "watermark": monotonous(), **settings}
    return flow.read("bids", KafkaTopic("bids", **topic))


def begin(flow: Flow, **settings: Any) -> Stream:
    """Bids from offsets, after those that the topic had before."""
    earlier = flow.read("earlier", KafkaTopic("bids", schema=BID, until={0: 7}))
    return earlier.then(bids(flow, **settings))


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda f: bids(f).then(bids(f)), "two operators named 'bids'"),
        (lambda f: f.read("b", KafkaTopic("b", BID)).then(bids(f)), "the history 'b' is unbounded"),
        (lambda f: past(f).then(past(Flow("g"))), "'past' of the flow 'g'"),
        (lambda f: past(f).then(bids(f, until="latest"), at=SEAM), "'bids' is bounded.*union"),
        (lambda f: past(f).then(bids(f).where("id > 1"), at=SEAM), "'where_1' is not a source.*after then"),
        (lambda f: past(f).then(bids(f, deduplicate=True), at=SEAM), "without deduplicate=True"),
        (lambda f: past(f).then(bids(f, elements="tagged"), at=SEAM), "tagged elements.*'plain'"),
        (lambda f: past(f).drop("price").then(bids(f), at=SEAM), "differ in the columns price"),
        (lambda f: past(f, "id STRING, price DOUBLE, at TIMESTAMP").then(bids(f), at=SEAM), "'id' is STRING"),
        (lambda f: past(f).then(bids(f)), "start='earliest', and nothing says where.*pass at="),
        (lambda f: past(f).then(bids(f, start=SEAM)), "nothing says where"),
        (lambda f: past(f).then(bids(f), at=datetime(2026, 3, 1)), "not a time with its zone"),  # noqa: DTZ001
        (lambda f: past(f).then(bids(f, event_time=None), at=SEAM), "does not declare which column"),
        (lambda f: past(f).then(bids(f, start="latest"), at=SEAM), "between them would be lost"),
        (
            lambda f: past(f).then(bids(f, start=datetime(2026, 3, 2, tzinfo=UTC)), at=SEAM),
            "start=2026-03-02.*between them would be lost",
        ),
        (lambda f: begin(f, start={0: 8}), r"until=\{0: 7\}, and.*start=\{0: 8\}.*the same offsets"),
        (begin, "start='earliest'.*counted twice"),
    ],
)
def test_seams_that_count_twice_or_not_at_all_are_refused(
    declare: Callable[[Flow], object], message: str
) -> None:
    """The error names both sides, and what to pass instead."""
    with pytest.raises(PlanError, match=message):
        declare(Flow("f"))


@pytest.mark.parametrize(
    ("declare", "seam", "why"),
    [
        (
            lambda f: past(f).then(bids(f), at=SEAM),
            "event time 2026-03-01T00:00:00",
            "before it or without a time",
        ),
        (lambda f: begin(f, start={0: 7}), "the start position of bids", "the history has it as its end"),
        (lambda f: past(f).then(bids(f, start={0: 7})), "the start position of bids", "is not checked"),
    ],
)
def test_plan_says_where_the_history_ends(declare: Callable[[Flow], Stream], seam: str, why: str) -> None:
    """The query reads it first, so it runs in micro-batches although its operators could run in real time."""
    flow = Flow("f")
    declare(flow).select("id").write("out", KafkaTopic("out"))
    plan = plan_flow(flow)
    text = plan.explain()

    assert f"until {seam}" in text
    assert why in text
    assert "reads all of it before the first record of bids" in text
    (query,) = plan.live_queries
    assert query.mode.value == "micro-batch"
    assert query.after == (plan.bounded[0].name,)


def test_another_reader_of_the_topic_is_refused() -> None:
    """Another reader would share the read of the topic."""
    flow = Flow("f")
    live = bids(flow)
    past(flow).then(live, at=SEAM).write("out", KafkaTopic("out"))
    live.select("id").write("ids", KafkaTopic("ids"))

    with pytest.raises(PlanError, match=r"'select_1' reads it, too.*let it read 'then_1'"):
        plan_flow(flow)


def test_checkpoint_of_another_seam_does_not_fit() -> None:
    """Its state has begun with other records."""
    needs = []
    for at in (SEAM, datetime(2026, 3, 2, tzinfo=UTC), None):
        flow = Flow("f")
        live = bids(flow)
        found = live if at is None else past(flow).then(live, at=at)
        found.aggregate(by="id", n="count(*)").write("out", KafkaTopic("out"))
        needs.append(derive_needs(plan_flow(flow).live_queries[0]))

    first, other, none = needs
    assert not [*find_differences(first, first)]
    assert "a history until event time 2026-03-02" in "".join(find_differences(first, other))
    assert "now topic bids" in "".join(find_differences(first, none))
