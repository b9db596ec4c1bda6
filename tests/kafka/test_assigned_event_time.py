"""Event time that is assigned in the middle of a live query, with windows, processes and joins downstream."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, KeyedProcessFunction, Tumbling
from flowcore.elements import Record, Watermark
from flowcore.errors import RunError
from flowcore.serializers import TaggedSerializer
from flowcore.serializers.formats import JsonFormat
from flowcore.watermarks import bounded_out_of_orderness, monotonous
from tests.kafka.conftest import Live
from tests.kafka.driver import kill_driver, run_slice

pytestmark = pytest.mark.kafka

DELAY = timedelta(seconds=5)
END_MS = 100_000
FAR_MS = 10**15
"""Of an arrival, and of a clock that is wrong: far behind all event times."""
TAGGED = TaggedSerializer(JsonFormat.of([("user", "STRING"), ("at", "BIGINT")]))


def parse(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a line such as ``a@1000 b@2000``."""
    for word in record["line"].split():
        user, _, at = word.partition("@")
        yield {"user": user, "at": int(at) if at else None}


def counted(*topics: KafkaTopic) -> Flow:
    """Events by user in 10 s, and beside that lines by the time of their arrival."""
    lines, out, copy, arrivals = topics
    flow = Flow("assigned")
    read = flow.read("lines", replace(lines, schema="line STRING", watermark=monotonous()))
    events = read.flat_map(parse, schema="user STRING, at BIGINT", name="parse").with_event_time(
        "at", watermark=bounded_out_of_orderness(DELAY), name="timed"
    )
    by_user = events.where("user <> 'end'").window(Tumbling(10), by="user", name="by_user")
    by_user.aggregate(n="count(*)").write("out", out)
    events.write("copy", replace(copy, elements="tagged"))
    read.window(Tumbling(1000), name="arrived").aggregate(n="count(*)").write("arrivals", arrivals)
    return flow


def drive(servers: str, state: str, *topics: str) -> None:
    """Run a slice of small batches until this process is killed."""
    run_slice(counted, servers, state, topics, batch_records=40)


