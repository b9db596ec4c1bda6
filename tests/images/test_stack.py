"""deploy/compose, started from the built images: a job launched through the proxy has right results."""

from __future__ import annotations

import base64
import http.client
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from flowcore.kafka.broker import free_port
from flowcore.kafka.topics import end_offsets, ensure_topics
from pipelines.auctions import verify
from pipelines.auctions.readers import read_values
from pipelines.nexmark.feed import feed
from pipelines.nexmark.generator import NexmarkConfig, live_batches
from pipelines.nexmark.history import write_history
from tests.dagster.dagster_ui import Ui, login_cookie
from tests.images.engine import PROJECT, docker
from tests.waiting import wait_until

EVENTS, BIDS = 20_000, 2_000
NAME = f"flowcore-check-{secrets.token_hex(3)}"
SERVICES = ("kafka", "postgres", "code", "proxy", "webserver", "daemon", "prometheus")
FILES = (PROJECT / "deploy/compose/compose.yaml", Path(__file__).with_name("compose.yaml"))


@dataclass(frozen=True, slots=True)
class Stack:
    """The stack's commands and addresses."""

    variables: dict[str, str]
    data: Path
    password: str = field(repr=False)

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.variables['KAFKA_PORT']}"

    @property
    def port(self) -> int:
        return int(self.variables["PROXY_PORT"])

    @property
    def ui(self) -> Ui:
        login = base64.b64encode(f"dagster:{self.password}".encode()).decode()
        headers = {"Authorization": f"Basic {login}"}
        return Ui(self.port, self.data, headers | {"Cookie": _cookie(self.port, headers["Authorization"])})

    def compose(self, *arguments: str) -> str:
        files = [f"--file={file}" for file in FILES]
        return docker(
            "compose", f"--project-name={NAME}", "--env-file=/dev/null", *files, *arguments,
            environment=self.variables,
        )  # fmt: skip

    def execute(self, service: str, *command: str) -> str:
        return self.compose("exec", "--no-TTY", service, *command)


