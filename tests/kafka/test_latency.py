"""Markers are written on time and collected with their latency, whatever fails."""

import contextlib
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, LatencyMarkerEvent
from flowcore.errors import BrokerError, ConfigurationError, ElementError
from flowcore.kafka.broker import EmbeddedBroker, free_port
from flowcore.kafka.latency_collector import LatencyCollector
from flowcore.kafka.markers import MarkerSource, ensure_companion
from flowcore.kafka.topics import end_offsets, ensure_topics, partition_counts
from flowcore.latency import OTHER, LatencySummary
from flowcore.serializers.events import LatencyMarkerEventSerializer
from tests.waiting import LONGEST_S, wait_until

pytestmark = pytest.mark.kafka

INTERVAL = timedelta(milliseconds=100)
INTERVAL_MS = 100
encode = LatencyMarkerEventSerializer().encode
decode = LatencyMarkerEventSerializer().decode


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """A broker for the tests that do not stop it."""
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


def events(servers: str, topic: str) -> dict[int, list[tuple[LatencyMarkerEvent, int]]]:
    """Events of a companion topic by partition, each with Kafka's timestamp."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test", "enable.auto.commit": False})
    found: dict[int, list[tuple[LatencyMarkerEvent, int]]] = {}
    for partition, end in end_offsets(servers, f"{topic}.events").items():
        found[partition] = []
        consumer.assign([TopicPartition(f"{topic}.events", partition, 0)])
        while len(found[partition]) < end:
            (message,) = consumer.consume(1, timeout=20)
            found[partition].append((decode(message.value() or b""), message.timestamp()[1]))
    consumer.close()
    return found


def send(servers: str, topic: str, *values: bytes | None) -> None:
    """Send values to the companion topic of a topic."""
    producer = Producer({"bootstrap.servers": servers, "message.max.bytes": 4_000_000, "log_level": 0})
    for value in values:
        producer.produce(f"{topic}.events", value, partition=0)
    assert producer.flush(20) == 0


def now(operator_id: str) -> bytes:
    """A marker with the current time."""
    return encode(LatencyMarkerEvent(int(time.time() * 1000), operator_id, 0))


@contextlib.contextmanager
def passing(servers: str, source: str, sink: str) -> Iterator[None]:
    """Simulate a flow of two partitions: events pass from topic to topic with unchanged bytes."""
    ensure_topics(servers, {source: 2, sink: 2})
    for topic in (source, sink):
        ensure_companion(servers, topic)
    ended = threading.Event()

    def run() -> None:
        group = {"group.id": "flow", "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": servers, "log_level": 0, **group})
        consumer.assign([TopicPartition(f"{source}.events", number, 0) for number in range(2)])
        producer = Producer({"bootstrap.servers": servers, "log_level": 0, "linger.ms": 0})
        while not ended.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                producer.produce(f"{sink}.events", message.value(), partition=message.partition())
            producer.poll(0)
        producer.flush(5)
        consumer.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def only(found: tuple[LatencySummary, ...]) -> LatencySummary:
    """The only summary."""
    (summary,) = found
    return summary


def only_of(source: str, collector: LatencyCollector) -> int:
    """Number of counted markers of a source."""
    return sum(found.count for found in collector.read() if found.source == source)


def kill(data: Path) -> None:
    """Kill the broker's Java process."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_java = (process / "cmdline").read_bytes().split(b"\0")[0].endswith(b"java")
            if is_java and (process / "cwd").readlink().is_relative_to(data):
                os.kill(int(process.name), signal.SIGKILL)


@pytest.mark.thorough
def test_companion_has_the_partitions_of_its_topic_and_an_hours_retention(servers: str) -> None:
    """The companion is created once; if its topic has more partitions, it gets as many."""
    ensure_topics(servers, {"made": 3, "grown": 3, "grown.events": 1})

    assert [ensure_companion(servers, name) for name in ("made", "made", "grown")] == [3, 3, 3]

    assert partition_counts(servers, ["made.events", "grown.events"]) == {
        "made.events": 3,
        "grown.events": 3,
    }
    client = AdminClient({"bootstrap.servers": servers})
    (answer,) = client.describe_configs([ConfigResource("topic", "made.events")]).values()
    assert answer.result(10)["retention.ms"].value == "3600000"


def test_companion_of_a_missing_topic_is_refused(servers: str) -> None:
    """Neither the topic nor its companion is created."""
    with pytest.raises(BrokerError, match="topic 'missing' does not exist"):
        MarkerSource(servers, "missing", "flow/in", INTERVAL).__enter__()

    assert partition_counts(servers, ["missing", "missing.events"]) == {
        "missing": None,
        "missing.events": None,
    }


def test_marker_source_that_cannot_work_is_refused() -> None:
    """The values are checked before a broker is contacted."""
    with pytest.raises(ConfigurationError, match=r"interval=0.5 ms .* under a millisecond"):
        MarkerSource("", "bids", "flow/bids", timedelta(microseconds=500))
    with pytest.raises(ElementError, match="operator_id=''"):
        MarkerSource("", "bids", "", INTERVAL)


