"""`deploy/demo --ui` leaves the Dagster UI running until a person ends it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import requests
from dagster_graphql import DagsterGraphQLClient
from rich.console import Console

from pipelines.auctions.ui import serve_ui

pytestmark = pytest.mark.dagster


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of dagster-graphql's own use of gql
def test_ui_launches_the_stream_and_ends_with_it(
    auctions: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address that is printed answers, and no other; the live run is there, and afterwards nothing is."""
    for key, value in auctions.settings(tmp_path).items():
        monkeypatch.setenv("FLOWCORE_" + re.sub("[.-]", "_", key).upper(), str(value))
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    console = Console(record=True, width=200)

    with serve_ui(console):
        ((port, path),) = re.findall(r"http://127\.0\.0\.1:(\d+)(/[\w-]{32,})", console.export_text())
        assert requests.get(f"http://127.0.0.1:{port}{path}/server_info", timeout=30).ok
        guess = f"http://127.0.0.1:{port}/graphql"
        query = {"query": "mutation { wipeAssets(assetPartitionRanges: []) { __typename } }"}
        assert requests.get(guess, params=query, timeout=30).status_code == requests.codes.not_found
        client = DagsterGraphQLClient(f"127.0.0.1:{port}{path}")
        (run,) = client._execute("{ runsOrError { ... on Runs { results { pipelineName } } } }")[
            "runsOrError"
        ]["results"]
        assert run["pipelineName"] == "auctions_live"

    with pytest.raises(requests.ConnectionError):
        requests.get(f"http://127.0.0.1:{port}/server_info", timeout=5)
    found = subprocess.run(["pgrep", "-f", f"dagster.*{port}"], capture_output=True, check=False)
    assert found.stdout == b""
