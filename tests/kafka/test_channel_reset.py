"""`flowcore watermarks` shows which channel holds event time, and lets it hold no more."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from flowcore import Flow, KafkaTopic, Tumbling, monotonous
from flowcore.cli.watermarks import watermarks
from flowcore.elements import Record, StreamElement, Watermark, WatermarkStatus
from flowcore.errors import ConfigurationError, PlanError, StateError
from flowcore.kafka.topics import ensure_topics
from flowcore.serializers import TaggedSerializer
from flowcore.serializers.formats import RawFormat
from tests.sampling import sample
from tests.waiting import run_until

pytestmark = pytest.mark.kafka

Live = Any
TAGGED: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())
GONE = "gone/query"


@pytest.fixture(params=sample([True, False], True), ids=["tagged-sink", "key-groups-only"])
def flow(request: pytest.FixtureRequest, live: Live, monkeypatch: pytest.MonkeyPatch) -> Flow:
    """A flow of windows, as a user's module; with a plain sink the driver keeps no watermarks."""
    source = live.topic("bids", schema="id BIGINT", elements="tagged")
    out = live.topic("out", elements="tagged" if request.param else "plain", partitions=1)
    flow = Flow("f")
    flow.read("bids", source).window(Tumbling(10)).aggregate(n="count(*)").select("n").write("out", out)
    module = type(sys)("windows_of_bids")
    module.flow = flow  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return flow


def _send(live: Live, topic: KafkaTopic, element: StreamElement[bytes], channel: str, partition: int) -> None:
    ensure_topics(live.servers, {topic.name: 2})
    producer = Producer({"bootstrap.servers": live.servers, "log_level": 0})
    headers: Any = [("flowcore-channel", channel)] if channel else []
    producer.produce(topic.name, TAGGED.encode(element), partition=partition, headers=headers)
    assert producer.flush(20) == 0


