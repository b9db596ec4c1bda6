"""A run whose Python is stopped emits nothing after another process may have begun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic
from flowcore.spark.checkpoint.lease import STALE_S
from tests.waiting import LONGEST_S

pytestmark = pytest.mark.kafka

Live = Any
RUNNING = """
import sys
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.run.flow import open_context
from flowcore.spark.run.live_stage import LiveRun
from tests.kafka.test_fence import copy

servers, state, source, out = sys.argv[1:]
values = {"kafka.bootstrap.servers": servers, "state.dir": state, "execution.short-lived": "true"}
settings = Settings.of(values, environment={})
plan = plan_flow(copy(source, out), "micro-batch", settings)
with open_context(plan, settings) as context, LiveRun(plan, context) as run:
    while not run.wait(0.1):
        pass
"""


def copy(source: str, out: str) -> Flow:
    """A flow that emits what it reads."""
    flow = Flow("f")
    flow.read("bids", KafkaTopic(source, schema="id BIGINT")).write("out", KafkaTopic(out))
    return flow


def test_stopped_driver_emits_nothing_after_its_leases_are_stale(live: Live) -> None:
    """The JVM goes on until the deadline; the run then ends with an error."""
    bids, out = live.topic("bids"), live.topic("out")
    live.send(bids, {"id": 0})
    live.send(out)
    command = [sys.executable, "-c", RUNNING, live.servers, str(live.settings.state_dir), bids.name, out.name]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as driver:
        try:
            deadline = time.monotonic() + 300
            while not live.records(out):
                assert time.monotonic() < deadline, "the query did not start"
                time.sleep(0.3)
            os.kill(driver.pid, signal.SIGSTOP)
            stopped, seen = time.monotonic(), []
            for until_s in (15.0, STALE_S, STALE_S + 8):
                while time.monotonic() < stopped + until_s:
                    live.send(bids, {"id": 1})
                    time.sleep(0.3)
                seen.append(len(live.records(out)))
            os.kill(driver.pid, signal.SIGCONT)
            _, error = driver.communicate(timeout=LONGEST_S)
        finally:
            with suppress(ProcessLookupError):  # all have ended
                os.killpg(driver.pid, signal.SIGKILL)

    assert 1 < seen[0] < seen[1] == seen[2]
    assert "were not renewed for 25 s" in error
