"""A person at the UI: webserver and daemon run as they would, and every click is the UI's GraphQL.

The tests of this module are one session at the UI: history is digested, the live queries are
started, their run worker and then their JVM are killed and they come back, a slice is asked for meanwhile
and waits, the live queries are terminated, the slice runs.
"""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from flowcore.kafka.broker import free_port
from flowcore.kafka.topics import end_offsets
from pipelines.auctions.feed import feed
from pipelines.auctions.history import write_history
from pipelines.auctions.nexmark import NexmarkConfig, live_batches, live_bids

pytestmark = pytest.mark.dagster

PROJECT = Path(__file__).parents[2]
MORE_BIDS = 500
LONG_EVENTS = 5_000_000
TIMEOUT_S = 180.0

LAUNCH = """
mutation LaunchPipelineExecution($executionParams: ExecutionParams!) {
  launchPipelineExecution(executionParams: $executionParams) {
    __typename
    ... on LaunchRunSuccess { run { id } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}
"""
TERMINATE = """
mutation Terminate($runIds: [String!]!, $terminatePolicy: TerminateRunPolicy) {
  terminateRuns(runIds: $runIds, terminatePolicy: $terminatePolicy) {
    ... on TerminateRunsResult { terminateRunResults { __typename } }
  }
}
"""
RUN = """
query Run($runId: ID!) {
  runOrError(runId: $runId) { ... on Run { status startTime endTime } }
}
"""
MATERIALIZATIONS = """
query Materializations($assetKey: AssetKeyInput!) {
  assetOrError(assetKey: $assetKey) {
    ... on Asset {
      assetMaterializations(limit: 100) {
        runId
        metadataEntries {
          label
          ... on IntMetadataEntry { intValue }
          ... on FloatMetadataEntry { floatValue }
          ... on TextMetadataEntry { text }
          ... on TableSchemaMetadataEntry { schema { columns { name type } } }
        }
      }
    }
  }
}
"""
RUNS = """
query Runs($job: String!) {
  runsOrError(filter: {pipelineName: $job}) {
    ... on Runs { results { id status parentRunId tags { key value } } }
  }
}
"""
LOCATION = """
query Location {
  workspaceOrError {
    ... on Workspace {
      locationEntries { loadStatus locationOrLoadError { __typename ... on PythonError { message } } }
    }
  }
}
"""
CHECKS = """
query Checks($assetKey: AssetKeyInput!, $checkName: String!) {
  assetCheckExecutions(assetKey: $assetKey, checkName: $checkName, limit: 5) {
    runId status evaluation { success description }
  }
}
"""