@pytest.fixture(scope="module")
def stack(images: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Broker, PostgreSQL, code server, webserver behind the proxy, and daemon; nothing of them is left."""
    data = tmp_path_factory.mktemp("data")
    write_history(NexmarkConfig(), EVENTS, data / "history")
    for folder in (data, *data.parents[:2]):
        folder.chmod(0o755)  # pytest's folders are for their owner only, and containers have another user
    passwords = {
        name: secrets.token_urlsafe(16)
        for name in ("POSTGRES_PASSWORD", "DAGSTER_PASSWORD", "GRAFANA_PASSWORD")
    }
    kafka_port = free_port()
    ports = {"KAFKA_PORT": str(kafka_port), "PROXY_PORT": str(free_port(besides=kafka_port))}
    names = {name.upper(): image for name, image in images.items()}
    started = Stack(names | ports | passwords | {"HISTORY": str(data)}, data, passwords["DAGSTER_PASSWORD"])
    try:
        try:
            started.compose("up", "--no-build", "--detach", "--wait", *SERVICES)
        except AssertionError as error:
            raise AssertionError(started.compose("logs", "--no-color", "--tail=40")) from error
        yield started
    finally:
        started.compose("down", "--volumes", "--timeout=20")


def test_services_are_healthy_and_not_root(stack: Stack) -> None:
    """All are healthy; nobody is root, and only the folders that compose.yaml names can be written."""
    states = [json.loads(line) for line in stack.compose("ps", "--format=json").splitlines()]

    assert {each["Service"]: each["Health"] for each in states} == dict.fromkeys(SERVICES, "healthy")
    assert stack.execute("code", "id", "-u") == stack.execute("daemon", "id", "-u") == "10001\n"
    assert stack.execute("proxy", "id", "-u") == "10002\n"
    write = (
        "for folder in / /opt/flowcore/project; do touch $folder/x 2>/dev/null && echo $folder; done; true"
    )
    assert not stack.execute("code", "bash", "-c", write)


def test_only_the_proxy_answers_and_only_with_its_password(stack: Stack) -> None:
    """Without login or with another host name nobody reaches Dagster; containers reach no webserver."""
    assert _status(stack.port, {}) == http.HTTPStatus.UNAUTHORIZED
    assert _status(stack.port, dict(stack.ui.headers) | {"Host": "evil.example"}) == 421
    assert _status(stack.port, dict(stack.ui.headers)) == http.HTTPStatus.OK
    connect = (
        "import socket\ntry: socket.create_connection(('proxy', 3000), 5)\nexcept OSError: print('refused')"
    )
    assert stack.execute("code", "python", "-c", connect) == "refused\n"


def test_only_dagster_reaches_the_code_server(stack: Stack) -> None:
    """Who reaches it may run anything. Broker and Grafana share a network with it, for the runs' sake."""
    connect = (
        "import socket\ntry: socket.create_connection(('code', 4000), 5); print('reached')\n"
        "except ConnectionRefusedError: print('refused')"
    )

    for network in ("kafka", "metrics"):
        place = ("run", "--rm", f"--network={NAME}_{network}", stack.variables["FLOWCORE"])
        assert docker(*place, "python", "-c", connect) == "refused\n"
    assert stack.execute("daemon", "python", "-c", connect) == "reached\n"


def test_broker_takes_each_codec(stack: Stack) -> None:
    """It loads the libraries of snappy and zstd with a root file system that it may not write."""
    ensure_topics(stack.servers, {"codecs": 1})
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        producer = Producer({"bootstrap.servers": stack.servers, "compression.type": codec, "log_level": 0})
        producer.produce("codecs", bytes(1000))
        assert producer.flush(60) == 0

    assert end_offsets(stack.servers, "codecs") == {0: 4}


def test_a_job_launched_through_the_proxy_has_the_right_results(stack: Stack) -> None:
    """The bounded stage, and a slice of the live query, whose output DuckDB confirms."""
    ensure_topics(stack.servers, {"bids": 2})
    feed(stack.servers, "bids", live_batches(NexmarkConfig(), EVENTS, BIDS))
    wait_until(stack.ui.loaded, "the definitions are loaded")
    for job in ("auctions_history", "auctions_slice"):
        run = stack.ui.launch(job)
        try:
            stack.ui.wait_for(run, "SUCCESS")
        except AssertionError as error:
            raise AssertionError(json.dumps(stack.ui.log(run)[-5:], indent=1)[-8000:]) from error

    sent = pa.concat_tables(live_batches(NexmarkConfig(), EVENTS, BIDS))
    received = list(read_values(stack.servers, "enriched-bids"))
    found = verify.compare_enriched(
        verify.expected_enriched(stack.data / "history", sent),
        verify.rows_from_json(received, verify.ENRICHED),
    )
    assert found.nothing_lost_or_wrong, found
    assert found.rows_in == BIDS


def test_live_run_is_observed_and_ended_through_the_proxy(stack: Stack) -> None:
    """`auctions_live` runs in the container `code`, is seen by Prometheus, and ends when it is terminated."""
    run = stack.ui.launch("auctions_live")
    stack.ui.wait_for(run, "STARTED")
    wait_until(lambda: _asked(stack, "flowcore_query_active"), "Prometheus has metrics of the run")
    stack.ui.terminate(run)
    wait_until(lambda: stack.ui.run(run)["status"] == "CANCELED", "the run has ended")
    assert stack.execute("code", "bash", "-c", "ls /scratch | grep -c flowcore-scratch || true") == "0\n"


def test_prometheus_scrapes_each_port_and_has_the_alerts(stack: Stack) -> None:
    """Ports without a run are down, which is no alert."""
    wait_until(lambda: len(_asked(stack, "up")) == 10, "all ten ports have been scraped")

    found = json.loads(_ask_prometheus(stack, "rules"))["data"]["groups"]
    alerts = {rule["name"] for group in found for rule in group["rules"]}
    assert alerts >= {"FlowStopped", "FlowReportsNothing", "FlowFallsBehind"}
    now = json.loads(_ask_prometheus(stack, "alerts"))["data"]["alerts"]
    assert [each for each in now if each["state"] == "firing"] == []


def test_alerts_tell_of_what_they_are_for(images: dict[str, str]) -> None:
    """Of an ended query, not of a slice's; of a live run that is missed at all ports."""
    rules, tests = PROJECT / "deploy/prometheus/alerts.yml", Path(__file__).with_name("alerts.yml")
    places = (f"--volume={rules}:/rules/alerts.yml:ro", f"--volume={tests}:/rules/tests.yml:ro")
    prometheus = images["PROMETHEUS_IMAGE"]

    docker("run", "--rm", "--entrypoint=promtool", *places, prometheus, "test", "rules", "/rules/tests.yml")


def _asked(stack: Stack, query: str) -> list[object]:
    found: list[object] = json.loads(_ask_prometheus(stack, f"query?query={query}"))["data"]["result"]
    return found


def _ask_prometheus(stack: Stack, path: str) -> str:
    return stack.execute("prometheus", "wget", "-qO-", f"http://127.0.0.1:9090/api/v1/{path}")


@cache
def _cookie(port: int, login: str) -> str:
    """The cookie of one who has logged in: without it, a few requests a second are answered."""
    given = login_cookie(port, login)
    assert given is not None
    return given.partition(";")[0]


def _status(port: int, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/server_info", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()
