"""The broker in a container keeps its address and its records through every fault."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import docker
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from flowcore.errors import InstallationError
from flowcore.kafka.topics import end_offsets, ensure_topics
from flowcore.testing.kafka_container import KafkaBroker
from flowcore.testing.kafka_fixtures import new_kafka_broker

pytestmark = pytest.mark.kafka

_KILLED_OWNER = """
import os, signal
from flowcore.testing.kafka_container import KafkaBroker

print(KafkaBroker().start().get_container_id(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def _containers(container_id: str) -> list[object]:
    client = docker.from_env()
    try:
        return list(client.containers.list(all=True, filters={"id": container_id}))
    finally:
        client.close()


def test_container_broker_keeps_records_through_faults() -> None:
    """Halt, kill and pause lose no acknowledged record, and the container is removed at the end."""
    faults: list[tuple[Callable[[KafkaBroker], None], Callable[[KafkaBroker], KafkaBroker]]] = [
        (KafkaBroker.halt, KafkaBroker.bring_back),
        (KafkaBroker.kill, KafkaBroker.bring_back),
        (KafkaBroker.pause, KafkaBroker.resume),
    ]
    with new_kafka_broker() as broker:
        name = broker.get_container_id()
        ensure_topics(broker.bootstrap_servers, {"bids": 1})
        for number, (fault, undo) in enumerate(faults, start=1):
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
            for _ in range(100):
                producer.produce("bids", b"kept")
            assert producer.flush(10) == 0
            fault(broker)
            undo(broker)

            assert end_offsets(broker.bootstrap_servers, "bids") == {0: 100 * number}

    assert _containers(name) == []


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """Create a certificate authority, ``ca.pem``, and the broker's key, ``broker.pem``, in a folder."""
    new = "openssl req -x509 -newkey rsa:2048 -nodes -days 2"
    signed = "-CA ca.pem -CAkey ca.key -addext subjectAltName=IP:127.0.0.1"
    for command in (
        f"{new} -subj /CN=authority -keyout ca.key -out ca.pem",
        f"{new} -subj /CN=broker -keyout broker.key -out broker.crt {signed}",
    ):
        subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    pem = (tmp_path / "broker.key").read_bytes() + (tmp_path / "broker.crt").read_bytes()
    (tmp_path / "broker.pem").write_bytes(pem)
    return tmp_path


def test_container_with_a_certificate_requires_a_password(authority: Path) -> None:
    """The secure address accepts the user created at the plain address and rejects a wrong password."""
    with new_kafka_broker(pem=(authority / "broker.pem").read_bytes()) as broker:
        user = UserScramCredentialUpsertion(
            "flow", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), b"secret"
        )
        plain = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        plain.alter_user_scram_credentials([user])["flow"].result(10)
        secure: dict[str, str | int | float | bool] = {
            "bootstrap.servers": broker.secure,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "flow",
            "ssl.ca.location": str(authority / "ca.pem"),
            "log_level": 0,
        }

        assert AdminClient({**secure, "sasl.password": "secret"}).list_topics(timeout=10).brokers
        with pytest.raises(KafkaException):
            AdminClient({**secure, "sasl.password": "wrong"}).list_topics(timeout=3)


@pytest.mark.thorough
def test_container_of_a_killed_process_is_removed_by_the_next_start(kafka_broker: KafkaBroker) -> None:
    """A start removes containers of dead processes and keeps containers of live processes."""
    name = subprocess.run(
        [sys.executable, "-c", _KILLED_OWNER], stdout=subprocess.PIPE, text=True, check=False
    ).stdout.strip()
    assert len(_containers(name)) == 1

    with new_kafka_broker():
        assert _containers(name) == []
        assert len(_containers(kafka_broker.get_container_id())) == 1


def test_container_without_an_engine_names_the_command_that_starts_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a container engine the test fails in CI and is skipped elsewhere, with the same reason."""
    monkeypatch.setitem(os.environ, "DOCKER_HOST", "tcp://127.0.0.1:9")
    monkeypatch.setitem(os.environ, "CI", "true")
    with pytest.raises(InstallationError, match=r"no Docker engine answers.*deploy/check kafka"):
        new_kafka_broker()

    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match=r"no Docker engine answers.*deploy/check kafka"):
        new_kafka_broker()