def test_markers_are_written_to_every_partition_and_collected(servers: str) -> None:
    """Marks rise by the interval, the partitions alternate, and each marker is counted once."""
    with passing(servers, "bids", "out"), LatencyCollector(servers, {"out": "sink"}) as collector:
        assert collector.wait_ready(10)
        with MarkerSource(servers, "bids", "flow/bids", INTERVAL) as source:
            wait_until(lambda: source.delivered >= 40)
        wait_until(lambda: sum(found.count for found in collector.read()) >= source.delivered)
        total, recent = only(collector.read()), only(collector.recent())

    written = events(servers, "bids")
    assert source.failed == 0
    assert sum(map(len, written.values())) == source.delivered
    for partition, found in written.items():
        marks = [event.marked_ms for event, _ in found]
        steps = [later - earlier for earlier, later in itertools.pairwise(marks)]
        assert {(event.operator_id, event.subtask) for event, _ in found} == {("flow/bids", partition)}
        assert min(steps) > 0
        assert statistics.mean(steps) == pytest.approx(INTERVAL_MS, rel=0.1)
        assert [kept_ms for _, kept_ms in found] == marks
    order = [
        partition
        for _, partition in sorted(
            (event.marked_ms, partition) for partition, found in written.items() for event, _ in found
        )
    ]
    repeats = sum(one == other for one, other in itertools.pairwise(order))
    assert repeats <= len(order) // 10  # a busy machine may make two markers late
    assert (total.source, total.sink, total.count, total.subtasks) == (
        "flow/bids",
        "sink",
        source.delivered,
        2,
    )
    assert (total.skewed, total.implausible, total.saturated, collector.bad) == (0, 0, 0, 0)
    assert 0 < (total.p50_ms or 0) <= (total.p99_ms or 0) <= (total.max_ms or 0)
    assert total == recent


def test_collector_starts_at_the_end_and_waits_for_topics(servers: str) -> None:
    """Earlier events are not counted, later ones are; waiting for a topic does not create it."""
    ensure_topics(servers, {"old.events": 1})
    send(servers, "old", now("flow/too-early"))
    with LatencyCollector(servers, {"old": "first", "young": "second"}) as collector:
        assert collector.wait_ready(10)
        send(servers, "old", now("flow/old"))
        time.sleep(1.2)  # the collector has polled a second time
        assert partition_counts(servers, ["young.events"]) == {"young.events": None}

        ensure_topics(servers, {"young.events": 1})
        while len(collector.read()) < 2:
            send(servers, "young", now("flow/young"))
            time.sleep(0.05)

        found = [(each.sink, each.source) for each in collector.read()]
        assert found == [("first", "flow/old"), ("second", "flow/young")]
        assert collector.read()[0].count == 1


def test_invalid_events_are_counted_separately(servers: str) -> None:
    """Bytes that are not an event and events of unknown sources do not change a good source's summary."""
    ensure_topics(servers, {"hostile": 1})
    ensure_companion(servers, "hostile")
    good = encode(LatencyMarkerEvent(1_000, "flow/in", 0))
    bad = [None, b"", b"\0", good[:-1], good + b"x", b"\2" + good[1:], b"\1\2" + good[2:], b"x" * 900_000]
    strange = [
        encode(LatencyMarkerEvent(marked_ms, "strange", 2**31 - 1))
        for marked_ms in (MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS, -1, 0, 10**15)
    ]
    with LatencyCollector(servers, {"hostile": "sink"}) as collector:
        assert collector.wait_ready(10)
        send(servers, "hostile", *bad, *strange)
        now_ms = int(time.time() * 1000)
        skewed = encode(LatencyMarkerEvent(now_ms + 60_000, "flow/in", 0))
        send(servers, "hostile", skewed, encode(LatencyMarkerEvent(now_ms, "flow/in", 0)))
        wait_until(lambda: any(found.count for found in collector.read()))

        counts = {found.source: (found.count, found.skewed, found.implausible) for found in collector.read()}
        assert counts == {"flow/in": (1, 1, 0), OTHER: (0, 0, len(strange))}
        assert collector.bad == len(bad)
        assert "hostile.events[0]@7 has 900000 bytes" in (collector.last_bad or "")


