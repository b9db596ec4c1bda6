"""A query whose Python process is slow to start, as on a busy machine, starts again by itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowcore import Flow, Tumbling
from flowcore.watermarks import monotonous
from tests.kafka.conftest import Live

if TYPE_CHECKING:
    from flowcore.spark.run.live_stage import LiveRun

pytestmark = pytest.mark.kafka

SLOW_FIRST = """#!/bin/sh
case "$*" in
  *driver_worker*) [ -e "{seen}" ] || {{ touch "{seen}"; sleep 12; }} ;;
esac
exec "{python}" "$@"
"""


@pytest.mark.thorough
def test_query_is_started_again_if_a_python_process_was_slow(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark fails the query after ten seconds; the second start processes each record once."""
    python, seen = tmp_path / "python", tmp_path / "seen"
    python.write_text(SLOW_FIRST.format(seen=seen, python=sys.executable))
    python.chmod(0o755)
    monkeypatch.setattr(live.spark.sparkContext, "pythonExec", str(python))
    schema = "auction BIGINT, at BIGINT"
    bids = live.topic("bids", schema=schema, event_time="at", watermark=monotonous())
    counts = live.topic("counts")
    flow = Flow("slow")
    counted = flow.read("bids", bids).window(Tumbling(2), by="auction").aggregate(n="count(*)")
    counted.write("counts", counts)
    live.send(bids, *({"auction": 1, "at": at} for at in (0, 1, 5000)))
    notes: list[str] = []

    def finish(run: LiveRun) -> None:
        assert run.wait(120)
        notes.extend(switch.reason for switch in run.health().switches)

    live.run(flow, "slice", finish)

    assert seen.exists()
    assert {*notes} == {"a Python process was slow to start: the query starts again"}
    assert [row["n"] for row in live.values(counts)] == [2]
