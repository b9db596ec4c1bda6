"""A live run that Dagster did not start reports to its webserver, like one that Dagster started."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dagster.dagster_ui import PROJECT, Ui, serve

pytestmark = pytest.mark.dagster


@pytest.fixture
def webserver(tmp_path: Path) -> Iterator[Ui]:
    """A webserver with the project's assets."""
    home = tmp_path / "home"
    home.mkdir()
    with serve(home, tmp_path / "state", {}) as ui:
        yield ui


@pytest.mark.thorough
def test_a_run_from_the_command_line_is_seen_in_dagster(webserver: Ui, auctions: Any) -> None:
    """Its numbers have the keys of a run that Dagster starts; the last report is its end."""
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
