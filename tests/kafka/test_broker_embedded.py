"""The embedded broker is a real Kafka broker, keeps its data on request, and ends with its owner."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from flowcore.errors import BrokerError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import end_offsets, ensure_topics
from tests.waiting import wait_until

pytestmark = pytest.mark.kafka

_OWNER = """
import os, signal
from flowcore.kafka.broker import EmbeddedBroker

with EmbeddedBroker() as broker:
    if os.fork() == 0:  # it inherits the pipe to the supervisor, and lives on
        signal.pause()
    print(broker.bootstrap_servers, flush=True)
    signal.pause()
"""


def _produce(bootstrap_servers: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(10) == 0


def _consume(bootstrap_servers: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "test",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    try:
        consumer.subscribe([topic])
        values = [message.value() for message in consumer.consume(count, timeout=20)]
    finally:
        consumer.close()
    return [value for value in values if value is not None]


def _javas(folder: Path) -> list[int]:
    """Process ids of the Java processes that run a broker in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_java = (process / "cmdline").read_bytes().split(b"\0")[0].endswith(b"java")
            if is_java and (process / "cwd").readlink().is_relative_to(folder):
                found.append(int(process.name))
    return found


@contextlib.contextmanager
def _program(folder: Path, *command: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a program in its own terminal, with temporary folders in ``folder``."""
    process = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.thorough
def test_embedded_broker_carries_records_and_cleans_up() -> None:
    """A produced record is consumed, from a file of the user; nothing is left at the end."""
    values = [b"%d" % number for number in range(1000)]

    with EmbeddedBroker() as broker:
        assert broker.log
        folder = broker.log.parent
        ensure_topics(broker.bootstrap_servers, {"bids": 2})
        _produce(broker.bootstrap_servers, "bids", values)
        consumed = _consume(broker.bootstrap_servers, "bids", len(values))
        segments = [*(folder / "kafka").glob("bids-*/*.log")]
        modes = {oct(each.stat().st_mode & 0o777) for each in (*segments, *(one.parent for one in segments))}

    assert sorted(consumed) == sorted(values)
    assert modes == {"0o600", "0o700"}
    assert not folder.exists()
    assert _javas(folder) == []


@pytest.mark.thorough
def test_embedded_broker_keeps_data_and_refuses_a_second_broker_on_it(tmp_path: Path) -> None:
    """A data folder survives its broker, works on another port, and is used by one broker at a time."""
    data = tmp_path / "data, größer: 1=1"  # special characters in the folder's name have no effect
    with EmbeddedBroker(data) as first:
        ensure_topics(first.bootstrap_servers, {"bids": 2})
        _produce(first.bootstrap_servers, "bids", [b"kept"] * 100)
        with pytest.raises(BrokerError, match=f"in use by the broker at {first.bootstrap_servers}"):
            EmbeddedBroker(data).start()

    with EmbeddedBroker(data) as second:
        assert second.bootstrap_servers != first.bootstrap_servers
        assert _consume(second.bootstrap_servers, "bids", 100) == [b"kept"] * 100


@pytest.mark.thorough
def test_embedded_broker_restarts_with_its_records_after_a_kill(tmp_path: Path) -> None:
    """`ended` reports the kill to the owner, and the next start on the same data has the records."""
    broker = EmbeddedBroker(tmp_path / "data").start()
    ensure_topics(broker.bootstrap_servers, {"bids": 1})
    _produce(broker.bootstrap_servers, "bids", [b"kept"] * 100)
    (java,) = _javas(tmp_path / "data")

    os.kill(java, signal.SIGKILL)

    with pytest.raises(BrokerError, match=rf"{broker.bootstrap_servers} with data=.* has ended"):
        broker.wait(20)
    broker.stop()
    with broker:
        assert end_offsets(broker.bootstrap_servers, "bids") == {0: 100}


def test_embedded_broker_that_cannot_start_reports_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error contains Java's last output, and no file or process remains."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with pytest.raises(BrokerError, match=r"has ended.*(?s:.*)heap"):
        EmbeddedBroker(heap_mib=1).start()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="kill-9"),
        pytest.param(signal.SIGTERM, id="terminate", marks=pytest.mark.thorough),
        pytest.param(signal.SIGINT, id="interrupt", marks=pytest.mark.thorough),
    ],
)
def test_embedded_broker_ends_with_an_owner_that_is_killed(number: signal.Signals, tmp_path: Path) -> None:
    """Java and folder are gone within seconds, although child processes of the owner are still alive."""
    with _program(tmp_path, "-c", _OWNER) as owner:
        assert owner.stdout
        assert re.match(r"127.0.0.1:\d+", owner.stdout.readline())
        assert len(_javas(tmp_path)) == 1

        owner.send_signal(number)

        wait_until(lambda: not _javas(tmp_path) and not list(tmp_path.iterdir()))


@pytest.mark.thorough
def test_embedded_broker_ends_with_an_owner_that_is_killed_while_it_starts(tmp_path: Path) -> None:
    """A kill at any moment of the start leaves no process and no folder."""
    with _program(tmp_path, "-c", _OWNER) as owner:
        wait_until(lambda: _javas(tmp_path))

        owner.kill()

        wait_until(lambda: not _javas(tmp_path) and not list(tmp_path.iterdir()))


def test_embedded_broker_ends_with_its_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill -9 of the supervisor between owner and Java stops Java and removes the temporary folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with EmbeddedBroker() as broker:
        (java,) = _javas(tmp_path)
        status = Path(f"/proc/{java}/status").read_text()
        (supervisor,) = re.findall(r"^PPid:\s+(\d+)$", status, re.MULTILINE)

        os.kill(int(supervisor), signal.SIGKILL)

        wait_until(lambda: not _javas(tmp_path))
        with pytest.raises(BrokerError, match="has ended"):
            broker.wait(20)

    assert list(tmp_path.iterdir()) == []


def test_broker_command_serves_until_ctrl_c(tmp_path: Path) -> None:
    """The command prints its address as one line of JSON; Ctrl-C stops it, cleans up and exits with 0."""
    command = "from flowcore.cli.broker import broker; broker()"
    with _program(tmp_path, "-c", command, "--topic", "bids:2", "--topic", "out", "--json") as program:
        assert program.stdout
        ready = json.loads(program.stdout.readline())
        ends = {topic: end_offsets(ready["bootstrap_servers"], topic) for topic in ("bids", "out")}

        os.killpg(program.pid, signal.SIGINT)

        assert program.wait(20) == 0
    assert ends == {"bids": {0: 0, 1: 0}, "out": {0: 0}}
    assert _javas(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
