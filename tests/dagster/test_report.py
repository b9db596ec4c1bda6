"""A live run that Dagster did not start reports to its webserver, and looks there as if it had."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowcore.kafka.broker import free_port
from tests.dagster.test_web import PROJECT, Ui, _answers, wait_until

pytestmark = pytest.mark.dagster


@pytest.fixture
def webserver(tmp_path: Path) -> Iterator[Ui]:
    """A webserver with the project's assets."""
    home, port = tmp_path / "home", free_port()
    home.mkdir()
    shutil.copy(PROJECT / "deploy/dagster.yaml", home)
    command = [Path(sys.executable).parent / "dagster-webserver", "-p", str(port), "-w", "workspace.yaml"]
    with (home / "webserver.log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=PROJECT, env=os.environ | {"DAGSTER_HOME": str(home)}, stdout=log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        ui = Ui(port, tmp_path / "state")
        wait_until(lambda: _answers(port), "the webserver answers")
        wait_until(ui.loaded, "the definitions are loaded")
        yield ui
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=60)


def test_a_run_from_the_command_line_is_seen_in_dagster(webserver: Ui, auctions: Any) -> None:
    """Its numbers have the keys of a run that Dagster starts; the last report tells its end."""
    settings = {
        **auctions.settings(webserver.state),
        "metrics.interval": "1 s",
        "metrics.dagster.url": f"http://127.0.0.1:{webserver.port}",
    }
    given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    done = subprocess.run(
        ["flowcore", "run", "pipelines.auctions.flow:flow", "--slice", *given],
        cwd=PROJECT, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    reports = webserver.materializations("auctions", "live", run="")
    assert [report["state"] for report in reports] == ["ended", *["running"] * (len(reports) - 1)]
    assert len(reports) >= 2
    assert reports[0]["bids/records"] == reports[0]["highest/records"] == auctions.bids
    assert reports[0]["bids/mode"] == "slice"
    assert reports[0]["bids/lag"] == 0
