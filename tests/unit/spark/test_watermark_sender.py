"""What a query's watermark sender emits is written, or written later."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Tumbling, monotonous
from flowcore.elements import RecordAttributes, StreamElement, Watermark, WatermarkStatus
from flowcore.errors import ExpiredLeaseError
from flowcore.planner import plan_flow
from flowcore.serializers import TaggedSerializer
from flowcore.serializers.formats import RawFormat
from flowcore.spark.topics.watermarks import WatermarkSender, key_groups_of, watermarks_of
from flowcore.watermarks.generated import NewestTimes

TAGGED: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())


class Writer:
    """Keeps what is written to the sinks."""

    def __init__(self) -> None:
        self.written: list[list[StreamElement[Any]]] = []

    def continues(self) -> bool:
        return False

    def write(self, elements: Iterable[StreamElement[Any]]) -> None:
        if found := list(elements):
            self.written.append(found)


class Running:
    """A query whose batches have each one record."""

    def __init__(self) -> None:
        self.reports: list[Any] = []
        self._jsq = SimpleNamespace(recentProgress=lambda: self.reports)
        self.status = {"isTriggerActive": False, "isDataAvailable": True}

    def commit(self, newest_ms: int, second: int = 1) -> None:
        self.observe({"newest_0": newest_ms, "records_0": 1}, second)

    def observe(self, metrics: dict[str, Any], second: int = 1) -> None:
        number = len(self.reports)
        report = {
            "batchId": number,
            "timestamp": f"1970-01-01T00:{second // 60:02}:{second % 60:02}.000Z",
            "durationMs": {"addBatch": 1},
            "observedMetrics": {"flowcore-watermarks-bids": metrics},
        }
        self.reports.append(SimpleNamespace(batchId=lambda: number, json=lambda: json.dumps(report)))


def test_elements_whose_state_was_not_saved_are_sent_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While the disk is full nothing is sent; then the latest of each kind. The log has both ends."""
    flow = Flow("f")
    bids = KafkaTopic("bids", schema="id BIGINT", event_time="id", watermark=monotonous())
    flow.read("bids", bids).write("out", KafkaTopic("out", elements="tagged"))
    (query,) = plan_flow(flow, "micro-batch").live_queries
    writer, running, state = Writer(), Running(), tmp_path / "away" / "watermarks.json"
    clock: Any = SimpleNamespace(
        now_ms=lambda: 1_000, every=lambda *_: contextlib.nullcontext(), attach=lambda _: None
    )
    follow: Any = running
    lost: list[Exception] = []

    def require_lease() -> None:
        for error in lost:
            raise error

    sender = WatermarkSender(
        query, watermarks=watermarks_of(query, {"bids": 1}, polls=True, expiry_ms=None),
        writer=writer, clock=clock, interval=timedelta(0), state=state, key_groups=None,  # type: ignore[arg-type]
        require_lease=require_lease,
    ).follow(follow)  # fmt: skip
    sender.begin(lags=None)
    for backlog, newest_ms in ((True, 5_000), (False, 6_000)):
        sender.report_backlog(backlog=backlog)
        running.commit(newest_ms)
        sender._try_to_poll()
    assert writer.written == []

    state.parent.mkdir()
    lost.append(ExpiredLeaseError("another process writes in its place"))
    sender._try_to_poll()
    assert (writer.written, state.exists()) == ([], False)
    lost.clear()
    sender._try_to_poll()
    sender._try_to_poll()

    assert writer.written == [[RecordAttributes(backlog=False), Watermark(5_999)]]
    assert json.loads(state.read_text())["backlog"]["inputs"]
    assert [line.getMessage() for line in caplog.records] == [
        *["watermarks of query 'bids-batches' were not sent: each poll tries it again"] * 2,
        "watermarks of query 'bids-batches' are sent again",
    ]


IDLE, ACTIVE = WatermarkStatus(idle=True), WatermarkStatus(idle=False)
RUNS = {"isTriggerActive": True, "isDataAvailable": True}
HAS_READ = {"isTriggerActive": False, "isDataAvailable": True}
FOUND_NOTHING = {"isTriggerActive": False, "isDataAvailable": False}


