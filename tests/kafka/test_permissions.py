"""A flow runs with the permissions that the documentation lists, and needs each of them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from flowcore import Flow, KafkaTopic
from flowcore.errors import BrokerAccessError
from flowcore.kafka.topics import ensure_topics
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.run.live_stage import LiveRun
from pipelines.auctions.readers import read_values
from tests.kafka.secured_broker import BOB_PASSWORD, SecuredBroker, secured_broker
from tests.waiting import run_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

PAGE = Path(__file__).parents[2] / "docs" / "kafka-security.md"
QUERY = "in-batches"
ROW = re.compile(r"\| (Topic|TransactionalId) \| `([^`]+)`( \(prefixed\))? \| ([\w, ]+) \|")


@dataclass(frozen=True)
class Entry:
    """One permission: a resource, its name with placeholders, and an operation."""

    resource: str
    name: str
    is_prefix: bool
    operation: str

    def binding(self, flow: str) -> AclBinding:
        """The entry of the broker's list for the topics of a flow."""
        name = self.name.replace("FLOW.QUERY", f"{flow}.{QUERY}")
        name = name.replace("SOURCE", f"{flow}-in").replace("SINK", f"{flow}-out")
        operation = re.sub("(?<!^)(?=[A-Z])", "_", self.operation).upper()
        return AclBinding(
            ResourceType.TRANSACTIONAL_ID if self.resource == "TransactionalId" else ResourceType.TOPIC,
            name,
            ResourcePatternType.PREFIXED if self.is_prefix else ResourcePatternType.LITERAL,
            "User:bob",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )

    def __str__(self) -> str:
        return f"{self.operation} {self.name}"


ENTRIES = [
    Entry(kind, name, bool(prefixed), operation)
    for kind, name, prefixed, operations in ROW.findall(PAGE.read_text())
    for operation in operations.split(", ")
]
UNSEEN = {
    "Write SOURCE.events": "does not allow to write to topic",
    "Read SINK.events": "does not allow to read topic",
}
"""Entries without which a run goes on without latency, and says so."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A broker whose user bob may do what a test allows."""
    with secured_broker(tmp_path_factory.mktemp("permitted")) as started:
        yield started


@pytest.fixture
def start(broker: SecuredBroker, spark: SparkSession, tmp_path: Path) -> Callable[[list[Entry]], LiveRun]:
    """Grants entries to bob, and makes his run of a new flow with exactly-once delivery and latency."""

    def make(granted: list[Entry]) -> LiveRun:
        name = f"flow-{secrets.token_hex(4)}"
        source = KafkaTopic(f"{name}-in", schema="id BIGINT")
        ensure_topics(broker.plain, {source.name: 1})
        producer = Producer({"bootstrap.servers": broker.plain, "log_level": 0})
        for value in (b'{"id": 1}', b"bad", b'{"id": 2}'):
            producer.produce(source.name, value)
        assert producer.flush(20) == 0
        admin = AdminClient({"bootstrap.servers": broker.plain, "log_level": 0})
        for answer in admin.create_acls([each.binding(name) for each in granted]).values():
            answer.result(20)
        flow = Flow(name)
        out = KafkaTopic(f"{name}-out", delivery="exactly-once")
        flow.read("in", source).write("out", out)
        login = {"kafka.sasl.username": "bob", "kafka.sasl.password": BOB_PASSWORD, "state.dir": tmp_path}
        settings = Settings.of(
            {**broker.settings("plain"), **login, "metrics.latency.interval": "100 ms"}, environment={}
        )
        return LiveRun(plan_flow(flow, "micro-batch", settings), Context(spark, settings, name))

    return make


def test_flow_runs_with_the_documented_permissions(
    broker: SecuredBroker, start: Callable[[list[Entry]], LiveRun]
) -> None:
    """Records, dead letters, transactions and latency, without a consumer group."""
    assert len(ENTRIES) == 16

    with start(ENTRIES) as run:
        run_until(run, lambda: bool(run.latency()) and run.progress()[0].rows_in >= 3)
        name = run.context.flow

    assert len(list(read_values(broker.plain, f"{name}-out"))) == 2
    assert list(read_values(broker.plain, f"{name}-in.dead-letter")) == [b"bad"]


@pytest.mark.parametrize("missing", ENTRIES, ids=str)
def test_flow_needs_each_documented_permission(
    missing: Entry, start: Callable[[list[Entry]], LiveRun], caplog: pytest.LogCaptureFixture
) -> None:
    """The run is refused, or says that there is no latency."""
    run = start([each for each in ENTRIES if each != missing])

    if warning := UNSEEN.get(str(missing)):
        with run:
            run_until(run, lambda: warning in caplog.text)
        return
    with pytest.raises(BrokerAccessError, match=r"does not allow"), run:
        run_until(run, lambda: False)
