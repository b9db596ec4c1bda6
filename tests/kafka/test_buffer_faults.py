"""Buffers whose driver or Python workers are killed lose nothing and send nothing out of order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from flowcore import Flow, KafkaTopic
from flowcore.errors import RunError
from flowcore.spark.live import LiveRun
from tests.kafka.conftest import Live
from tests.kafka.test_live_buffers import BID, Top, wait_for
from tests.kafka.test_window_faults import workers

KEYS = 7
FLOW = """
import sys
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.live import LiveRun
from flowcore.spark.run import open_context
from tests.kafka.test_buffer_faults import tops

servers, state, source, out = sys.argv[1:]
settings = Settings.of(
    {
        "kafka.bootstrap.servers": servers, "state.dir": state, "execution.short-lived": "true",
        "execution.max-records-per-batch": 20,
    },
    environment={},
)
plan = plan_flow(tops(source, out), None, settings)
with open_context(plan, settings) as context, LiveRun(plan, context) as run:
    print("running", flush=True)
    run.wait(240)
"""


def tops(source: str, out: str) -> Flow:
    flow = Flow("tops")
    bids = flow.read("bids", KafkaTopic(source, schema=BID))
    schema = "shop BIGINT, top BIGINT"
    found = bids.process(Top(), schema=schema, by="shop", flush=timedelta(seconds=1), name="highest")
    found.write("tops", KafkaTopic(out))
    return flow


def fill(live: Live, source: KafkaTopic, records: int) -> dict[int, int]:
    """Records of shops whose prices go up and down; the highest of each."""
    rows = [{"shop": n % KEYS, "price": 1 + n * 37 % 1000} for n in range(records)]
    live.send(source, *rows, partitions=2)
    return {shop: max(row["price"] for row in rows if row["shop"] == shop) for shop in range(KEYS)}


def check_order(live: Live, out: KafkaTopic) -> None:
    """Without repeats, which carry the same identity and value, a shop's results only rise."""
    seen: dict[bytes, bytes | None] = {}
    last: dict[int, int] = {}
    for record in live.records(out):
        identity = record.headers["flowcore-id"]
        if identity in seen:
            assert seen[identity] == record.value
            continue
        seen[identity] = record.value
        shop, top = record.json["shop"], record.json["top"]
        assert top >= last.get(shop, 0)
        last[shop] = top


def test_a_killed_driver_sends_the_latest_of_each_key(live: Live, tmp_path: Path) -> None:
    """Killed at three points of its run, which another one brings to its end."""
    source, out = live.topic("bids"), live.topic("tops")
    highest = fill(live, source, 400)
    script = [sys.executable, "-c", FLOW, live.servers, str(tmp_path / "state"), source.name, out.name]
    for seconds in (2.0, 5.0, 9.0):
        with subprocess.Popen(script, stdout=subprocess.PIPE, start_new_session=True) as run:
            assert run.stdout is not None
            run.stdout.readline()
            time.sleep(seconds)
            os.killpg(run.pid, signal.SIGKILL)

    live.run(tops(source.name, out.name), None, until=lambda _: wait_for(live, out, highest))

    check_order(live, out)


def test_a_killed_worker_fails_the_query_and_the_next_run_sends_what_was_held(live: Live) -> None:
    """What stood in its memory is read from the state store."""
    live = type(live)(live.servers, replace(live.settings, max_batch_records=20), live.spark)
    source, out = live.topic("bids"), live.topic("tops")
    highest = fill(live, source, 400)
    flow = tops(source.name, out.name)

    def kill(run: LiveRun) -> None:
        for _ in range(2000):
            for pid in workers(live.settings.state_dir):
                os.kill(pid, signal.SIGKILL)
            if run.wait(0.05):
                return

    with pytest.raises(RunError):
        live.run(flow, None, until=kill)
    live.run(flow, None, until=lambda _: wait_for(live, out, highest))

    check_order(live, out)
