"""The flows of Nexmark write the answers of DuckDB, each result under one id, over kills and restarts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowcore.kafka.topics import end_offsets, ensure_topics
from flowcore.planner import plan_flow
from flowcore.spark.run.flow import open_context
from flowcore.spark.run.live_stage import LiveRun
from flowcore.spark.run.live_topics import prepare_topics
from pipelines.nexmark.answers import BY_CLOCK, QUERIES, Answer, check_answer, check_folder, load_query
from pipelines.nexmark.events import PARTITIONS, Tables, feed_events, result_topic
from pipelines.nexmark.generator import NexmarkConfig
from tests.kafka.conftest import Live
from tests.kafka.driver import driver_settings, kill_driver, report_running
from tests.sampling import sample

pytestmark = pytest.mark.kafka

EVENTS = 20_000
CONFIG = NexmarkConfig(inter_event_delay_us=4_000)
"""80 seconds of event time, so that there are several windows of 10 seconds."""
CHAINED = "q4", "q5", "q7"
BATCH_BIDS = 500
SEED = 20


@pytest.fixture(scope="module")
def events(kafka: str) -> Tables:
    """The events, in their topics on the shared broker."""
    return feed_events(kafka, CONFIG, EVENTS)


@pytest.mark.parametrize("query", sample(QUERIES, "q2", "q5", "q10", "q12", "q20"))
def test_results_are_duckdbs(live: Live, events: Tables, query: str) -> None:
    """A slice writes each result once; windows of the clock end when their time has passed."""
    live.run(load_query(query))
    if query in BY_CLOCK:
        live.run(load_query(query), "micro-batch", _until_right(live, events, query))

    answer = _check(live, events, query)
    assert answer.right
    assert answer.repeats == 0


def _until_right(
    live: Live, events: Tables, query: str, since: Mapping[int, int] | None = None
) -> Callable[[LiveRun], object]:
    def wait(run: LiveRun) -> None:
        end = time.monotonic() + 300
        while not (answer := check_answer(query, events, live.servers, since)).right:
            assert time.monotonic() < end, answer
            run.wait(0.5)

    return wait


def _check(live: Live, events: Tables, query: str) -> Answer:
    if load_query(query).sinks[0].topic is None:
        return check_folder(query, events, live.settings.data_dir)
    return check_answer(query, events, live.servers)


def drive(servers: str, state: str, mode: Any, *queries: str) -> None:
    """Run queries in small batches, until this process is killed."""
    data = {"data.dir": str(Path(state).parent)}
    settings = driver_settings(servers, state, batch_records=BATCH_BIDS, **data)
    plans = [plan_flow(load_query(query), mode, settings) for query in queries]
    with open_context(plans[0], settings) as context, ExitStack() as runs:
        for plan in plans:
            prepare_topics(plan, settings)
            runs.enter_context(LiveRun(plan, replace(context, flow=plan.flow)))
        report_running()
        time.sleep(600)


@pytest.mark.thorough
def test_results_are_duckdbs_after_kills_and_in_other_modes(live: Live, events: Tables) -> None:
    """Two drivers are killed at random moments; each run continues in the other mode, the last completes.

    The results are written after those of another test, under the same ids: a reader drops both repeats.
    """
    moments = random.Random(SEED)  # noqa: S311 - test data
    written = []
    for mode in ("micro-batch", "slice"):
        batches, after_s = moments.randint(1, 8), moments.random()
        kill_driver(drive, live, mode, *CHAINED, batches=batches, after_s=after_s)
        written.append(sum(_records(live, query) for query in CHAINED))
    for query in CHAINED:
        live.run(load_query(query), "slice")

    found = {query: check_answer(query, events, live.servers) for query in CHAINED}
    assert all(answer.right for answer in found.values()), found
    assert written[0] < sum(_records(live, query) for query in CHAINED)  # the first kill was not too late


@pytest.mark.thorough
def test_folders_have_each_bid_once_after_kills(live: Live, events: Tables) -> None:
    """What a killed batch has written is not in the log of the folder, and is written again."""
    moments = random.Random(SEED)  # noqa: S311 - test data
    written = []
    for mode in ("micro-batch", "slice", "micro-batch"):
        batches, after_s = moments.randint(1, 6), moments.random()
        kill_driver(drive, live, mode, "q10", batches=batches, after_s=after_s)
        written.append(_check(live, events, "q10"))
    assert [answer.unexpected for answer in written] == [0, 0, 0]
    assert written[0].missing > written[1].missing > 0  # the kills were not too late
    live.run(load_query("q10"), "slice")

    assert _check(live, events, "q10").right


@pytest.mark.thorough
def test_windows_of_the_clock_count_each_bid_once_after_a_kill(live: Live, events: Tables) -> None:
    """The driver is killed while windows are open; the bids of a repeated batch are in them once."""
    topic = result_topic("q12").name
    ensure_topics(live.servers, {topic: PARTITIONS})
    since = end_offsets(live.servers, topic)
    kill_driver(drive, live, "micro-batch", "q12", batches=3, after_s=0.2)
    live.run(load_query("q12"), "slice")

    live.run(load_query("q12"), "micro-batch", _until_right(live, events, "q12", since))


def _records(live: Live, query: str) -> int:
    return sum(end_offsets(live.servers, result_topic(query).name).values())
