"""The Dagster UI for tests: webserver and daemon as they are deployed, and what a browser asks of them."""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowcore.kafka.broker import free_port
from tests.waiting import wait_until

PROJECT = Path(__file__).parents[2]

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
BEATS = """
query Beats($assetKey: AssetKeyInput!, $limit: Int!) {
  assetOrError(assetKey: $assetKey) {
    ... on Asset {
      assetMaterializations(limit: $limit) {
        runId timestamp
        metadataEntries {
          label
          ... on IntMetadataEntry { intValue }
          ... on FloatMetadataEntry { floatValue }
          ... on TextMetadataEntry { text }
          ... on MarkdownMetadataEntry { mdStr }
        }
      }
    }
  }
}
"""
LOG = """
query Log($runId: ID!) {
  logsForRun(runId: $runId, limit: 1000) {
    ... on EventConnection {
      events {
        __typename
        ... on MessageEvent { message timestamp }
        ... on RunFailureEvent { error { message causes { message } } }
        ... on ExecutionStepFailureEvent { error { message causes { message } } }
      }
    }
  }
}
"""
ALL_CHECKS = """
query AllChecks($assetKey: AssetKeyInput!, $checkName: String!) {
  assetCheckExecutions(assetKey: $assetKey, checkName: $checkName, limit: 200) {
    runId timestamp evaluation { success description }
  }
}
"""
TICKS = """
query Ticks($selector: SensorSelector!) {
  sensorOrError(sensorSelector: $selector) {
    ... on Sensor {
      sensorState { ticks(limit: 1000) { timestamp status skipReason runIds error { message } } }
    }
  }
}
"""
ALL_RUNS = """
query AllRuns {
  runsOrError(limit: 500) {
    ... on Runs {
      results { id jobName status creationTime startTime endTime parentRunId tags { key value } }
    }
  }
}
"""


@dataclass(frozen=True, slots=True)
class Ui:
    """What a browser at the webserver can do."""

    port: int
    state: Path
    headers: Mapping[str, str] = field(default_factory=dict)  # of each request: a login

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        content = {"query": query, "variables": variables}
        answer = _request(self.port, "POST", "/graphql", content, self.headers)
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

    def beats(self, *key: str, limit: int = 1000) -> list[dict[str, Any]]:
        """The last materializations: run (``run``), time (``at_s``) and metadata of each, latest first."""
        asset = self.ask(BEATS, assetKey={"path": key}, limit=limit).get("assetOrError", {})
        return [
            {"run": event["runId"], "at_s": int(event["timestamp"]) / 1000}
            | {entry.pop("label"): next(iter(entry.values()), None) for entry in event["metadataEntries"]}
            for event in asset.get("assetMaterializations", [])
        ]

    def log(self, run: str) -> list[dict[str, Any]]:
        """The first events of a run."""
        found = self.ask(LOG, runId=run)["logsForRun"]["events"]
        assert isinstance(found, list)
        return found

    def checks(self, *key: str, name: str) -> list[dict[str, Any]]:
        """The answers of an asset check, latest first."""
        found = self.ask(ALL_CHECKS, assetKey={"path": key}, checkName=name)["assetCheckExecutions"]
        assert isinstance(found, list)
        return found

    def ticks(self, sensor: str) -> list[dict[str, Any]]:
        """The ticks of a sensor, latest first."""
        selector = {
            "repositoryLocationName": "pipelines", "repositoryName": "__repository__", "sensorName": sensor
        }  # fmt: skip
        found = self.ask(TICKS, selector=selector)["sensorOrError"]["sensorState"]["ticks"]
        assert isinstance(found, list)
        return found

    def all_runs(self) -> list[dict[str, Any]]:
        """The runs of all jobs, latest first; tags as a mapping."""
        found = self.ask(ALL_RUNS)["runsOrError"]["results"]
        return [run | {"tags": {tag["key"]: tag["value"] for tag in run["tags"]}} for run in found]

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


@contextmanager
def serve(
    home: Path,
    state: Path,
    settings: Mapping[str, str],
    workspace: Path = PROJECT / "workspace.yaml",
    *,
    daemons: int = 1,
) -> Iterator[Ui]:
    """Webserver and daemon over one DAGSTER_HOME; settings are in their environment.

    Args:
        home: The folder of Dagster's instance; empty.
        state: The setting ``state.dir``.
        settings: All settings.
        workspace: Where the definitions come from.
        daemons: How many daemons run; Dagster supports one.
    """
    shutil.copy(PROJECT / "flowcore/dagster/dagster.yaml", home)
    environment = environment_of(home, settings)
    port = free_port()
    scripts = Path(sys.executable).parent
    options = ["-w", str(workspace)]
    commands = {
        "webserver": [str(scripts / "dagster-webserver"), "-p", str(port), *options],
        **{
            f"daemon-{number}": [str(scripts / "dagster-daemon"), "run", *options]
            for number in range(daemons)
        },
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


def environment_of(home: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """The environment of Dagster's servers: their instance, and settings as variables."""
    variables = {
        "FLOWCORE_" + key.upper().replace(".", "_").replace("-", "_"): value
        for key, value in settings.items()
    }
    return os.environ | variables | {"DAGSTER_HOME": str(home)}


def _answers(port: int) -> bool:
    try:
        return "dagster_webserver_version" in _request(port, "GET", "/server_info")
    except OSError:
        return False


def login_cookie(port: int, login: str) -> str | None:
    """The ``Set-Cookie`` with which the proxy answers a request with this login, if it is the right one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/", headers={"Authorization": login})
        return connection.getresponse().getheader("Set-Cookie")
    finally:
        connection.close()


def _request(
    port: int, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(
            method, path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})}
        )
        return json.load(connection.getresponse())
    finally:
        connection.close()
