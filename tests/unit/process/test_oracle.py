"""Keyed processes against a reference that is written as plainly as can be, over random input.

The reference keeps everything for ever and asks of each entry whether it is still there; it has neither
queues nor cells, and searches all timers each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.process import (
    KeyedProcessFunction,
    KeyedRecord,
    ProcessConfig,
    ProcessEmissions,
    ProcessOperator,
    ProcessState,
)
from flowcore.process.codec import decode_keys, encode_key, encode_keys, keys_of
from flowcore.process.function import Outputs, ProcessContext, RecordMapping
from flowcore.process.opening import OpenContext
from flowcore.testing.window_functions import CountRecords

TTL_MS = 10


class Everything(KeyedProcessFunction):
    """Does what a record asks for, then emits everything that it can read."""

    def open(self, context: OpenContext) -> None:
        ttl = timedelta(milliseconds=TTL_MS)
        self.value = context.value_state("value", "BIGINT")
        self.brief = context.value_state("brief", "BIGINT", ttl=ttl)
        self.list = context.list_state("list", "BIGINT", ttl=ttl)
        self.map = context.map_state("map", "BIGINT", "BIGINT", ttl=ttl)
        self.read = context.map_state("read", "BIGINT", "BIGINT", ttl=ttl, ttl_update="read")
        self.sum = context.reducing_state("sum", "BIGINT", lambda kept, new: kept + new)
        self.count = context.aggregating_state("count", CountRecords(), ttl=ttl)

    def process(self, record: RecordMapping, context: ProcessContext) -> Outputs:
        number = record["number"]
        match record["do"]:
            case "set":
                self.value.set(number)
                self.brief.set(number)
            case "add":
                self.list.add(number)
                self.sum.add(number)
                self.count.add(number)
            case "put":
                self.map[number % 3] = number
                self.read[number % 3] = number
            case "read":
                self.read.get(number % 3)
            case "remove":
                self.map.pop(number % 3, None)
                self.brief.clear()
            case "clear":
                self.list.clear()
                self.sum.clear()
                self.value.set(None)
            case "event timer":
                context.register_event_timer(number)
            case "clock timer":
                context.register_processing_timer(number)
            case "no timer":
                context.delete_event_timer(number)
                context.delete_processing_timer(number)
        return [self.seen(context)]

    def on_timer(self, time_ms: int, context: ProcessContext) -> Outputs:
        if time_ms % 5 == 0:
            context.register_event_timer(time_ms + 1)
        self.value.set(self.value.get(0) + 1)
        return [{"time": time_ms, **self.seen(context)}]

    def seen(self, context: ProcessContext) -> RecordMapping:
        return {
            "value": self.value.get(),
            "brief": self.brief.get(),
            "list": self.list.get(),
            "map": sorted(self.map.items()),
            "read": sorted(self.read),
            "sum": self.sum.get(),
            "count": self.count.get(),
            "times": (context.watermark_ms, context.processing_time_ms),
        }


@dataclass
class PlainKey:
    """The reference's state of a key: every entry with the processing time of its last use."""

    value: int | None = None
    brief: tuple[int, int] | None = None
    list: list[tuple[int, int]] = field(default_factory=list)
    map: dict[int, tuple[int, int]] = field(default_factory=dict)
    read: dict[int, tuple[int, int]] = field(default_factory=dict)
    sum: int | None = None
    count: tuple[int, int] | None = None
    event_timers: set[int] = field(default_factory=set)
    clock_timers: set[int] = field(default_factory=set)


class Reference:
    def __init__(self) -> None:
        self.watermark_ms = MIN_TIMESTAMP_MS
        self.processing_time_ms = 0
        self.keys: dict[Any, PlainKey] = {}

    def record(self, key: Any, do: str, number: int) -> list[Any]:  # noqa: C901 - a list of cases
        at, now = self.keys.setdefault(key, PlainKey()), self.processing_time_ms
        if do == "set":
            at.value, at.brief = number, (number, now)
        elif do == "add":
            at.list.append((number, now))
            at.sum = number + (at.sum or 0)
            at.count = (1 + (at.count[0] if at.count and self.lives(at.count) else 0), now)
        elif do == "put":
            at.map[number % 3] = at.read[number % 3] = (number, now)
        elif do == "read":
            if number % 3 in at.read and self.lives(at.read[number % 3]):
                at.read[number % 3] = (at.read[number % 3][0], now)
        elif do == "remove":
            at.map.pop(number % 3, None)
            at.brief = None
        elif do == "clear":
            at.list, at.sum, at.value = [], None, None
        elif do == "event timer":
            at.event_timers.add(number)
        elif do == "clock timer":
            at.clock_timers.add(number)
        elif do == "no timer":
            at.event_timers.discard(number)
            at.clock_timers.discard(number)
        return [(key, self.seen(at))]

    def advance_watermark(self, time_ms: int) -> list[Any]:
        if time_ms <= self.watermark_ms:
            return []
        self.watermark_ms = time_ms
        return self.timers("event_timers", time_ms)

    def advance_processing_time(self, time_ms: int) -> list[Any]:
        self.processing_time_ms = max(time_ms, self.processing_time_ms)
        return self.timers("clock_timers", self.processing_time_ms)

    def timers(self, which: str, now_ms: int) -> list[Any]:
        found = []
        while due := [(min(t), key) for key, at in self.keys.items() if (t := {
            each for each in getattr(at, which) if each <= now_ms
        })]:  # fmt: skip
            time_ms, key = min(due, key=lambda each: each[0])
            at = self.keys[key]
            getattr(at, which).remove(time_ms)
            if time_ms % 5 == 0:
                at.event_timers.add(time_ms + 1)
            at.value = (at.value or 0) + 1
            found.append((key, {"time": time_ms, **self.seen(at)}))
        return found

    def lives(self, entry: tuple[int, int]) -> bool:
        return self.processing_time_ms < entry[1] + TTL_MS

    def seen(self, at: PlainKey) -> dict[str, Any]:
        return {
            "value": at.value,
            "brief": at.brief[0] if at.brief and self.lives(at.brief) else None,
            "list": [entry[0] for entry in at.list if self.lives(entry)],
            "map": sorted((key, entry[0]) for key, entry in at.map.items() if self.lives(entry)),
            "read": sorted(key for key, entry in at.read.items() if self.lives(entry)),
            "sum": at.sum,
            "count": at.count[0] if at.count and self.lives(at.count) else None,
            "times": (self.watermark_ms, self.processing_time_ms),
        }


