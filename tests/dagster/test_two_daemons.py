"""Two daemons of Dagster over one instance, as after a deployment that left the former one: one writer.

Dagster does not support two: both may launch one run, or start runs of one pool at the same time, and some of
these fail. Leases still let one of them write.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster_ui import Ui, serve

from flowcore.kafka.topics import ensure_topics
from pipelines.auctions import verify
from pipelines.auctions.readers import read_values
from pipelines.nexmark.feed import feed
from pipelines.nexmark.generator import NexmarkConfig, live_bids
from tests.waiting import wait_until

pytestmark = [pytest.mark.dagster, pytest.mark.thorough]

JOB = "auctions_live"
NOT_ENDED = "QUEUED", "STARTING", "STARTED", "CANCELING"
TRIES = 3
LIVE = {"ops": {"auctions__live": {"config": {"mode": "micro-batch", "heartbeat_seconds": 1.0}}}}
MORE_BIDS = 500
LONGEST_S = 300.0


@pytest.fixture(scope="module")
def ui(auctions: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    """A webserver and two daemons."""
    home, state = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("state")
    with serve(home, state, auctions.settings(state), daemons=2) as served:
        yield served


def test_one_run_writes_and_one_takes_over_when_it_is_killed(ui: Ui, auctions: Any) -> None:
    """Two launches write each bid once; both daemons see a killed worker, and later bids are written too."""
    ensure_topics(auctions.servers, {"enriched-bids": 2})
    _compute_history(ui)
    launched = [ui.launch(JOB, LIVE) for _ in range(2)]
    wait_until(lambda: _compare(auctions, 0).nothing_lost_or_wrong, "all bids are enriched", LONGEST_S)
    wait_until(lambda: len(_alive(ui, "STARTED")) == 1, "one of the runs is left", LONGEST_S)
    assert {run["id"] for run in ui.runs(JOB)} >= {*launched}
    assert _compare(auctions, 0).exact
    (jvm,) = ui.jvms()
    os.kill(_parent_of(jvm), signal.SIGKILL)
    _feed(auctions, 0)
    wait_until(lambda: _compare(auctions, 1).nothing_lost_or_wrong, "a later run writes", LONGEST_S)
    while alive := _alive(ui, *NOT_ENDED):
        for run in alive:
            ui.terminate(run)
        wait_until(lambda alive=alive: not {*alive} & {*_alive(ui, *NOT_ENDED)}, "the runs end", LONGEST_S)


def _compute_history(ui: Ui) -> None:
    """Let a run compute the result of the history; one that both daemons launch may fail."""
    for _ in range(TRIES):
        run = ui.launch("auctions_history")
        wait_until(lambda run=run: ui.run(run)["status"] in ("SUCCESS", "FAILURE"), "the run ends", LONGEST_S)
        if ui.run(run)["status"] == "SUCCESS":
            return
    pytest.fail(f"none of {TRIES} runs has computed the result of the history")


def _alive(ui: Ui, *statuses: str) -> list[str]:
    return [run["id"] for run in ui.runs(JOB) if run["status"] in statuses]


def _parent_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("PPid:")).split()[1])


def _feed(auctions: Any, times: int) -> None:
    bids = live_bids(NexmarkConfig(), auctions.events, auctions.bids + times * MORE_BIDS, MORE_BIDS)
    feed(auctions.servers, "bids", [bids])


def _compare(auctions: Any, times: int) -> verify.Comparison:
    """The output against all bids, and so many times more."""
    sent = live_bids(NexmarkConfig(), auctions.events, 0, auctions.bids + times * MORE_BIDS)
    expected = verify.expected_enriched(auctions.data / "history", sent)
    values = list(read_values(auctions.servers, "enriched-bids"))
    return verify.compare_enriched(expected, verify.rows_from_json(values, verify.ENRICHED))