def _poller(folder: Path, partitions: int, pause_ms: int = 0) -> tuple[Any, Running, Writer]:
    """What polls at a second and a status, for a source whose partitions are idle after 10 s."""
    flow = Flow("f")
    strategy = monotonous().with_idleness(timedelta(seconds=10))
    bids = KafkaTopic("bids", schema="id BIGINT", event_time="id", watermark=strategy)
    flow.read("bids", bids).write("out", KafkaTopic("out", elements="tagged"))
    (query,) = plan_flow(flow, "micro-batch").live_queries
    writer, running, now = Writer(), Running(), [0]
    clock: Any = SimpleNamespace(now_ms=lambda: now[0], every=lambda *_: contextlib.nullcontext())
    sender = WatermarkSender(
        query, watermarks=watermarks_of(query, {"bids": partitions}, polls=True, expiry_ms=None),
        writer=writer, clock=clock, interval=timedelta(0), state=folder / "watermarks.json",  # type: ignore[arg-type]
        key_groups=None, require_lease=lambda: None,
    ).follow(running, pause_ms)  # type: ignore[arg-type] # fmt: skip

    def poll(second: int, status: dict[str, bool]) -> list[Any]:
        now[0], running.status = 1_000 * second, status
        sender._poll()
        found, writer.written = [each for batch in writer.written for each in batch], []
        return found

    return poll, running, writer


def test_partition_is_not_silent_while_a_batch_runs(tmp_path: Path) -> None:
    """Its records are unread meanwhile; it is silent when the query waits for input."""
    poll, running, _ = _poller(tmp_path, 1)
    running.commit(5_000, second=1)
    assert poll(2, HAS_READ) == [Watermark(4_999)]

    assert [poll(second, RUNS) for second in (3, 30, 60)] == [[], [], []]
    running.commit(6_000, second=3)
    assert poll(61, RUNS) == [Watermark(5_999)]
    assert [poll(second, FOUND_NOTHING) for second in (62, 63, 72, 74)] == [[], [], [], [IDLE]]


def test_partition_is_not_silent_before_the_next_trigger(tmp_path: Path) -> None:
    poll, running, _ = _poller(tmp_path, 1, pause_ms=60_000)
    running.commit(5_000, second=0)
    poll(1, HAS_READ)

    assert [poll(second, HAS_READ) for second in (2, 30, 59)] == [[], [], []]
    assert [poll(second, FOUND_NOTHING) for second in (61, 119, 122, 133)] == [[], [IDLE], [], []]


def test_partition_is_silent_while_others_are_read(tmp_path: Path) -> None:
    """By the starts of the batches, however long they take."""
    poll, running, _ = _poller(tmp_path, 2)
    both = {"newest_0": 5_000, "records_0": 1, "newest_1": 4_000, "records_1": 1}
    running.observe(both, second=1)
    assert poll(20, RUNS) == [Watermark(3_999)]
    for start, end in ((20, 21), (21, 40)):
        running.commit(1_000 * end, second=start)
        assert poll(end, RUNS) == []
    running.commit(50_000, second=40)

    assert poll(41, RUNS) == [Watermark(49_999)]


def _controls(*sent: tuple[str, Watermark | WatermarkStatus], count: int | None = None) -> dict[str, Any]:
    """What a batch observes of the control elements of channels, if there were ``count`` others in all."""
    found: dict[str, list[Any]] = {"watermarks": [], "others": []}
    for offset, (channel, element) in enumerate(sent):
        row = {"partition": 0, "offset": offset, "channel": channel, "element": TAGGED.encode(element).hex()}
        found["watermarks" if isinstance(element, Watermark) else "others"].append(row)
    return {**found, "others_count": len(found["others"]) if count is None else count}


def _sender(folder: Path) -> tuple[WatermarkSender, Writer]:
    """The sender of a query that copies a tagged topic, and what it writes."""
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema="id BIGINT", elements="tagged"))
    bids.write("out", KafkaTopic("out", elements="tagged"))
    (query,) = plan_flow(flow, "micro-batch").live_queries
    clock: Any = SimpleNamespace(now_ms=lambda: 1_000, every=lambda *_: contextlib.nullcontext())
    writer = Writer()
    sender = WatermarkSender(
        query, watermarks=watermarks_of(query, {"bids": 1}, polls=True, expiry_ms=None),
        writer=writer, clock=clock, interval=timedelta(0), state=folder / "watermarks.json",  # type: ignore[arg-type]
        key_groups=None, require_lease=lambda: None,
    )  # fmt: skip
    return sender, writer


