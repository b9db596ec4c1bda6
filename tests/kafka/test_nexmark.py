"""The flows of Nexmark write the answers of DuckDB, each result under one id, over kills and restarts."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from flowcore.kafka.topics import end_offsets
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.run.flow import open_context
from flowcore.spark.run.live_stage import LiveRun
from flowcore.spark.run.live_topics import prepare_topics
from pipelines.nexmark.answers import QUERIES, check_answer, load_query
from pipelines.nexmark.events import Tables, feed_events, result_topic
from pipelines.nexmark.generator import NexmarkConfig
from tests.kafka.conftest import Live

pytestmark = pytest.mark.kafka

EVENTS = 20_000
CONFIG = NexmarkConfig(inter_event_delay_us=4_000)
"""80 seconds of event time, so that there are several windows of 10 seconds."""
CHAINED = "q5", "q7"
BATCH_BIDS = 500
SEED = 20
DRIVER = "import sys; from tests.kafka.test_nexmark import drive; drive(*sys.argv[1:])"


@pytest.fixture(scope="module")
def events(kafka: str) -> Tables:
    """The events, in their topics on the shared broker."""
    return feed_events(kafka, CONFIG, EVENTS)


@pytest.mark.parametrize("query", QUERIES)
def test_results_are_duckdbs(live: Live, events: Tables, query: str) -> None:
    """A slice writes each result once."""
    live.run(load_query(query))

    answer = check_answer(query, events, live.servers)
    assert answer.right
    assert answer.repeats == 0


def drive(servers: str, state: str, mode: Any) -> None:
    """Run the queries that keep state in small batches, until this process is killed."""
    settings = Settings.of(
        {
            "kafka.bootstrap.servers": servers,
            "state.dir": state,
            "execution.short-lived": "true",
            "execution.max-records-per-batch": BATCH_BIDS,
        },
        environment={},
    )
    plans = [plan_flow(load_query(query), mode, settings) for query in CHAINED]
    with open_context(plans[0], settings) as context, ExitStack() as runs:
        for plan in plans:
            assert plan.live
            prepare_topics(plan.live, settings)
            runs.enter_context(LiveRun(plan, replace(context, flow=plan.flow)))
        print("running", flush=True)  # noqa: T201 - the test waits for this line
        time.sleep(600)


def test_results_are_duckdbs_after_kills_and_in_other_modes(live: Live, events: Tables) -> None:
    """Three drivers are killed at random moments; each run continues in the other mode, the last completes.

    The results are written after those of another test, under the same ids: a reader drops both repeats.
    """
    moments = random.Random(SEED)  # noqa: S311 - test data
    folder = str(live.settings.state_dir)
    written = []
    for mode in ("micro-batch", "slice", "micro-batch"):
        command = [sys.executable, "-c", DRIVER, live.servers, folder, mode]
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as driver:
            assert driver.stdout is not None
            assert driver.stdout.readline() == b"running\n"
            time.sleep(moments.uniform(3, 10))
            os.killpg(driver.pid, signal.SIGKILL)
        written.append(sum(_records(live, query) for query in CHAINED))
    for query in CHAINED:
        live.run(load_query(query), "slice")

    found = {query: check_answer(query, events, live.servers) for query in CHAINED}
    assert all(answer.right for answer in found.values()), found
    assert written[0] < sum(_records(live, query) for query in CHAINED)  # the first kill was not too late


def _records(live: Live, query: str) -> int:
    return sum(end_offsets(live.servers, result_topic(query).name).values())
