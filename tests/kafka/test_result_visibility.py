"""A query starts once the results it joins are committed, while other stages still run."""

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
from tests.sampling import sample
from tests.waiting import wait_until

pytestmark = pytest.mark.kafka

Live = Any


def _blocked(folder: Path) -> Callable[[Any], Any]:
    """A table that is not complete until the file ``go`` exists."""

    def wait(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        (folder / "held").touch()
        deadline = time.monotonic() + 300
        while not (folder / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield from frames

    return lambda spark: spark.range(0, 3, 1, 1).toDF("id").mapInPandas(wait, "id BIGINT")


@pytest.fixture
def flow(live: Live, tmp_path: Path) -> Flow:
    """Two streams: one joins a table that is ready soon, the other a blocked table."""
    (tmp_path / "soon").mkdir()
    pq.write_table(pa.table({"id": [0, 1, 2]}), tmp_path / "soon" / "p.parquet")
    live.bids, live.asks = live.topic("bids", schema="id BIGINT"), live.topic("asks", schema="id BIGINT")
    live.early, live.late = live.topic("early"), live.topic("late")
    for topic in (live.bids, live.asks):
        live.send(topic, *({"id": number} for number in range(3)))
    flow = Flow("f")
    soon = flow.read("soon", Parquet("soon", schema="id BIGINT"))
    blocked = flow.read("held", from_frame(_blocked(tmp_path), "id BIGINT"))
    flow.read("bids", live.bids).join(soon, on="id").write("early", live.early)
    flow.read("asks", live.asks).join(blocked, on="id").write("late", live.late)
    return flow


def _run(flow: Flow, live: Live, mode: Any, errors: list[BaseException]) -> threading.Thread:
    plan = plan_flow(flow, mode, live.settings)
    context = Context(live.spark, live.settings, flow.name)
    prepare_topics(plan, live.settings)

    def run() -> None:
        try:
            run_plan(plan, context, refresh=False, listener=SilentListener())
        except BaseException as error:  # noqa: BLE001 - the test checks it
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def _reported(live: Live) -> dict[str, tuple[str, bool]]:
    """Mode and activity of each query in the latest progress of the run."""
    last = last_progress(history_folder(live.settings.state_dir, "f"))
    return {query.name: (query.mode, query.active) for query in last.queries} if last else {}


@pytest.mark.parametrize("visibility", sample(["pipelined", "whole"], "pipelined"))
def test_pipelined_query_runs_before_unrelated_stages_end(
    visibility: str, flow: Flow, live: Live, tmp_path: Path
) -> None:
    """With pipelined results the early stream joins before the blocked table is complete, else afterwards."""
    port = free_port()
    live.settings = replace(
        live.settings,
        result_visibility=visibility,
        metrics_interval=timedelta(milliseconds=200),
        prometheus_ports=range(port, port + 1),  # one port for the whole run, also after restarts
    )
    errors: list[BaseException] = []
    thread = _run(flow, live, "slice", errors)
    try:
        committed = live.settings.state_dir / "f" / "results" / "soon" / "manifest.json"
        wait_until(lambda: committed.exists() and (tmp_path / "held").exists())
        if visibility == "pipelined":
            wait_until(lambda: len(live.values(live.early)) == 3)
            wait_until(lambda: _reported(live).get("asks") == ("waiting", True))
        early = live.values(live.early)
        assert not live.values(live.late)
    finally:
        (tmp_path / "go").touch()
        thread.join(300)

    assert not errors
    assert len(early) == (3 if visibility == "pipelined" else 0)
    for topic in (live.early, live.late):
        assert sorted(value["id"] for value in live.values(topic)) == [0, 1, 2]
    assert _reported(live) == {"bids": ("slice", False), "asks": ("slice", False)}


def test_failing_query_cancels_the_running_stage(flow: Flow, live: Live, tmp_path: Path) -> None:
    """If a pipelined query fails, the running stage is cancelled and its result is not committed."""
    live.settings = replace(live.settings, result_visibility="pipelined")
    live.bids = replace(live.bids, on_error="fail")
    failing = Flow("f")
    soon = failing.read("soon", Parquet("soon", schema="id BIGINT"))
    blocked = failing.read("held", from_frame(_blocked(tmp_path), "id BIGINT"))
    failing.read("bids", live.bids).join(soon, on="id").write("early", live.early)
    failing.read("asks", live.asks).join(blocked, on="id").write("late", live.late)
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