class Job:
    """The operator over several key groups, as in a runtime: groups are separate and can be restarted."""

    def __init__(self, groups: int) -> None:
        self.groups = [
            [ProcessOperator(ProcessConfig(function=Everything())), ProcessState()] for _ in range(groups)
        ]

    def records(self, records: Sequence[tuple[Any, str, int]]) -> list[Any]:
        found = []
        for number, (operator, state) in enumerate(self.groups):
            mine = [
                KeyedRecord(key, {"do": do, "number": n})
                for key, do, n in records
                if key % len(self.groups) == number
            ]
            found += self.as_rows(operator.process(state, mine))
        return found

    def advance(self, clock: str, time_ms: int) -> list[Any]:
        return [
            each
            for operator, state in self.groups
            for each in self.as_rows(getattr(operator, clock)(state, time_ms))
        ]

    def restart(self) -> None:
        for group in self.groups:
            operator, state = group
            written = encode_keys(keys_of(state), state)
            operator = ProcessOperator(ProcessConfig(function=Everything()))
            restored = ProcessState(state.watermark_ms, state.processing_time_ms)
            decode_keys(written, restored, operator.declared)
            group[:] = [operator, restored]

    @staticmethod
    def as_rows(seen: ProcessEmissions) -> list[Any]:
        return [(result.key, result.value) for result in seen.results]


RECORD = st.tuples(
    st.just("record"),
    st.integers(0, 4),
    st.sampled_from(
        ["set", "add", "put", "read", "remove", "clear", "event timer", "clock timer", "no timer"]
    ),
    st.integers(0, 40),
)
STEPS = st.lists(
    RECORD
    | st.tuples(st.just("advance_watermark"), st.integers(0, 50) | st.just(MAX_TIMESTAMP_MS))
    | st.tuples(st.just("advance_processing_time"), st.integers(0, 60)),
    max_size=60,
)


def _by_key(found: Sequence[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    """Sort by key, since keys have no order among each other."""
    return {key: [value for one, value in found if one == key] for key, _ in found}


@settings(max_examples=300, deadline=None)
@given(steps=STEPS, groups=st.integers(1, 3), data=st.data())
def test_operator_agrees_with_the_reference_however_it_is_cut_and_restarted(
    steps: list[Any], groups: int, data: st.DataObject
) -> None:
    job, reference = Job(groups), Reference()
    expected: list[Any] = []
    actual: list[Any] = []
    waiting: list[Any] = []
    for step in [*steps, ("advance_watermark", MAX_TIMESTAMP_MS)]:
        if step[0] == "record":
            expected += reference.record(*step[1:])
            waiting.append(step[1:])
            if data.draw(st.booleans()):
                continue
        actual += job.records(waiting)
        waiting = []
        if step[0] != "record":
            expected += getattr(reference, step[0])(step[1])
            actual += job.advance(*step)
        if data.draw(st.booleans()):
            job.restart()

    assert _by_key(actual) == _by_key(expected)


def _kept(job: Job) -> Iterator[Any]:
    for _, state in job.groups:
        yield from (encode_key(key, state) for key in keys_of(state))


@settings(max_examples=100, deadline=None)
@given(steps=STEPS)
def test_restart_changes_nothing_that_is_kept(steps: list[Any]) -> None:
    job = Job(1)
    for step in steps:
        if step[0] == "record":
            job.records([step[1:]])
        else:
            job.advance(*step)
    before = list(_kept(job))
    job.restart()

    assert sorted(_kept(job), key=str) == sorted(before, key=str)


@pytest.mark.parametrize("groups", [1, 3], ids=["one group", "three groups"])
def test_nothing_is_kept_of_what_has_expired(groups: int) -> None:
    job = Job(groups)
    job.records([(key, do, key) for key in range(5) for do in ("set", "put", "clear", "event timer")])
    job.advance("advance_watermark", 100)
    job.advance("advance_processing_time", TTL_MS)
    job.records([(key, "clear", 0) for key in range(5)])

    assert list(_kept(job)) == []
