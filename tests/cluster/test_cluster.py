"""The flow of `orders.py` runs on a cluster, configured by settings only, and survives a machine's loss."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from flowcore.kafka.topics import end_offsets, ensure_topics
from tests.cluster.conftest import Cluster
from tests.kafka.secured_broker import PASSWORD, SecuredBroker
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

HERE = Path(__file__).parent
PARTITIONS = 2
CUSTOMERS = 50
AT_ONCE = 1000
RUN_TIMEOUT_S = 300.0
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Orders:
    """The flow, its topics, and its folders, which all machines share.

    Runs log in to the broker; the test itself needs no login.
    """

    broker: SecuredBroker
    folder: Path
    cluster: Cluster

    @property
    def servers(self) -> str:
        """The address without a login."""
        return self.broker.plain

    def send(self, first: int) -> None:
        """Send the next thousand orders."""
        producer = Producer({"bootstrap.servers": self.servers})
        for number in range(first, first + AT_ONCE):
            order = {
                "number": number,
                "customer": f"customer {number % CUSTOMERS}",
                "currency": ("chf", "eur")[number % 2],
                "amount": number,
            }
            producer.produce("orders", json.dumps(order).encode(), partition=number % PARTITIONS)
        assert producer.flush(20) == 0

    @contextmanager
    def running(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run `flowcore run` on the cluster; its processes end with the context."""
        settings = {
            "spark.master": self.cluster.master,
            "spark.submit.pyFiles": HERE / "orders.py",
            "spark.executor.memory": "768m",
            "spark.driver.host": "127.0.0.1",
            "data.dir": self.folder,
            "state.dir": self.folder / "state",
            "execution.short-lived": "true",
            "execution.realtime.batch-duration": "5 s",
            **self.broker.settings("scram-512"),
        }
        password = settings.pop("kafka.sasl.password")
        given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        environment = os.environ | {
            "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "FLOWCORE_SETTINGS": str(self.cluster.settings),
            "FLOWCORE_KAFKA_SASL_PASSWORD": str(password),
        }
        command = ["flowcore", "run", "orders:flow", *given, *options]
        with self.log.open("ab") as log:
            run = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            yield run
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGINT)
            run.wait(timeout=30)
            wait_until(lambda: not _alive(run.pid), "the run has left no process")

    @property
    def log(self) -> Path:
        """Output of the runs."""
        return self.folder / "run.log"

    def arrived(self, orders: int, run: subprocess.Popen[bytes]) -> None:
        """Wait until both topics of the flow have this number of distinct orders."""

        def done() -> bool:
            assert run.poll() is None, self.log.read_text()
            topics = ("priced", "accounts")
            return all(self.count(topic) >= orders and len(self.rows(topic)) >= orders for topic in topics)

        try:
            wait_until(done, f"{orders} orders have arrived", RUN_TIMEOUT_S)
        except AssertionError as error:
            arrived = {topic: self.count(topic) for topic in ("priced", "accounts")}
            error.add_note(f"{arrived} records; the run printed\n{self.log.read_text()}")
            raise

    def count(self, topic: str) -> int:
        """Number of records in a topic, including repeats."""
        return sum(end_offsets(self.servers, topic).values())

    def rows(self, topic: str) -> list[Row]:
        """Distinct rows of a topic, in the order of its partitions."""
        ends = end_offsets(self.servers, topic)
        consumer = Consumer(
            {"bootstrap.servers": self.servers, "group.id": "test", "enable.auto.commit": False}
        )
        found: dict[bytes, Row] = {}
        try:
            consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
            for _ in range(sum(ends.values())):
                (message,) = consumer.consume(1, timeout=20)
                found.setdefault(dict(message.headers())["flowcore-id"], json.loads(message.value()))
        finally:
            consumer.close()
        return list(found.values())


@dataclass(frozen=True, slots=True)
class Outcome:
    """Contents of the topics after each step.

    Attributes:
        sliced: Number of orders in each topic after the slice.
        priced: Output of the query in real-time mode.
        accounts: Output of the query with state.
        orders: Number of orders sent.
        commands: Command lines of the run and of the cluster while it ran.
    """

    sliced: tuple[int, int]
    priced: list[Row]
    accounts: list[Row]
    orders: int
    commands: list[str]