def _call(live: Live, *arguments: str) -> Result:
    settings = {"state.dir": live.settings.state_dir, "kafka.bootstrap.servers": live.servers}
    pairs = [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
    return CliRunner().invoke(watermarks, ["windows_of_bids:flow", *pairs, *arguments])


def _counted(live: Live, flow: Flow) -> int:
    """How many windows have fired."""
    (out,) = (sink.topic for sink in flow.sinks)
    return sum(b'"n":' in (record.value or b"") for record in live.records(out))


def _shown(live: Live) -> list[tuple[object, ...]]:
    rows = [json.loads(line) for line in _call(live, "--json").output.splitlines()]
    return [tuple(row[name] for name in ("partition", "channel", "watermark_ms", "status")) for row in rows]


def test_channel_that_is_reset_holds_event_time_no_more_until_its_writer_is_active(
    live: Live, flow: Flow
) -> None:
    """A window fires in the running flow; the channel is shown with its status, the lowest first."""
    source = flow.operators[0].topic
    assert source is not None
    before = _call(live)
    assert isinstance(before.exception, StateError)
    assert "has no checkpoint in" in str(before.exception)
    _send(live, source, Record(b'{"id":1}', 1_000), "", 0)
    for partition in (0, 1):
        _send(live, source, Watermark(5_000), GONE, partition)
        _send(live, source, Watermark(20_000), "here/query", partition)
    live.run(flow)
    assert _counted(live, flow) == 0

    shown = _call(live)
    assert shown.exit_code == 0, shown.exception
    assert shown.output.splitlines() == [
        f"bids: topic {source.name}, query bids-batches",
        *(f"  {n:>4}  active  1970-01-01 00:00:05.000Z  gone/query" for n in (0, 1)),
        *(f"  {n:>4}  active  1970-01-01 00:00:20.000Z  here/query" for n in (0, 1)),
    ]
    unknown = _call(live, "--reset", "gone")
    assert isinstance(unknown.exception, ConfigurationError)
    assert (
        "channel 'gone' is not known to bids: it holds no event time; known are 'gone/query', 'here/"
        in str(unknown.exception)
    )

    def reset(run: Any) -> None:
        reset = _call(live, "--reset", GONE)
        text = f"bids: channel gone/query is idle in 2 partitions of topic {source.name}"
        assert reset.output.startswith(text), reset.exception
        again = json.loads(_call(live, "--reset", GONE, "--json").output)
        assert again == {"source": "bids", "topic": source.name, "channel": GONE, "partitions": 2}
        idle = [(0, GONE, 5_000, "idle"), (1, GONE, 5_000, "idle")]
        active = [(n, "here/query", 20_000, "active") for n in (0, 1)]
        run_until(run, lambda: _counted(live, flow) == 1)
        run_until(run, lambda: _shown(live) == [*idle, *active])  # when the batch is committed

    live.run(flow, mode="micro-batch", until=reset)

    # It holds event time again.
    _send(live, source, Record(b'{"id":2}', 21_000), "", 0)
    for partition in (0, 1):
        _send(live, source, WatermarkStatus(idle=False), GONE, partition)
        _send(live, source, Watermark(40_000), "here/query", partition)
    live.run(flow)
    assert _counted(live, flow) == 1


@pytest.mark.parametrize("has_state", sample([True, False], True), ids=["key-groups", "driver"])
def test_silent_channel_expires_while_others_send(live: Live, has_state: bool) -> None:
    """The window fires, or the sink gets the watermark, with `watermark.channel-expiry`."""
    live.settings = replace(live.settings, channel_expiry=timedelta(seconds=2))
    source = live.topic("bids", schema="id BIGINT", elements="tagged")
    out = live.topic("out", elements="plain" if has_state else "tagged", partitions=1)
    flow = Flow("f")
    read = flow.read("bids", source)
    if has_state:
        read.window(Tumbling(10)).aggregate(n="count(*)").select("n").write("out", out)
    else:
        read.write("out", out)
    _send(live, source, Record(b'{"id":1}', 1_000), "", 0)
    for partition in (0, 1):
        _send(live, source, Watermark(5_000), GONE, partition)
        _send(live, source, Watermark(20_000), "here/query", partition)
    times_ms = iter(range(20_001, 30_000))

    def has_advanced() -> bool:
        now_ms = next(times_ms)
        for partition in (0, 1):
            _send(live, source, Watermark(now_ms), "here/query", partition)
        if has_state:
            return _counted(live, flow) == 1
        found = [TAGGED.decode(record.value) for record in live.records(out)]
        return any(isinstance(each, Watermark) and each.timestamp_ms >= 20_000 for each in found)

    live.run(flow, mode="micro-batch", until=lambda run: run_until(run, has_advanced))


def test_flow_without_a_tagged_source_has_no_channels(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which sources have some."""
    flow = Flow("f")
    flow.read("bids", live.topic("bids", schema="id BIGINT")).write("out", live.topic("out"))
    module = type(sys)("windows_of_bids")
    module.flow = flow  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)

    found = _call(live)

    assert isinstance(found.exception, PlanError)
    assert "with elements='tagged' and no watermark= do" in str(found.exception)


def test_query_that_starts_again_tells_readers_that_it_is_active(live: Live) -> None:
    """Readers may take the channel for idle after a reset."""
    bids = live.topic("bids", schema="id BIGINT", event_time="id", watermark=monotonous())
    out = live.topic("out", elements="tagged", partitions=1)
    flow = Flow("f")
    flow.read("bids", bids).write("out", out)
    elements = []
    for number in (1_000, 2_000):
        live.send(bids, {"id": number})
        live.run(flow)
        found = [TAGGED.decode(record.value) for record in live.records(out)]
        elements.append([each for each in found if not isinstance(each, Record)])

    assert elements[0] == [Watermark(999)]
    assert elements[1][:2] == [Watermark(999), WatermarkStatus(idle=False)]
    assert elements[1][-1] == Watermark(1_999)


@pytest.fixture(autouse=True)
def _one_session(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command starts a session of its own; here it shares the one of the tests."""
    from flowcore.spark.run import tagged_sources  # noqa: PLC0415 - other tests shall not import Spark

    monkeypatch.setattr(tagged_sources, "session", lambda *_: nullcontext(live.spark))
