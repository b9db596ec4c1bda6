"""Objectives of late records, dead letters, latency and freshness are evaluated on a run's progress."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from dagster import AssetCheckResult
from hypothesis import given
from hypothesis import strategies as st

from flowcore import Flow, KafkaTopic
from flowcore.dagster import stream_checks
from flowcore.dagster.attributes import Objectives
from flowcore.dagster.names import topics_with_dead_letters
from flowcore.dagster.resources import FlowcoreResource, KafkaResource
from flowcore.dagster.stream_checks import ObjectiveResult, check_descriptions, evaluate_objectives
from flowcore.metrics.progress import FlowProgress, LatencyProgress, QueryProgress
from flowcore.planner import plan_flow

NOW_MS = 1_800_000_000_000
QUERY = QueryProgress(name="out", mode="realtime", active=True, rows_in=1_000)
RUN = FlowProgress(flow="sales", time_ms=NOW_MS, seconds=60.0, queries=(QUERY,))
OBJECTIVES = Objectives(late_share=0.01, dead_letter_share=0.01, latency_p99_ms=50, fresh_s=60)


def _result(name: str, run: FlowProgress | None, now_ms: int = NOW_MS) -> ObjectiveResult:
    return next(result for result in evaluate_objectives(run, now_ms, OBJECTIVES) if result.name == name)


@pytest.mark.parametrize(
    ("query", "name", "passed"),
    [
        (replace(QUERY, late=6, dropped=4), "late_share", True),
        (replace(QUERY, late=6, dropped=5), "late_share", False),
        (replace(QUERY, dead_letters=10), "dead_letter_share", True),
        (replace(QUERY, dead_letters=11), "dead_letter_share", False),
        (replace(QUERY, rows_in=0, dead_letters=1), "dead_letter_share", False),
        (replace(QUERY, rows_in=0), "dead_letter_share", True),
    ],
    ids=["late", "too-late", "refused", "too-many-refused", "all-refused", "nothing-read"],
)
def test_share_may_be_what_is_allowed_and_not_more(query: QueryProgress, name: str, passed: bool) -> None:
    """A share equal to the limit passes; dropped records count as late."""
    assert _result(name, replace(RUN, queries=(query,))).passed is passed


def test_share_is_that_of_the_worst_query() -> None:
    """A query that loses much is not hidden by one that reads much."""
    good = replace(QUERY, name="good", rows_in=1_000_000)
    result = _result("late_share", replace(RUN, queries=(good, replace(QUERY, dropped=500))))

    assert not result.passed
    assert result.description == "500 of 1,000 records of query `out` (50.000%)"


@pytest.mark.parametrize(
    ("p99_ms", "passed"), [(50.0, True), (50.1, False), (None, True)], ids=["held", "missed", "unknown"]
)
def test_latency_is_that_of_the_slowest_pair(p99_ms: float | None, passed: bool) -> None:
    """It is the maximum over all sources and sinks."""
    fast = LatencyProgress(source="bids", sink="fast", markers=60, p99_ms=1.0)
    run = replace(RUN, latencies=(fast, replace(fast, sink="slow", p99_ms=p99_ms)))

    assert _result("latency", run).passed is passed


@pytest.mark.parametrize(
    ("run", "now_ms", "passed"),
    [
        (RUN, NOW_MS + 60_000, True),
        (RUN, NOW_MS + 60_001, False),
        (RUN, NOW_MS - 5_000, True),
        (replace(RUN, state="ended"), NOW_MS, True),
        (replace(RUN, state="failed", error="boom"), NOW_MS, False),
        (None, NOW_MS, False),
    ],
    ids=["in-time", "stale", "clock-behind", "slice-ended", "failed", "never"],
)
def test_freshness_is_the_time_since_the_last_progress(
    run: FlowProgress | None, now_ms: int, passed: bool
) -> None:
    """An ended slice was fresh at its end; a failed run is not fresh."""
    assert _result("fresh", run, now_ms).passed is passed


@pytest.mark.parametrize("latency", [None, 50.0], ids=["without", "with"])
def test_each_declared_check_gets_a_result(latency: float | None) -> None:
    """Latency has a check only if it has an objective."""
    objectives = Objectives(latency_p99_ms=latency)

    assert [result.name for result in evaluate_objectives(RUN, NOW_MS, objectives)] == list(
        check_descriptions(objectives)
    )


counts = st.integers(0, 10_000)


@given(rows=counts, late=counts, dropped=counts, bad=counts, limit=st.floats(0, 1))
def test_share_is_between_0_and_1(rows: int, late: int, dropped: int, bad: int, limit: float) -> None:
    """The share is within 0 and 1, and passes exactly if it is at most the limit."""
    query = replace(QUERY, rows_in=rows, late=late, dropped=dropped, dead_letters=bad)
    objectives = Objectives(late_share=limit, dead_letter_share=limit)
    for result in evaluate_objectives(replace(RUN, queries=(query,)), NOW_MS, objectives)[:2]:
        assert result.found is None or 0 <= result.found <= 1
        assert result.passed == ((result.found or 0.0) <= limit)


@pytest.mark.parametrize(
    ("sinks", "count"),
    [((None,), 1), (("central:1",), 2), (("central:1", "central:1"), 2), (("central:1", "other:1"), 6)],
    ids=["one-broker", "another", "once", "two-others"],
)
def test_dead_letters_are_counted_where_they_are_written(
    sinks: tuple[str | None, ...], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries write them to the broker of their sinks, and several queries may read one topic."""
    written = {"local:1": 1, "central:1": 2, "other:1": 4}
    plans = []
    for number, servers in enumerate(sinks):
        flow = Flow(f"f{number}")
        flow.read("in", KafkaTopic("in", schema="id BIGINT")).write("out", KafkaTopic("out", servers=servers))
        plans.append(plan_flow(flow))
    monkeypatch.setattr(stream_checks, "partition_counts", lambda _, topics: dict.fromkeys(topics, 1))
    monkeypatch.setattr(stream_checks, "offsets_at", lambda *_: {0: 10})
    monkeypatch.setattr(stream_checks, "end_offsets", lambda servers, _: {0: 10 + written[servers]})

    (quiet,) = stream_checks.build_dead_letter_checks(
        each for plan in plans for each in topics_with_dead_letters(plan)
    )
    results: Any = quiet(FlowcoreResource(kafka=KafkaResource(bootstrap_servers="local:1")))
    (result,) = results

    assert isinstance(result, AssetCheckResult)
    assert not result.passed
    assert result.description == f"{count} messages of topic `in` became dead letters in the last hour"