@pytest.fixture(scope="module")
def outcome(cluster: Cluster, broker: SecuredBroker, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Run the bounded stage and a slice; then run live while one of two machines is killed."""
    flow = Orders(broker, tmp_path_factory.mktemp("shared"), cluster)
    (flow.folder / "rates").mkdir()
    (flow.folder / "rates/rates.csv").write_text("currency,rate\nchf,1.0\neur,1.5\neur,2.0\n")
    ensure_topics(broker.plain, {"orders": PARTITIONS})
    flow.send(0)
    with flow.running("--slice") as run:
        assert run.wait(RUN_TIMEOUT_S) == 0, flow.log.read_text()
    sliced = flow.count("priced"), flow.count("accounts")
    flow.send(AT_ONCE)
    with flow.running() as run:
        flow.arrived(2 * AT_ONCE, run)
        commands = _command_lines(run.pid, *(worker.process.pid for worker in cluster.workers))
        cluster.workers[0].die()
        flow.send(2 * AT_ONCE)
        flow.arrived(3 * AT_ONCE, run)
    return Outcome(sliced, flow.rows("priced"), flow.rows("accounts"), 3 * AT_ONCE, commands)


def test_bounded_stage_and_slice_run_on_a_cluster(outcome: Outcome) -> None:
    """Each order is priced and counted once."""
    assert outcome.sliced == (AT_ONCE, AT_ONCE)


def test_live_query_loses_nothing_when_a_machine_is_killed(outcome: Outcome) -> None:
    """Every order has a price by the rates of the bounded stage."""
    prices = {row["number"]: row["price"] for row in outcome.priced}

    assert prices == {number: number * (1.0, 2.0)[number % 2] for number in range(outcome.orders)}
    assert len(outcome.priced) == outcome.orders


def test_key_group_state_moves_when_a_machine_is_killed(outcome: Outcome) -> None:
    """Each customer's count has no gap and no repeat over slice, live run and the machine's loss."""
    counts: dict[str, list[int]] = {}
    spent: dict[str, int] = {}
    for row in outcome.accounts:
        counts.setdefault(row["customer"], []).append(row["orders"])
        spent[row["customer"]] = max(row["spent"], spent.get(row["customer"], 0))
    each = outcome.orders // CUSTOMERS

    assert {name: sorted(found) for name, found in counts.items()} == {
        f"customer {number}": list(range(1, each + 1)) for number in range(CUSTOMERS)
    }
    assert spent == {
        f"customer {number}": sum(range(number, outcome.orders, CUSTOMERS)) for number in range(CUSTOMERS)
    }


def test_secrets_are_in_no_command_line_and_no_file_of_a_worker(outcome: Outcome, cluster: Cluster) -> None:
    """The cluster authenticates by one, and the tasks log in to Kafka by the other."""
    secret = tomllib.loads(cluster.settings.read_text())["spark.authenticate.secret"]
    files = [path for worker in cluster.workers for path in worker.folder.rglob("*") if path.is_file()]

    assert any("CoarseGrainedExecutorBackend" in line for line in outcome.commands)
    assert any("SparkSubmit" in line for line in outcome.commands)
    assert any(path.name == "stderr" for path in files)
    for word in (secret, PASSWORD):
        assert not any(word in line for line in outcome.commands)
        assert [str(path) for path in files if word.encode() in path.read_bytes()] == []


def test_key_groups_run_on_both_machines(outcome: Outcome, cluster: Cluster) -> None:
    """The function ran in the folders of both workers."""
    folders = {row["folder"] for row in outcome.accounts}

    assert all(any(str(worker.folder) in folder for folder in folders) for worker in cluster.workers)


def _command_lines(*pids: int) -> list[str]:
    tops = [psutil.Process(pid) for pid in pids]
    found = []
    for process in (each for top in tops for each in (top, *top.children(recursive=True))):
        with suppress(psutil.NoSuchProcess):
            found.append(" ".join(process.cmdline()))
    return found


def _alive(group: int) -> bool:
    """Return whether a process group has a process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