@dataclass(frozen=True, slots=True)
class Ui:
    """What a browser at the webserver can do."""

    port: int
    state: Path

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        answer = _request(self.port, "POST", "/graphql", {"query": query, "variables": variables})
        assert "errors" not in answer, answer
        data = answer["data"]
        assert isinstance(data, dict)
        return data

    def loaded(self) -> bool:
        """The code location is there; one that failed to load fails the test with its error."""
        (entry,) = self.ask(LOCATION)["workspaceOrError"]["locationEntries"]
        location = entry["locationOrLoadError"]
        assert location is None or location["__typename"] != "PythonError", location["message"]
        return location is not None and entry["loadStatus"] == "LOADED"

    def launch(self, job: str, config: dict[str, Any] | None = None) -> str:
        """Press *Launch run*; return the id of the run."""
        selector = {
            "repositoryLocationName": "pipelines",
            "repositoryName": "__repository__",
            "pipelineName": job,
        }
        params = {
            "selector": selector,
            "mode": "default",
            "runConfigData": config or {},
            "executionMetadata": {"tags": []},
        }
        answer = self.ask(LAUNCH, executionParams=params)["launchPipelineExecution"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return str(answer["run"]["id"])

    def terminate(self, run: str) -> None:
        """Press *Terminate*."""
        answer = self.ask(TERMINATE, runIds=[run], terminatePolicy="SAFE_TERMINATE")
        assert answer["terminateRuns"] == {"terminateRunResults": [{"__typename": "TerminateRunSuccess"}]}

    def run(self, run: str) -> dict[str, Any]:
        found = self.ask(RUN, runId=run)["runOrError"]
        assert isinstance(found, dict)
        return found

    def wait_for(self, run: str, status: str) -> None:
        """Wait for a run's status; fail at once if it ends with another."""

        def reached() -> bool:
            now = self.run(run)["status"]
            assert now == status or now not in ("SUCCESS", "FAILURE", "CANCELED"), now
            return bool(now == status)

        wait_until(reached, f"run {run} is {status}")

    def runs(self, job: str) -> list[dict[str, Any]]:
        """The runs of a job, latest first."""
        found = self.ask(RUNS, job=job)["runsOrError"]["results"]
        assert isinstance(found, list)
        return found

    def materializations(self, *key: str, run: str) -> list[dict[str, Any]]:
        """The metadata of each materialization by a run, latest first."""
        asset = self.ask(MATERIALIZATIONS, assetKey={"path": key})["assetOrError"]
        return [
            {entry.pop("label"): next(iter(entry.values()), None) for entry in event["metadataEntries"]}
            for event in asset.get("assetMaterializations", [])
            if event["runId"] == run
        ]

    def jvms(self) -> list[int]:
        """The process ids of the JVMs that keep their log in this session's folder."""
        found: list[int] = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_text()
            except OSError:  # it ended while we looked
                continue
            if "SparkSubmit" in command and str(self.state) in command:
                found.append(int(process.name))
        return found


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"after {timeout_s:.0f} s it is still not so that {what}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def ui(auctions: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    """Webserver and daemon over one DAGSTER_HOME, as deployed; settings are in their environment."""
    home, state = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("state")
    shutil.copy(PROJECT / "deploy/dagster.yaml", home)
    settings = {
        "FLOWCORE_" + key.upper().replace(".", "_").replace("-", "_"): value
        for key, value in auctions.settings(state).items()
    }
    environment = os.environ | settings | {"DAGSTER_HOME": str(home)}
    port = free_port()
    scripts = Path(sys.executable).parent
    workspace = ["-w", str(PROJECT / "workspace.yaml")]
    commands = {
        "webserver": [str(scripts / "dagster-webserver"), "-p", str(port), *workspace],
        "daemon": [str(scripts / "dagster-daemon"), "run", *workspace],
    }
    servers: list[subprocess.Popen[bytes]] = []
    try:
        ui = Ui(port, state)
        # One after the other: both would make the tables of an empty DAGSTER_HOME, and spoil them.
        for name, command in commands.items():
            with (home / f"{name}.log").open("wb") as log:
                server = subprocess.Popen(
                    command, cwd=PROJECT, env=environment, stdout=log, stderr=subprocess.STDOUT
                )
            servers.append(server)
            wait_until(lambda: _answers(port), "the webserver answers")
            wait_until(ui.loaded, "the definitions are loaded")
        assert all(server.poll() is None for server in servers)
        yield ui
    finally:
        for server in servers:
            server.send_signal(signal.SIGINT)
        for server in servers:
            server.wait(timeout=60)


def _answers(port: int) -> bool:
    try:
        return "dagster_webserver_version" in _request(port, "GET", "/server_info")
    except OSError:
        return False


def _request(port: int, method: str, path: str, body: object = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
        return json.load(connection.getresponse())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def history(ui: Ui) -> str:
    """The run that digested the history."""
    run = ui.launch("auctions_history")
    ui.wait_for(run, "SUCCESS")
    return run


@dataclass(frozen=True, slots=True)
class Session:
    """What a person did and saw after the history was digested.

    Attributes:
        killed: Ids of the live runs of which the worker, then the JVM was killed.
        live: Id of the live run that came after them, and was terminated.
        slice: Id of the run that waited for it.
        beats: Metadata of each beat of the live run, latest first.
        stop_s: Seconds from the click on *Terminate* to *Canceled*.
        jvms: JVMs of the live run just before, and how many of them were left after it.
    """

    killed: list[str]
    live: str
    slice: str
    beats: list[dict[str, Any]]
    stop_s: float
    jvms: tuple[int, int]


@pytest.fixture(scope="module")
def session(ui: Ui, history: str, auctions: Any) -> Session:
    """Live queries started, seen beating, joined by a queued slice, terminated; then the slice runs."""
    config = {"ops": {"auctions__live": {"config": {"mode": "auto", "beat_seconds": 1.0}}}}
    assert ui.run(history)["status"] == "SUCCESS"
    first = ui.launch("auctions_live", config)
    ui.wait_for(first, "STARTED")
    wait_until(lambda: _records(ui, first) >= auctions.bids, "a beat tells of all bids so far")
    _feed(auctions, 0)
    second = _back_after(ui, first, _worker_of)
    _feed(auctions, 1)
    live = _back_after(ui, second, lambda jvm: jvm)
    waiting = ui.launch("auctions_slice")
    before, records = len(ui.materializations("auctions", "live", run=live)), _records(ui, live)
    _feed(auctions, 2)
    wait_until(lambda: _records(ui, live) >= records + MORE_BIDS, "a beat tells of the later bids")
    wait_until(lambda: len(ui.materializations("auctions", "live", run=live)) >= before + 2, "it beats on")
    assert ui.run(waiting)["status"] == "QUEUED"
    jvms_live = ui.jvms()
    began = time.monotonic()
    ui.terminate(live)
    ui.wait_for(live, "CANCELED")
    stop_s = time.monotonic() - began
    jvms = (len(jvms_live), len(set(jvms_live) & set(ui.jvms())))
    beats = ui.materializations("auctions", "live", run=live)
    ui.wait_for(waiting, "SUCCESS")
    return Session([first, second], live, waiting, beats, stop_s, jvms)


def _feed(auctions: Any, times: int) -> None:
    """So many more bids, after as many as were fed before."""
    bids = live_bids(NexmarkConfig(), 20_000, auctions.bids + times * MORE_BIDS, MORE_BIDS)
    feed(auctions.servers, "bids", [bids])


def _back_after(ui: Ui, run: str, victim: Callable[[int], int]) -> str:
    """Kill a process of a live run, by its JVM's id; the run that beats after it."""
    (jvm,) = ui.jvms()
    os.kill(victim(jvm), signal.SIGKILL)
    wait_until(lambda: ui.runs("auctions_live")[0]["id"] != run, "the live run is launched again")
    latest = str(ui.runs("auctions_live")[0]["id"])
    ui.wait_for(latest, "STARTED")
    wait_until(lambda: _records(ui, latest) > 0, "it reads again")
    return latest


def _worker_of(jvm: int) -> int:
    status = Path(f"/proc/{jvm}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("PPid:")).split()[1])


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


def test_killed_run_is_launched_again(ui: Ui, session: Session) -> None:
    """A killed worker by Dagster's own retry, a failed query by the supervisor; a terminated run stays so."""
    runs = {run["id"]: run for run in ui.runs("auctions_live")}
    tags = {tag["key"]: tag["value"] for tag in runs[session.live]["tags"]}
    first, second = session.killed

    assert runs.keys() == {first, second, session.live}  # none after the one that was terminated
    assert runs[second]["parentRunId"] == first
    assert (tags["flowcore/restart"], tags["flowcore/restart-of"]) == ("2", second)
    assert [runs[run]["status"] for run in (first, second, session.live)] == [
        "FAILURE",
        "FAILURE",
        "CANCELED",
    ]


def test_live_run_ends_soon_when_it_is_terminated(session: Session) -> None:
    """From the click to *Canceled* are at most 10 s, and then its JVM is gone."""
    assert session.stop_s < 10
    assert session.jvms == (1, 0)


def test_slice_waits_for_the_live_run(ui: Ui, session: Session) -> None:
    """Two runs never share a checkpoint: the slice starts when the live run has ended."""
    assert ui.run(session.slice)["startTime"] >= ui.run(session.live)["endTime"]


def test_every_bid_is_enriched(session: Session, auctions: Any) -> None:
    """What was fed before and during the live run is in the output topic, and nothing else."""
    assert session.slice
    assert _bid_ids(auctions.servers) == {
        bid
        for table in live_batches(NexmarkConfig(), 20_000, auctions.bids + 3 * MORE_BIDS)
        for bid in table["bid_id"].to_pylist()
    }


@pytest.fixture
def long_history(auctions: Any) -> Iterator[None]:
    """Enough of it that a stage is still at work when it has been terminated."""
    write_history(NexmarkConfig(), LONG_EVENTS, auctions.data / "history")
    yield
    write_history(NexmarkConfig(), auctions.events, auctions.data / "history")


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