@pytest.mark.thorough
def test_markers_continue_after_the_broker_was_killed(tmp_path: Path) -> None:
    """During the outage markers are dropped and counted, and `close` does not wait for the broker."""
    broker = EmbeddedBroker(tmp_path / "data").start()
    servers = broker.bootstrap_servers
    with (
        passing(servers, "bids", "out"),
        MarkerSource(servers, "bids", "flow/bids", INTERVAL) as source,
        LatencyCollector(servers, {"out": "sink"}) as collector,
    ):
        other = MarkerSource(servers, "bids", "flow/other", INTERVAL).__enter__()
        assert collector.wait_ready(10)
        wait_until(collector.read)

        kill(tmp_path / "data")
        killed_ms = int(time.time() * 1000)
        wait_until(lambda: source.failed)
        delivered, counted = source.delivered, only_of("flow/bids", collector)
        began_s = time.monotonic()
        other.close()
        assert time.monotonic() - began_s < 30  # Kafka's clients wait for a minute
        broker.stop()
        late = LatencyCollector(servers, {"out": "sink"}).__enter__()
        assert not late.wait_ready(0.5)
        with broker:
            back_ms = int(time.time() * 1000)
            wait_until(lambda: source.delivered > delivered + 10)
            wait_until(lambda: only_of("flow/bids", collector) > counted + 10)
            assert late.wait_ready(10)
            wait_until(late.read)
            late.close()
            marks = [event.marked_ms for found in events(servers, "bids").values() for event, _ in found]

    lost_until_ms = back_ms - 2_500  # a marker expires after a second, which is checked each second
    assert lost_until_ms > killed_ms + 100
    assert not [mark for mark in marks if killed_ms + 100 < mark < lost_until_ms]
    assert source.last_error


def test_collector_without_a_broker_closes_at_once() -> None:
    """A collector whose broker never answered does not wait for it to close, and has counted nothing."""
    collector = LatencyCollector(f"127.0.0.1:{free_port()}", {"bids": "sink"})
    with collector:
        assert not collector.wait_ready(0.3)
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 30  # Kafka's clients wait for a minute

    assert (collector.read(), collector.recent(), collector.bad) == ((), (), 0)


FLOW = """
from flowcore import Flow, KafkaTopic

flow = Flow("shop")
sales = flow.read("sales", KafkaTopic("sales", schema="id BIGINT"))
sales.write("copied", KafkaTopic("copies"))
"""


@pytest.fixture
def command(servers: str, tmp_path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Starts `flowcore latency` in its own process."""
    (tmp_path / "shop.py").write_text(FLOW)

    def start(*options: str, broker: str = servers) -> "subprocess.Popen[str]":
        words = ["latency", "shop:flow", "--set", f"kafka.bootstrap.servers={broker}", *options]
        return subprocess.Popen(
            [sys.executable, "-m", "flowcore.cli.main", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


def test_latency_command_prints_one_object(
    servers: str, command: Callable[..., "subprocess.Popen[str]"]
) -> None:
    """The object names flow, source and sink, although the flow runs in another process."""
    with passing(servers, "sales", "copies"), MarkerSource(servers, "sales", "shop/sales", INTERVAL):
        output, errors = command("--seconds", "3", "--json").communicate(timeout=LONGEST_S)

    found = json.loads(output)
    assert (found["flow"], found["bad_events"], errors) == ("shop", 0, "")
    (latency,) = found["latencies"]
    assert (latency["source"], latency["sink"], latency["subtasks"]) == ("shop/sales", "shop/copied", 2)
    assert latency["count"] > 10
    assert latency["p50_ms"] > 0


@pytest.mark.thorough
def test_latency_command_ends_with_ctrl_c(
    servers: str, command: Callable[..., "subprocess.Popen[str]"]
) -> None:
    """Without a terminal it prints lines and, at the end, a table; Ctrl-C gives exit code 0."""
    hostile = "\x1b[2J[bold]"
    with (
        passing(servers, "sales", "copies"),
        MarkerSource(servers, "sales", "shop/sales", INTERVAL),
        MarkerSource(servers, "sales", hostile, INTERVAL),
        command() as program,
    ):
        assert program.stdout
        first, second = program.stdout.readline(), program.stdout.readline()
        os.killpg(program.pid, signal.SIGINT)
        rest, errors = program.communicate(timeout=LONGEST_S)

    assert first.startswith("\\x1b[2J[bold] -> shop/copied: ")
    assert re.match(r"shop/sales -> shop/copied: \d+ markers in the last minute, p50 \d+\.\d ms, p90", second)
    assert "since the start" in rest
    assert "\x1b" not in rest
    assert (program.returncode, errors) == (0, "")


@pytest.mark.parametrize(
    ("is_there", "message"),
    [
        (True, "that it has metrics.latency.interval"),
        (False, "no broker has answered at 127.0.0.1:1 "),
    ],
    ids=["no-markers", "no-broker"],
)
def test_latency_command_reports_why_there_are_no_markers(
    command: Callable[..., "subprocess.Popen[str]"], servers: str, is_there: bool, message: str
) -> None:
    """The error is one line without a traceback, and the exit code is 1."""
    program = command("--seconds", "2", broker=servers if is_there else "127.0.0.1:1")
    output, errors = program.communicate(timeout=LONGEST_S)

    assert (output, program.returncode) == ("", 1)
    assert errors.startswith("error: ")
    assert message in errors
    assert errors.count("\n") == 1
