"""A query that joins what is committed runs while another stage still does; none joins what is not."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowcore import Flow, Parquet, from_frame
from flowcore.errors import RunError
from flowcore.kafka.broker import free_port
from flowcore.metrics.history import history_folder, last_progress
from flowcore.planner import plan_flow
from flowcore.spark.context import Context
from flowcore.spark.run.flow import SilentListener, run_plan
from flowcore.spark.run.live_topics import prepare_topics

pytestmark = pytest.mark.kafka

Live = Any


def _held(folder: Path) -> Callable[[Any], Any]:
    """A table that is not complete before a file is there."""

    def wait(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        (folder / "held").touch()
        deadline = time.monotonic() + 300
        while not (folder / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield from frames

    return lambda spark: spark.range(0, 3, 1, 1).toDF("id").mapInPandas(wait, "id BIGINT")


@pytest.fixture
def flow(live: Live, tmp_path: Path) -> Flow:
    """Two streams: one joins a table that is there soon, the other one that is held."""
    (tmp_path / "soon").mkdir()
    pq.write_table(pa.table({"id": [0, 1, 2]}), tmp_path / "soon" / "p.parquet")
    live.bids, live.asks = live.topic("bids", schema="id BIGINT"), live.topic("asks", schema="id BIGINT")
    live.early, live.late = live.topic("early"), live.topic("late")
    for topic in (live.bids, live.asks):
        live.send(topic, *({"id": number} for number in range(3)))
    flow = Flow("f")
    soon = flow.read("soon", Parquet("soon", schema="id BIGINT"))
    held = flow.read("held", from_frame(_held(tmp_path), "id BIGINT"))
    flow.read("bids", live.bids).join(soon, on="id").write("early", live.early)
    flow.read("asks", live.asks).join(held, on="id").write("late", live.late)
    return flow


def _run(flow: Flow, live: Live, mode: Any, errors: list[BaseException]) -> threading.Thread:
    plan = plan_flow(flow, mode, live.settings)
    context = Context(live.spark, live.settings, flow.name)
    if plan.live:
        prepare_topics(plan.live, live.settings)

    def run() -> None:
        try:
            run_plan(plan, context, refresh=False, listener=SilentListener())
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def _told(live: Live) -> dict[str, tuple[str, bool]]:
    """Mode and liveness of each query at the last look at the run."""
    last = last_progress(history_folder(live.settings.state_dir, "f"))
    return {query.name: (query.mode, query.active) for query in last.queries} if last else {}


def _wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("hand_over", ["pipelined", "whole"])
def test_query_runs_while_a_stage_does_that_it_does_not_join(
    hand_over: str, flow: Flow, live: Live, tmp_path: Path
) -> None:
    """The early stream is joined before the held table is there if it is asked for, and not else."""
    live.settings = replace(
        live.settings,
        result_visibility=hand_over,
        metrics_interval=timedelta(milliseconds=200),
        prometheus_port=free_port(),  # one for the run, however many starts it has
    )
    errors: list[BaseException] = []
    thread = _run(flow, live, "slice", errors)
    try:
        committed = live.settings.state_dir / "f" / "results" / "soon" / "manifest.json"
        _wait_for(lambda: committed.exists() and (tmp_path / "held").exists())
        if hand_over == "pipelined":
            _wait_for(lambda: len(live.values(live.early)) == 3)
            _wait_for(lambda: _told(live).get("asks") == ("waiting", True))
        early = live.values(live.early)
        assert not live.values(live.late)
    finally:
        (tmp_path / "go").touch()
        thread.join(300)

    assert not errors
    assert len(early) == (3 if hand_over == "pipelined" else 0)
    for topic in (live.early, live.late):
        assert sorted(value["id"] for value in live.values(topic)) == [0, 1, 2]
    assert _told(live) == {"bids": ("slice", False), "asks": ("slice", False)}


def test_query_that_fails_ends_the_stage_beside_it(flow: Flow, live: Live, tmp_path: Path) -> None:
    """What was handed over early is no reason to let the rest run on alone: it ends at once, uncommitted."""
    live.settings = replace(live.settings, result_visibility="pipelined")
    live.bids = replace(live.bids, on_error="fail")
    failing = Flow("f")
    soon = failing.read("soon", Parquet("soon", schema="id BIGINT"))
    held = failing.read("held", from_frame(_held(tmp_path), "id BIGINT"))
    failing.read("bids", live.bids).join(soon, on="id").write("early", live.early)
    failing.read("asks", live.asks).join(held, on="id").write("late", live.late)
    live.send(live.bids, b"garbage")
    errors: list[BaseException] = []

    thread = _run(failing, live, "micro-batch", errors)
    thread.join(300)

    assert not thread.is_alive()
    (error,) = errors
    assert isinstance(error, RunError)
    assert "query 'bids'" in str(error)
    last = last_progress(history_folder(live.settings.state_dir, "f"))
    assert last is not None
    assert (last.state, last.error) == ("failed", str(error))
    assert not (live.settings.state_dir / "f" / "results" / "held" / "manifest.json").exists()
    del flow
