"""A slice of three records in a process of its own, which says when each phase of its start has ended.

``python -m tests.benchmarks._start_phases KIND SERVERS FOLDER BEGAN`` prints a JSON object with seconds since
``BEGAN``, the time at which it was started.
"""

# Imports are a phase of their own, so they are measured.
# ruff: noqa: E402, PLC0415
from __future__ import annotations

import time

_AT_FIRST_IMPORT = time.time()

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowcore import Flow
    from flowcore.planner.plan import Plan

__all__ = ["INPUT", "KINDS", "OUTPUT"]

KINDS = ("without state", "a window")
INPUT, OUTPUT = "start-in", "start-out"


def _flow(kind: str) -> Flow:
    from flowcore import Flow, KafkaTopic
    from flowcore.watermarks import monotonous
    from flowcore.windows import TumblingWindows

    flow = Flow("start")
    schema = "key STRING, at TIMESTAMP"
    read = flow.read("in", KafkaTopic(INPUT, schema=schema, event_time="at", watermark=monotonous()))
    if kind != KINDS[0]:
        read = read.window(TumblingWindows(1_000), by="key").aggregate(records="count(*)")
    read.write("out", KafkaTopic(OUTPUT))
    return flow


def main() -> None:
    """Run the slice, and print its phases."""
    kind, servers, folder, began = sys.argv[1:]
    began_s = float(began)
    ends: dict[str, float] = {}

    def mark(phase: str) -> None:
        ends[phase] = time.time() - began_s

    ends["interpreter"] = _AT_FIRST_IMPORT - began_s
    from flowcore.planner import plan_flow
    from flowcore.settings import Settings
    from flowcore.spark.run import session
    from flowcore.spark.run.flow import SilentListener, open_context
    from flowcore.spark.run.live_stage import LiveRun

    mark("imports")

    class Listener(SilentListener):
        def planned(self, plan: Plan) -> None:  # noqa: ARG002 - only when counts
            mark("plan, checkpoints, topics")

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> None:
            mark("jars and class path")
            function(*arguments)
            mark("JVM")

        return run

    vars(session)["start_jvm"] = timed(vars(session)["start_jvm"])
    settings = Settings.of({"kafka.bootstrap.servers": servers, "state.dir": Path(folder)}, environment={})
    plan = plan_flow(_flow(kind), "slice", settings)
    with open_context(plan, settings, Listener()) as context:
        mark("Spark session")
        with LiveRun(plan, context) as run:
            mark("compile, start of the query")
            run.wait()
            (query,) = run.running.values()
            (batch,) = [each for each in query.recentProgress if each.numInputRows]
            parts = dict(batch.durationMs)
        mark("slice")
    mark("stop")
    sys.stdout.write(json.dumps({"ends": ends, "batch_ms": parts}))


if __name__ == "__main__":
    main()
