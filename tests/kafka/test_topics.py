"""Functions about topics return the broker's answers, or a clear error without a broker."""

import contextlib
import gc
import logging
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from flowcore import Flow, KafkaTopic
from flowcore.errors import BrokerError
from flowcore.kafka.broker import free_port
from flowcore.kafka.topics import (
    begin_offsets,
    end_offsets,
    end_offsets_of_topics,
    ensure_topics,
    offsets_at,
    partition_counts,
    wait_until_ready,
)
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.run.live_topics import prepare_topics

pytestmark = pytest.mark.kafka


@pytest.fixture
def topic() -> str:
    """A topic name that no other test uses, since the broker is shared."""
    return f"topic-{uuid.uuid4()}"


def test_only_missing_topics_are_created(kafka: str, topic: str) -> None:
    """A second call with another number of partitions changes nothing."""
    assert partition_counts(kafka, [topic]) == {topic: None}

    ensure_topics(kafka, {topic: 3})
    ensure_topics(kafka, {topic: 1, f"{topic}-2": 1})

    assert partition_counts(kafka, [topic, f"{topic}-2"]) == {topic: 3, f"{topic}-2": 1}


def test_run_warns_of_a_topic_with_other_partitions(
    kafka: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The number that a flow declares counts only for a topic that it creates."""
    ensure_topics(kafka, {topic: 1})
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic(topic, schema="id BIGINT", partitions=4))
    bids.write("copy", KafkaTopic(f"{topic}-copy", partitions=2))

    for _ in range(2):
        prepare_topics(plan_flow(flow), Settings(bootstrap_servers=kafka))

    warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert f"operator 'bids': topic '{topic}' exists with 1 partitions, and partitions=4" in warnings[0]
    assert partition_counts(kafka, [f"{topic}-copy"]) == {f"{topic}-copy": 2}


def test_topic_name_that_kafka_refuses_is_named(kafka: str) -> None:
    """The error has the topic, its partitions and the broker's reason."""
    with pytest.raises(BrokerError, match=r"topic 'no spaces' with 2 partitions cannot be created"):
        ensure_topics(kafka, {"no spaces": 2})


def test_offsets_count_the_records_of_each_partition(kafka: str, topic: str) -> None:
    """Begin and end offsets enclose the records; a time gives the first record at or after it."""
    ensure_topics(kafka, {topic: 2})
    producer = Producer({"bootstrap.servers": kafka})
    for time_ms in (1000, 2000, 3000):
        producer.produce(topic, b"x", partition=1, timestamp=time_ms)
    assert producer.flush(10) == 0

    assert begin_offsets(kafka, topic) == {0: 0, 1: 0}
    assert end_offsets(kafka, topic) == {0: 0, 1: 3}
    missing = f"{topic}-missing"
    assert end_offsets_of_topics(kafka, [topic, missing]) == {topic: {0: 0, 1: 3}, missing: {}}
    assert end_offsets_of_topics(kafka, [missing]) == {missing: {}}
    assert offsets_at(kafka, topic, 1500) == {0: 0, 1: 1}
    assert offsets_at(kafka, topic, 3001) == {0: 0, 1: 3}
    assert offsets_at(kafka, topic, -1) == {0: 0, 1: 0}


def test_offsets_of_a_missing_topic_are_refused(kafka: str, topic: str) -> None:
    """Reading offsets does not create the topic."""
    with pytest.raises(BrokerError, match=f"topic '{topic}' does not exist"):
        end_offsets(kafka, topic)

    assert partition_counts(kafka, [topic]) == {topic: None}


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that accepts connections and never answers, like a paused broker."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_topics_without_a_broker_are_an_error() -> None:
    """The message names the address and the command that starts a broker."""
    with pytest.raises(BrokerError, match=r"127.0.0.1:\d+' did not answer.*flowcore broker"):
        partition_counts(f"127.0.0.1:{free_port()}", ["bids"])


def test_topics_of_a_silent_broker_are_an_error(silent: str) -> None:
    """An accepted connection without an answer is a timeout."""
    with pytest.raises(BrokerError, match="did not answer within 5 s"):
        ensure_topics(silent, {"bids": 1})


def test_address_that_cannot_be_read_is_refused_at_once() -> None:
    """The error is a BrokerError that repeats the address."""
    with pytest.raises(BrokerError, match="bootstrap_servers='localhost:kafka'"):
        partition_counts("localhost:kafka", ["bids"])


def test_waiting_ends_when_its_check_raises() -> None:
    """An exception of the caller's check ends the wait long before its timeout."""
    asked = []

    def still_running() -> None:
        asked.append(time.monotonic())
        if len(asked) == 2:
            raise KeyError

    with pytest.raises(KeyError):
        wait_until_ready(f"127.0.0.1:{free_port()}", 60, still_running)

    assert asked[1] - asked[0] < 1


def _open_now() -> tuple[set[threading.Thread], set[str]]:
    """Threads and sockets of this process; a socket's name has its inode, so it is unique."""
    sockets = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            sockets.add(str(link.readlink()))
    return set(threading.enumerate()), {name for name in sockets if name.startswith("socket:")}


def _still_open(before: tuple[set[threading.Thread], set[str]]) -> tuple[set[threading.Thread], set[str]]:
    """Threads and sockets opened since ``before``; other libraries may have closed theirs."""
    threads, sockets = _open_now()
    return threads - before[0], sockets - before[1]


def _client_logs(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Messages of the client and of flowcore; Spark's gateway logs at any time."""
    return [record.getMessage() for record in caplog.records if record.name.startswith(("kafka", "flowcore"))]


def test_answered_requests_leave_nothing_open(
    kafka: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No thread, socket or log line remains, without the garbage collector's help."""
    before = _open_now()
    gc.disable()
    try:
        with caplog.at_level(logging.DEBUG):
            wait_until_ready(kafka, 10, lambda: None)
            ensure_topics(kafka, {topic: 2})
            offsets_at(kafka, topic, 0)

        assert _still_open(before) == (set(), set())
    finally:
        gc.enable()
    assert _client_logs(caplog) == []


@pytest.mark.parametrize("listens", [True, False], ids=["silent", "absent"])
def test_unanswered_requests_leave_nothing_open(
    silent: str, listens: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Failed attempts close all threads and sockets that the client has opened."""
    before = _open_now()
    gc.disable()
    try:
        with caplog.at_level(logging.DEBUG), pytest.raises(BrokerError):
            wait_until_ready(silent if listens else f"127.0.0.1:{free_port()}", 0, lambda: None)

        assert _still_open(before) == (set(), set())
    finally:
        gc.enable()
    assert _client_logs(caplog) == []


def test_other_users_of_the_client_keep_their_log(caplog: pytest.LogCaptureFixture) -> None:
    """Log messages are dropped only during requests about topics."""
    logging.getLogger("kafka.net.manager").warning("bootstrap failed")

    assert caplog.messages == ["bootstrap failed"]
