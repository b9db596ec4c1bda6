"""A stream that waits for its bounded stage uses no memory, disk or connection."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """The benchmark's report for a small input, with records waiting in the topic."""
    command = [sys.executable, "-m", "flowcore.cli.main", "bench", "waiting", "--json"]
    quick = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}  # compiles quickly instead of well
    done = subprocess.run(
        [*command, "--records", "20000", "--pending", "2000"],
        capture_output=True, text=True, check=False, timeout=560, cwd=Path(__file__).parents[2],
        env=os.environ | quick,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("what", ["memory_bytes", "disk_bytes", "queries", "connections", "checkpoint_files"])
def test_waiting_stream_uses_no_resources(what: str, report: dict[str, Any]) -> None:
    """Before the commit the flow uses what its bounded stage alone uses; with the stream it uses more."""
    assert report[f"waiting_{what}"] == 0
    assert report["whole"][f"running_{what}"] > report["alone"][what]


def test_waiting_stream_runs_afterwards(report: dict[str, Any]) -> None:
    """The same run joins the records that waited in the topic."""
    assert report["verified"] == "2,000 records joined by the same run afterwards"