def random_lines(count: int) -> tuple[list[str], Counter[tuple[str, int]]]:
    """Lines of up to four events, out of order by less than the delay; the events by user and window."""
    chance = random.Random(5)  # noqa: S311 - test data
    lines, events = [], Counter[tuple[str, int]]()
    for number in range(count):
        words = []
        for _ in range(chance.randrange(5)):
            user, at = chance.choice("abc"), number * END_MS // count + chance.randrange(4_900)
            words.append(f"{user}@{at}")
            events[user, at // 10_000] += 1
        lines.append(" ".join(words))
    return lines, events


@pytest.mark.thorough
def test_windows_follow_assigned_event_time_after_a_kill_of_the_driver(live: Live) -> None:
    """No event is late, although arrivals are far ahead; events without a time are dead letters."""
    topics = [live.topic(name) for name in ("lines", "out", "copy", "arrivals")]
    lines, events = random_lines(120)
    bad = ["a@100 b@ c@200", f"a@300 b@{FAR_MS}"]
    lines = [*bad, *lines]
    events.update({("a", 0): 2, ("c", 0): 1})
    values = [{"line": line} for line in (*lines, *[f"end@{END_MS + 20_000}"] * 2)]
    times_ms = [*range(1_000_000, 1_000_000 + len(lines)), 3_000_000, 3_000_000]
    live.send(topics[0], *values, partitions=2, times_ms=times_ms)
    kill_driver(drive, live, *(topic.name for topic in topics), batches=1, after_s=0.3)
    live.run(counted(*topics))

    found: dict[str, dict[str, Any]] = {}
    for record in live.records(topics[1]):
        assert found.setdefault(record.id, record.json) == record.json
    assert {(row["user"], int(row["window_start"][14:16]) * 6 + int(row["window_start"][17:19]) // 10):
            row["n"] for row in found.values()} == events  # fmt: skip
    assert {record.id: record.json["n"] for record in live.records(topics[3])} == dict.fromkeys(
        {record.id for record in live.records(topics[3])}, len(lines)
    )
    letters = live.records(topics[0].dead_letter)
    dead = {record.headers["flowcore-partition"]: record for record in letters}
    assert {
        (record.json["line"], record.headers["flowcore-stage"], record.headers["flowcore-operator"])
        for record in dead.values()
    } == {(line, b"event-time", b"timed") for line in bad}
    reasons = sorted(record.headers["flowcore-reason"].decode() for record in dead.values())
    assert reasons[0].startswith("has no event time: at is null")
    assert "ahead of the clock (watermark.max-ahead)" in reasons[1]

    copied = [TAGGED.decode(record.value) for record in live.records(topics[2]) if record.value]
    rows = [element for element in copied if isinstance(element, Record)]
    assert all(element.timestamp_ms == element.value["at"] for element in rows)
    times = [element.timestamp_ms for element in copied if isinstance(element, Watermark)]
    assert max(times) == END_MS + 20_000 - 5_001


class Alarms(KeyedProcessFunction):
    """Emits each event, and its user a second later, by event time."""

    def process(self, record: Mapping[str, Any], context: Any) -> Iterator[Mapping[str, Any]]:
        context.register_event_timer(context.timestamp_ms + 1_000)
        yield {"what": f"{record['user']} at {context.timestamp_ms}"}

    def on_timer(self, time_ms: int, context: Any) -> Iterator[Mapping[str, Any]]:
        yield {"what": f"{context.key} rings at {time_ms}"}


@pytest.mark.thorough
def test_processes_and_joins_read_assigned_event_time(live: Live) -> None:
    """In micro-batches, then in a slice: a join in the second exchange follows the watermarks of both."""
    clicks, limits, alarms, joined = (live.topic(name) for name in ("clicks", "limits", "alarms", "joined"))
    flow = Flow("behind")
    read = flow.read("clicks", replace(clicks, schema="text STRING"))
    timed = read.select("split(text, '@')[0] as user", "cast(split(text, '@')[1] as bigint) as at")
    timed = timed.with_event_time("timestamp_millis(at)", watermark=monotonous(), name="timed")
    timed.process(Alarms(), by="user", schema="what STRING", name="ringing").write("alarms", alarms)
    limit = flow.read("limits", replace(limits, schema="user STRING, most BIGINT, at BIGINT"))
    limit = limit.with_event_time("at", watermark=monotonous(), name="limited")
    counts = limit.window(Tumbling(10), by="user", name="counts").aggregate(n="count(*)")
    both = timed.join_interval(
        counts.select("user", "n"), on="user", how="left",
        before=timedelta(0), after=timedelta(seconds=10), name="both",
    )  # fmt: skip
    both.write("joined_out", joined)
    live.send(clicks, *({"text": f"{user}@{at}"} for user, at in (("a", 1_000), ("b", 2_000), ("c", 12_000))))
    live.send(
        limits, *({"user": user, "most": 1, "at": at} for user, at in (("a", 1), ("a", 2), ("z", 30_000)))
    )
    live.run(flow, "micro-batch", lambda run: live.wait_for_records(run, joined, 1))
    live.send(clicks, {"text": "d@60000"})
    live.send(limits, {"user": "z", "most": 1, "at": 60_000})
    live.run(flow)

    whats = {record.id: record.json["what"] for record in live.records(alarms)}
    ringing = [f"{user} rings at {at}" for user, at in (("a", 2_000), ("b", 3_000), ("c", 13_000))]
    coming = [f"{user} at {at}" for user, at in (("a", 1_000), ("b", 2_000), ("c", 12_000), ("d", 60_000))]
    assert sorted(whats.values()) == sorted([*ringing, *coming])
    rows = {record.id: record.json for record in live.records(joined)}
    assert sorted((row["user"], row["at"], row.get("n")) for row in rows.values()) == [
        ("a", 1_000, 2), ("b", 2_000, None), ("c", 12_000, None),
    ]  # fmt: skip


def test_a_strict_source_stops_at_a_record_without_a_time(live: Live) -> None:
    """The error names place, reason and operator."""
    clicks, out = live.topic("clicks"), live.topic("out")
    flow = Flow("strict")
    read = flow.read("clicks", replace(clicks, schema="at STRING", on_error="fail"))
    timed = read.with_event_time("try_cast(at as timestamp)", watermark=monotonous(), name="timed")
    timed.window(Tumbling(10), name="all").aggregate(n="count(*)").write("out", out)
    live.send(clicks, {"at": "2026-01-01"}, {"at": "never"})
    with pytest.raises(RunError, match=rf"{clicks.name}\[0\]@1 has no event time.*\(timed\)"):
        live.run(flow)
