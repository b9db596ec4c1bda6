"""A flow with credentials uses a broker with authentication and encryption; others are rejected."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from flowcore import Flow, KafkaTopic
from flowcore.errors import FlowcoreError
from flowcore.kafka import broker
from flowcore.kafka.broker import EmbeddedBroker, free_port
from flowcore.kafka.security import BrokerAddress, Security, client_login
from flowcore.kafka.topics import end_offsets, ensure_topics
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.run.bounded_stage import run_bounded
from flowcore.spark.run.live_stage import LiveRun
from flowcore.watermarks import bounded_out_of_orderness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

PASSWORD = 'p"4\\ss'  # noqa: S105 - password of a broker that ends with these tests
LISTENER = """
listeners=PLAINTEXT://{{host}}:{{port}},CONTROLLER://{{host}}:{{controller_port}},LOGIN://{{host}}:{login}
advertised.listeners=PLAINTEXT://{{host}}:{{port}},LOGIN://{{host}}:{login}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_SSL
ssl.keystore.type=PEM
ssl.keystore.location={pem}
listener.name.login.sasl.enabled.mechanisms=PLAIN
listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  user_ann="p\\\\"4\\\\\\\\ss";
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings with the credentials of a broker with such a listener."""
    folder = tmp_path_factory.mktemp("secured")
    key, certificate, both = folder / "key.pem", folder / "certificate.pem", folder / "both.pem"
    made_of = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=broker"]
    subprocess.run(
        ["openssl", "req", "-x509", *made_of, "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    both.write_text(key.read_text() + certificate.read_text())
    login = free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker, "_PROPERTIES", broker._PROPERTIES + LISTENER.format(login=login, pem=both))
        with EmbeddedBroker() as started:
            ensure_topics(started.bootstrap_servers, {"in": 1})
            yield Settings.of(
                {
                    "kafka.bootstrap.servers": f"127.0.0.1:{login}",
                    "kafka.security.protocol": "SASL_SSL",
                    "kafka.sasl.mechanism": "PLAIN",
                    "kafka.sasl.username": "ann",
                    "kafka.sasl.password": PASSWORD,
                    "kafka.ssl.ca": str(certificate),
                    "metrics.latency.interval": "1 s",
                    "execution.realtime.batch-duration": "5 s",
                },
                environment={},
            )


@pytest.fixture(scope="module")
def address(settings: Settings) -> str:
    """The broker's address; its topic has thirty records."""
    found = BrokerAddress(settings.bootstrap_servers or "", Security.of(settings))
    producer = Producer(client_login(found))
    for number in range(30):
        producer.produce("in", b'{"id": %d}' % number)
    assert producer.flush(30) == 0
    return found


def test_live_flow_with_credentials_runs(
    settings: Settings, address: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Source, sink, markers, their collector, watermarks and offset queries all authenticate."""
    strategy = bounded_out_of_orderness(timedelta(seconds=1))
    flow = Flow("f")
    bids = flow.read("in", KafkaTopic("in", schema="id BIGINT", watermark=strategy))
    bids.write("out", KafkaTopic("out", elements="tagged"))
    settings = replace(settings, state_dir=tmp_path)
    with LiveRun(plan_flow(flow, settings=settings), Context(spark, settings, "f")) as run:
        deadline = time.monotonic() + 60
        while not (run.latency() and sum(end_offsets(address, "out").values()) >= 30):
            assert not run.wait(0.2)
            assert time.monotonic() < deadline

    assert sum(end_offsets(address, "out.events").values()) > 0


def test_bounded_flow_with_credentials_runs(
    settings: Settings, address: str, spark: SparkSession, tmp_path: Path
) -> None:
    """A bounded flow copies a topic to a topic."""
    flow = Flow("g")
    flow.read("in", KafkaTopic("in", schema="id BIGINT", until="latest")).write("copy", KafkaTopic("copy"))
    settings = replace(settings, state_dir=tmp_path)
    (stage,) = plan_flow(flow, settings=settings).bounded
    run_bounded(stage, Context(spark, settings, "g"))

    assert sum(end_offsets(address, "copy").values()) == 30


@pytest.mark.parametrize(
    "wrong", [{"kafka_password": "guess"}, {"kafka_ca": None}], ids=["password", "authority"]
)
def test_flow_without_valid_credentials_does_not_start(
    settings: Settings, spark: SparkSession, tmp_path: Path, wrong: dict[str, str | None]
) -> None:
    """The error contains no password."""
    flow = Flow("h")
    flow.read("in", KafkaTopic("in", schema="id BIGINT")).write("out", KafkaTopic("out"))
    settings = replace(settings, state_dir=tmp_path, **wrong)  # type: ignore[arg-type]
    plan = plan_flow(flow, settings=settings)

    with pytest.raises(FlowcoreError) as raised, LiveRun(plan, Context(spark, settings, "h")):
        pass

    assert PASSWORD not in str(raised.value)
    assert "guess" not in str(raised.value)
