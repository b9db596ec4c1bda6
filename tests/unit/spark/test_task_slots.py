"""The task slots that a plan needs; a run waits for those of a cluster, and reports missing ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flowcore import Flow, KafkaTopic
from flowcore.errors import RunError
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.run.task_slots import await_slots, slots_needed

SHOP = "shop STRING"


@pytest.mark.parametrize(
    ("mode", "interval", "slots"),
    [
        (None, "0", 3 + 1),
        (None, "1 s", 2 * 3 + 1),
        ("slice", "0", min(3, 2 * (os.cpu_count() or 1))),
    ],
    ids=["realtime", "realtime-with-markers", "slice"],
)
def test_realtime_query_holds_a_slot_for_each_partition(
    mode: str, interval: str, slots: int, tmp_path: Path
) -> None:
    """Companion topics have as many partitions; one more slot is for Spark's own jobs."""
    topic = KafkaTopic("bids", schema=SHOP)
    flow = Flow("f")
    flow.read("bids", topic).write("out", KafkaTopic("out"))
    settings = Settings.of({"metrics.latency.interval": interval, "state.dir": tmp_path}, environment={})

    assert slots_needed(plan_flow(flow, mode, settings), settings, {topic: 3}) == slots  # type: ignore[arg-type]


def test_function_of_the_whole_frame_has_no_companion_topics(tmp_path: Path) -> None:
    """It would get the markers as records. Its dead letters leave through a query of their own."""
    topic = KafkaTopic("bids", schema=SHOP)
    flow = Flow("f")
    flow.read("bids", topic).apply(lambda frame: frame).write("out", KafkaTopic("out"))
    settings = Settings.of({"metrics.latency.interval": "1 s", "state.dir": tmp_path}, environment={})

    assert slots_needed(plan_flow(flow, "slice", settings), settings, {topic: 1}) == 2


def test_run_waits_for_slots_that_register_one_by_one() -> None:
    """Executors register after the session has started."""
    there = iter([0, 2, 4])

    await_slots(4, lambda: next(there), "spark://host:7077", patience_s=60)

    assert next(there, None) is None


def test_missing_slots_end_the_run() -> None:
    """A real-time query would otherwise wait forever without a message."""
    with pytest.raises(RunError, match=r"spark://host:7077 has 2 task slots .* hold 5 .*--mode micro-batch"):
        await_slots(5, lambda: 2, "spark://host:7077", patience_s=0)
