"""A person at the UI: webserver and daemon run as they would, and every click is the UI's GraphQL.

The tests of this module are one session at the UI: history is digested, the live queries are started, a
slice is asked for meanwhile and waits, the live queries are terminated, the slice runs. Then, where it is
asked for, the run worker and the JVM of another live run are killed, and it comes back. Where Chromium is
installed, a browser launches the history and opens the pages.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from browsing import Seen, browsing, chromium
from confluent_kafka import Consumer, TopicPartition
from dagster_ui import CHECKS, LAUNCH, Ui, serve

from flowcore.kafka.topics import end_offsets
from pipelines.nexmark.feed import feed
from pipelines.nexmark.generator import NexmarkConfig, live_batches, live_bids
from pipelines.nexmark.history import write_history
from tests.waiting import wait_until

pytestmark = pytest.mark.dagster

MORE_BIDS = 500
LIVE = {"ops": {"auctions__live": {"config": {"mode": "auto", "heartbeat_seconds": 1.0}}}}
LONG_EVENTS = 5_000_000
needs_browser = pytest.mark.skipif(chromium() is None, reason="Chromium is not installed")


@pytest.fixture(scope="module")
def ui(auctions: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    """Webserver and daemon over one DAGSTER_HOME, as deployed."""
    home, state = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("state")
    with serve(home, state, auctions.settings(state)) as served:
        yield served


@pytest.fixture(scope="module")
def history(ui: Ui) -> str:
    """The run that digested the history."""
    if chromium() is None:
        run = ui.launch("auctions_history")
    else:
        with browsing(ui.port) as browser:
            browser.open("/locations/pipelines/jobs/auctions_history")
            browser.press("Materialize")
            browser.wait_for("Launched run")
            browser.keep("launch")
        run = str(ui.runs("auctions_history")[0]["id"])
    ui.wait_for(run, "SUCCESS")
    return run


@dataclass(frozen=True, slots=True)
class Session:
    """What a person did and saw after the history was digested.

    Attributes:
        live: Id of the live run, which was terminated.
        slice: Id of the run that waited for it.
        beats: Metadata of each beat of the live run, latest first.
        jvms: JVMs of the live run just before, and how many of them were left after it.
        plots: What a browser showed of the live run while it ran, None without one.
    """

    live: str
    slice: str
    beats: list[dict[str, Any]]
    jvms: tuple[int, int]
    plots: Seen | None


@pytest.fixture(scope="module")
def session(ui: Ui, history: str, auctions: Any) -> Session:
    """Live queries started, seen beating, joined by a queued slice, terminated; then the slice runs."""
    assert ui.run(history)["status"] == "SUCCESS"
    live = ui.launch("auctions_live", LIVE)
    ui.wait_for(live, "STARTED")
    wait_until(lambda: _records(ui, live) >= auctions.bids, "a heartbeat counts all bids so far")
    waiting = ui.launch("auctions_slice")
    before, records = len(ui.materializations("auctions", "live", run=live)), _records(ui, live)
    _feed(auctions, 0)
    wait_until(lambda: _records(ui, live) >= records + MORE_BIDS, "a heartbeat counts the later bids")
    wait_until(lambda: len(ui.materializations("auctions", "live", run=live)) >= before + 2, "it beats on")
    assert ui.run(waiting)["status"] == "QUEUED"
    plots = _plots(ui) if chromium() else None
    jvms_live = ui.jvms()
    ui.terminate(live)
    ui.wait_for(live, "CANCELED")
    jvms = (len(jvms_live), len(set(jvms_live) & set(ui.jvms())))
    beats = ui.materializations("auctions", "live", run=live)
    ui.wait_for(waiting, "SUCCESS")
    return Session(live, waiting, beats, jvms, plots)


@pytest.fixture(scope="module")
def killed(ui: Ui, session: Session, auctions: Any) -> list[str]:
    """Live runs: one whose worker was killed, then one whose JVM was, then the last, which was terminated."""
    assert ui.run(session.slice)["status"] == "SUCCESS"
    runs = [ui.launch("auctions_live", LIVE)]
    ui.wait_for(runs[0], "STARTED")
    victims: list[Callable[[int], int]] = [_worker_of, lambda jvm: jvm]
    for number, victim in enumerate(victims, start=1):
        _feed(auctions, number)
        latest = runs[-1]
        wait_until(lambda latest=latest: _records(ui, latest) > 0, "it reads")
        runs.append(_next_after_kill(ui, latest, victim))
    _feed(auctions, len(runs))
    wait_until(lambda: _records(ui, runs[-1]) > 0, "it reads again")
    ui.terminate(runs[-1])
    ui.wait_for(runs[-1], "CANCELED")
    return runs


def _feed(auctions: Any, times: int) -> None:
    """So many more bids, after as many as were fed before."""
    bids = live_bids(NexmarkConfig(), 20_000, auctions.bids + times * MORE_BIDS, MORE_BIDS)
    feed(auctions.servers, "bids", [bids])


def _next_after_kill(ui: Ui, run: str, victim: Callable[[int], int]) -> str:
    """Kill a process of a live run, found by its JVM's id; return the run that is launched again."""
    (jvm,) = ui.jvms()
    os.kill(victim(jvm), signal.SIGKILL)
    wait_until(lambda: ui.runs("auctions_live")[0]["id"] != run, "the live run is launched again")
    latest = str(ui.runs("auctions_live")[0]["id"])
    ui.wait_for(latest, "STARTED")
    return latest