@pytest.mark.parametrize(
    ("count", "known", "expected"),
    [
        (2_048, [], [Watermark(300)]),
        (2_049, [], []),
        (2_049, [("b", IDLE)], [Watermark(300)]),
        (2_049, [("b", Watermark(250))], [Watermark(250)]),
    ],
    ids=["all-known", "missed", "last-status-known", "watermark-known"],
)
def test_channel_whose_status_may_have_been_missed_holds_the_watermark(
    count: int, known: list[Any], expected: list[Any], tmp_path: Path
) -> None:
    """It may have become active, and its records would be late by the watermark of the others."""
    running: Any = Running()
    sender, writer = _sender(tmp_path)
    sender.follow(running)
    running.observe(_controls(("a", Watermark(100)), ("b", Watermark(100)), ("b", IDLE)))
    sender._try_to_poll()
    running.observe(_controls(("a", Watermark(200))))
    sender._try_to_poll()
    assert writer.written == [[Watermark(100)], [Watermark(200)]]

    running.observe(_controls(("a", Watermark(300)), ("a", ACTIVE), *known, count=count))
    sender._try_to_poll()

    assert [each for batch in writer.written[2:] for each in batch] == expected
    running.observe(_controls(("b", Watermark(400))))
    sender._try_to_poll()
    assert writer.written[-1] == [Watermark(300)]


@pytest.mark.parametrize(
    ("committed", "expected"), [(0, [Watermark(100), Watermark(300)]), (1, [Watermark(100)])],
    ids=["all-polled", "one-not-polled"],
)  # fmt: skip
def test_channel_may_have_become_active_in_a_batch_that_was_not_polled(
    committed: int, expected: list[Any], tmp_path: Path
) -> None:
    """A kill between the commit and the poll loses the elements of the batch."""

    def start() -> tuple[WatermarkSender, Any, Writer]:
        running: Any = Running()
        sender, writer = _sender(tmp_path)
        sender.begin(lags=None)
        return sender.follow(running), running, writer

    sender, running, _ = start()
    running.observe(_controls(("a", Watermark(100)), ("b", Watermark(100)), ("b", IDLE)))
    sender._poll()
    (tmp_path / "commits").mkdir()
    for number in range(committed + 1):
        (tmp_path / "commits" / str(number)).touch()

    sender, running, writer = start()
    sender._poll()
    running.reports = [None] * (committed + 1)
    running.observe(_controls(("a", Watermark(300))))
    running.reports = running.reports[-1:]
    sender._poll()

    assert [each for batch in writer.written for each in batch] == expected


@pytest.mark.parametrize("batches", [99, 100], ids=["all-reported", "one-lost"])
def test_channel_may_have_become_active_in_a_batch_whose_report_is_lost(batches: int, tmp_path: Path) -> None:
    """Spark keeps the reports of a hundred batches, and the process may not run for so long."""
    running: Any = Running()
    running._jsq = SimpleNamespace(recentProgress=lambda: running.reports[-100:])
    sender, writer = _sender(tmp_path)
    sender.follow(running)
    running.observe(_controls(("a", Watermark(100)), ("b", Watermark(100)), ("b", IDLE)))
    sender._try_to_poll()

    running.observe(_controls(("b", ACTIVE)))
    for number in range(batches):
        running.observe(_controls(("a", Watermark(200 + number))))
    sender._try_to_poll()

    assert writer.written == [[Watermark(100)]]


def test_key_group_may_have_become_active_in_a_batch_whose_report_is_lost(tmp_path: Path) -> None:
    """An operator whose key groups are all idle does not hold the watermark of the others."""
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema="id BIGINT", event_time="id", watermark=monotonous()))
    once, twice = (bids.deduplicate(by="id", within=None, name=name) for name in ("once", "twice"))
    once.union(twice, name="both").write("out", KafkaTopic("out", elements="tagged"))
    (query,) = plan_flow(flow, "micro-batch").live_queries
    running: Any = Running()
    clock: Any = SimpleNamespace(now_ms=lambda: 1_000, every=lambda *_: contextlib.nullcontext())
    writer = Writer()
    sender = WatermarkSender(
        query, watermarks=watermarks_of(query, {"bids": 1}, polls=True, expiry_ms=None),
        writer=writer, clock=clock, interval=timedelta(0), state=tmp_path / "watermarks.json",  # type: ignore[arg-type]
        key_groups=key_groups_of(query), require_lease=lambda: None,
    ).follow(running)  # fmt: skip

    def report(name: str, **changes: int) -> None:
        groups = [json.dumps([f"{name}/{group}", changes]) for group in range(query.key_groups)]
        running.observe({"emitted": groups})
        sender._try_to_poll()

    report("once", watermark_ms=100)
    report("twice", watermark_ms=100, idle=True)
    report("once", watermark_ms=200)
    running.observe({})
    running._jsq = SimpleNamespace(recentProgress=lambda: running.reports[-1:])
    report("once", watermark_ms=300)

    assert writer.written == [[Watermark(100)], [Watermark(200)]]