def _worker_of(jvm: int) -> int:
    status = Path(f"/proc/{jvm}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("PPid:")).split()[1])


def _plots(ui: Ui) -> Seen:
    with browsing(ui.port) as browser:
        browser.open("/assets/auctions/live")
        browser.press("Plots")
        browser.wait_for("bids/records_per_second")
        return browser.keep("live-plots")


def _records(ui: Ui, run: str) -> int:
    beats = ui.materializations("auctions", "live", run=run)
    return int(min(beats[0]["bids/records"], beats[0]["highest/records"])) if beats else 0


def test_history_job_shows_its_result(ui: Ui, history: str) -> None:
    """Rows, columns and digest of the table are there for anyone who opens the asset."""
    (metadata,) = ui.materializations("auctions", "catalog", run=history)

    assert metadata["dagster/row_count"] > 0
    assert [column["name"] for column in metadata["dagster/column_schema"]["columns"]] == [
        "auction_id",
        "category",
        "seller",
        "sold",
        "median",
    ]
    assert len(metadata["digest"]) == 64
    assert metadata["duration_s"] > 0


def test_history_job_shows_its_check(ui: Ui, history: str) -> None:
    """The completeness check of that run has passed."""
    checks = ui.ask(CHECKS, assetKey={"path": ["auctions", "catalog"]}, checkName="complete")
    (check,) = checks["assetCheckExecutions"]

    assert (check["runId"], check["status"]) == (history, "SUCCEEDED")


def test_live_run_beats_with_numbers(session: Session) -> None:
    """Each number keeps its key, so that the UI plots it, and stays once it is known; counts never fall."""
    keys = [set(beat) for beat in reversed(session.beats)]
    latest_first = [beat["bids/records"] for beat in session.beats]

    assert len(session.beats) >= 3
    assert all(before <= after for before, after in pairwise(keys))
    assert {"bids/lag", "highest/records_out"} <= keys[0]
    assert latest_first == sorted(latest_first, reverse=True)
    assert session.beats[0]["bids/mode"] == session.beats[0]["highest/mode"] == "realtime"


def test_jvm_of_a_terminated_run_is_gone(session: Session) -> None:
    """When the run is *Canceled*, nothing of it is left."""
    assert session.jvms == (1, 0)


def test_slice_waits_for_the_live_run(ui: Ui, session: Session) -> None:
    """Two runs never share a checkpoint: the slice starts when the live run has ended."""
    assert ui.run(session.slice)["startTime"] >= ui.run(session.live)["endTime"]


def test_every_bid_is_enriched(session: Session, auctions: Any) -> None:
    """What was fed before and during the live run is in the output topic, and nothing else."""
    assert session.slice
    assert _bid_ids(auctions.servers) == {
        bid
        for table in live_batches(NexmarkConfig(), 20_000, auctions.bids + MORE_BIDS)
        for bid in table["bid_id"].to_pylist()
    }


@needs_browser
def test_browser_plots_the_live_run(session: Session) -> None:
    """While it runs: one drawn plot for each number, under the name that the beats give it."""
    assert session.plots
    numbers = {key for key, value in session.beats[-1].items() if isinstance(value, (int, float))}

    assert {"bids/lag", "bids/records", "highest/records_out", "bids/realtime"} <= numbers
    assert [name for name in sorted(numbers) if name not in session.plots.text] == []
    assert session.plots.drawn >= len(numbers)
    assert "4" in session.plots.lines  # checks, all of which the run itself has answered


@needs_browser
def test_browser_shows_the_graph_of_the_flow(ui: Ui, session: Session) -> None:
    """What is read, made and written, and that the checks of the table have passed."""
    assert session.live
    with browsing(ui.port) as browser:
        browser.open("/locations/__repository__@pipelines/asset-groups/auctions/lineage")
        browser.wait_for("5 / 5 Passed")
        seen = browser.keep("graph")
    names = ["catalog", "live", "auctions", "bids", "bids.dead-letter", "enriched-bids", "highest-bids"]

    assert [name for name in names if name not in seen.lines] == []


@needs_browser
def test_browser_shows_the_result_of_the_history(ui: Ui, history: str) -> None:
    """The run that was launched with a click has made a table with rows and columns."""
    assert ui.run(history)["status"] == "SUCCESS"
    (metadata,) = ui.materializations("auctions", "catalog", run=history)
    with browsing(ui.port) as browser:
        browser.open("/assets/auctions/catalog")
        browser.wait_for("digest")
        seen = browser.keep("catalog")

    assert metadata["digest"] in seen.text
    assert {"auction_id", "category", "median"} <= set(seen.lines)


@pytest.mark.thorough
def test_killed_run_is_launched_again(ui: Ui, session: Session, killed: list[str]) -> None:
    """A killed worker by Dagster's own retry, a failed query by the supervisor; a terminated run stays so."""
    runs = {run["id"]: run for run in ui.runs("auctions_live")}
    first, second, last = killed
    tags = {tag["key"]: tag["value"] for tag in runs[last]["tags"]}

    assert runs.keys() == {session.live, *killed}  # none after those that were terminated
    assert runs[second]["parentRunId"] == first
    assert (tags["flowcore/restart"], tags["flowcore/restart-of"]) == ("2", second)
    assert [runs[run]["status"] for run in killed] == ["FAILURE", "FAILURE", "CANCELED"]


@pytest.mark.thorough
@needs_browser
def test_browser_shows_which_run_was_launched_again(ui: Ui, killed: list[str]) -> None:
    """The list of runs names the run whose place it took, and what became of both."""
    with browsing(ui.port) as browser:
        browser.open("/runs")
        browser.wait_for("flowcore/restart-of")
        seen = browser.keep("runs")

    assert f"flowcore/restart-of: {killed[-2]}"[:30] in seen.text
    assert {"Canceled", "Failed", "auctions_live", "auctions_slice"} <= set(seen.lines)


@pytest.fixture
def long_history(auctions: Any) -> Iterator[None]:
    """Enough history that a stage is still running when it is terminated."""
    write_history(NexmarkConfig(), LONG_EVENTS, auctions.data / "history")
    yield
    write_history(NexmarkConfig(), auctions.events, auctions.data / "history")


@pytest.mark.thorough
@pytest.mark.usefixtures("long_history")
def test_terminated_stage_leaves_nothing(ui: Ui, history: str) -> None:
    """A stage that is ended while Spark writes leaves no JVM, no files and the earlier result."""
    assert ui.run(history)["status"] == "SUCCESS"
    folder = ui.state / "auctions/results/catalog"
    before = sorted(folder.rglob("*"))
    run = ui.launch("auctions_history")
    wait_until(lambda: len(_versions(folder)) == 2, "Spark writes a new version")
    ui.terminate(run)
    ui.wait_for(run, "CANCELED")

    assert ui.jvms() == []
    assert sorted(folder.rglob("*")) == before
    assert ui.materializations("auctions", "catalog", run=run) == []


def test_page_of_another_site_cannot_load_code(ui: Ui) -> None:
    """Dagster's webserver launches runs for any page's GET; the run refuses the code, and starts no JVM."""
    params = {
        "selector": {
            "repositoryLocationName": "pipelines",
            "repositoryName": "__repository__",
            "pipelineName": "auctions_history",
        },
        "mode": "default",
        "runConfigData": {"resources": {"spark": {"config": {"spark_config": {"spark.jars": "/evil.jar"}}}}},
    }
    query = urlencode({"query": LAUNCH, "variables": json.dumps({"executionParams": params})})
    page = {"Origin": "http://evil.invalid", "Sec-Fetch-Site": "cross-site"}
    with urlopen(Request(f"http://127.0.0.1:{ui.port}/graphql?{query}", headers=page), timeout=60) as answer:
        run = json.load(answer)["data"]["launchPipelineExecution"]["run"]["id"]
    ui.wait_for(run, "FAILURE")
    log = json.dumps(ui.log(run))

    assert "resources.spark.config.spark_config.spark.jars" in log
    assert "only the deployment may set" in log
    assert "evil.jar" not in log
    assert ui.jvms() == []


def _versions(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir() and path.name != "pins"]


def _bid_ids(servers: str) -> set[int]:
    ends = end_offsets(servers, "enriched-bids")
    found = []
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition("enriched-bids", partition, 0) for partition in ends])
        while len(found) < sum(ends.values()):
            found += [json.loads(message.value())["bid_id"] for message in consumer.consume(1000, timeout=1)]
    finally:
        consumer.close()
    return set(found)