@pytest.mark.parametrize(("interval_s", "expected"), [(0, 0.02), (0.2, 0.2), (60, 1)])
def test_reports_are_polled_each_second_at_least(interval_s: float, expected: float, tmp_path: Path) -> None:
    """With a long interval of periodic watermarks Spark would drop reports between two polls."""
    flow = Flow("f")
    flow.read("bids", KafkaTopic("bids", schema="id BIGINT")).write(
        "out", KafkaTopic("out", elements="tagged")
    )
    (query,) = plan_flow(flow, "micro-batch").live_queries
    asked: list[float] = []
    clock: Any = SimpleNamespace(now_ms=lambda: 1_000, every=lambda interval, *_: asked.append(interval))
    WatermarkSender(
        query, watermarks=watermarks_of(query, {"bids": 1}, polls=True, expiry_ms=None),
        writer=Writer(), clock=clock, interval=timedelta(seconds=interval_s),  # type: ignore[arg-type]
        state=tmp_path / "watermarks.json", key_groups=None, require_lease=lambda: None,
    )  # fmt: skip

    assert asked == [expected]


def test_branch_without_event_time_does_not_hold_the_watermark_of_a_tagged_sink() -> None:
    """The sink has the watermarks of the operators that it reads."""
    flow = Flow("f")
    lines = flow.read("lines", KafkaTopic("lines", schema="line STRING, at BIGINT"))
    timed = lines.with_event_time("at", watermark=monotonous(), name="timed")
    counts = timed.window(Tumbling(10), by="line", name="w").aggregate(n="count(*)")
    counts.write("counts", KafkaTopic("counts", elements="tagged"))
    lines.deduplicate(by="line", within=None, name="once").write("distinct", KafkaTopic("distinct"))
    (query,) = plan_flow(flow, "micro-batch").live_queries

    combined = key_groups_of(query)

    assert combined is not None
    for group in range(query.key_groups):
        combined.take(f"w/{group}", {"watermark_ms": 7})
    assert combined.emit() == (Watermark(7),)


def test_source_without_watermarks_holds_the_watermark_of_a_union() -> None:
    """Its records would be late for each reader of the topic."""
    flow = Flow("f")
    a, b = (KafkaTopic(name, schema="id BIGINT", event_time="id") for name in "ab")
    timed = flow.read("a", replace(a, watermark=monotonous()))
    timed.union(flow.read("b", b), name="both").write("out", KafkaTopic("out", elements="tagged"))
    (query,) = plan_flow(flow, "micro-batch").live_queries
    watermarks = watermarks_of(query, {"a": 1, "b": 1}, polls=True, expiry_ms=None)

    for source in "ab":
        watermarks.take(source, NewestTimes.of({"0": 5_000}))

    assert watermarks.poll(1_000) == ()


def test_tagged_sink_of_a_source_and_of_key_groups_has_the_smaller_watermark() -> None:
    """It reads both."""
    flow = Flow("f")
    bids = KafkaTopic("bids", schema="id BIGINT", event_time="id", watermark=monotonous())
    read = flow.read("bids", bids)
    once = read.deduplicate(by="id", within=None, name="once")
    once.union(read, name="both").write("out", KafkaTopic("out", elements="tagged"))
    (query,) = plan_flow(flow, "micro-batch").live_queries

    combined = key_groups_of(query)

    assert combined is not None
    for group in range(query.key_groups):
        combined.take(f"once/{group}", {"watermark_ms": 7})
    assert combined.emit() == ()
    assert WatermarkSender._combine(combined, [Watermark(5)]) == (Watermark(5),)
