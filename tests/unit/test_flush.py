"""A buffer sends the latest record of each key once an interval, and nothing overtakes what it speaks of."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.elements import (
    EndOfInput,
    LatencyMarker,
    Record,
    RecordAttributes,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from flowcore.errors import ConfigurationError
from flowcore.flush import Buffer, BufferOutput
from flowcore.flush.buffer import Released, flush
from flowcore.flush.buffering import control, input_idle, look, record, start
from flowcore.flush.snapshots import restore, snapshot

IDLE, ACTIVE = WatermarkStatus(idle=True), WatermarkStatus(idle=False)
HISTORY, NEWS = RecordAttributes(backlog=True), RecordAttributes(backlog=False)


class _Run:
    """One buffer and its clock; every element that has left is kept."""

    def __init__(self, config: BufferOutput, now_ms: int = 0) -> None:
        self.config = config
        self.now_ms = now_ms
        self.buffer: Buffer[str, Any] = start(now_ms)
        self.left: list[StreamElement[Any]] = []

    def put(self, key: str, value: Any, timestamp_ms: int | None = None) -> Released[Any]:
        return self._leaves(record(self.config, self.buffer, key, Record(value, timestamp_ms), self.now_ms))

    def tell(self, element: Any) -> Released[Any]:
        return self._leaves(control(self.config, self.buffer, element, self.now_ms))

    def at(self, now_ms: int) -> Released[Any]:
        self.now_ms = now_ms
        return self._leaves(look(self.config, self.buffer, now_ms))

    def idle(self) -> Released[Any]:
        return self._leaves(input_idle(self.config, self.buffer, self.now_ms))

    def restart(self) -> None:
        self.buffer = restore(json.loads(json.dumps(snapshot(self.buffer))))

    def _leaves(self, released: Released[Any]) -> Released[Any]:
        self.left += released
        return released


def _each_second(**settings: Any) -> _Run:
    return _Run(BufferOutput(interval_ms=1_000, **settings))


def test_buffer_flushes_once_the_interval_has_passed_since_the_last_flush() -> None:
    """Not a millisecond earlier; and the next interval counts from when it did, not from when it was due."""
    run = _each_second()
    run.put("a", 1)

    assert run.at(999) == ()
    assert run.at(1_700) == (Record(1),)
    run.put("a", 2)
    assert run.at(2_699) == ()
    assert run.at(2_700) == (Record(2),)


def test_buffer_counts_the_interval_from_its_start() -> None:
    """A clock that shows the time of day does not make the first flush due at once."""
    run = _Run(BufferOutput(interval_ms=1_000), now_ms=1_700_000_000_000)

    assert run.put("a", 1) == ()
    assert run.at(1_700_000_000_999) == ()
    assert run.at(1_700_000_001_000) == (Record(1),)


@pytest.mark.parametrize("occasion", ["idle", "look", "full", "upstream"])
def test_buffer_counts_the_interval_from_a_flush_of_any_kind(occasion: str) -> None:
    """Also from one that found nothing to send."""
    run = _each_second(memory_buffer_only=True, max_entries=2)
    run.at(500)
    match occasion:
        case "idle":
            run.idle()
        case "look":
            run.at(1_000)
            run.at(2_000)
        case "full":
            assert run.put("a", 1) + run.put("b", 1) == (Record(1), Record(1))
        case "upstream":
            flush(run.buffer, run.now_ms)
    flushed_ms = run.now_ms

    assert run.put("a", 2) == ()
    assert run.at(flushed_ms + 999) == ()
    assert run.at(flushed_ms + 1_000) == (Record(2),)


def test_buffer_looks_at_the_clock_whenever_something_comes() -> None:
    """A record or a watermark that comes late is in the flush that was due."""
    run = _each_second()
    run.put("a", 1, 5)
    run.now_ms = 1_000
    assert run.put("a", 2, 6) == (Record(2, 6),)
    run.put("a", 3, 7)
    run.now_ms = 2_000
    assert run.tell(Watermark(9)) == (Record(3, 7), Watermark(9))


def test_buffer_flushes_when_the_clock_was_put_back() -> None:
    """An hour less on the clock does not hold records for that hour."""
    run = _each_second()
    run.at(3_600_000)
    run.put("a", 1)

    assert run.at(1_000) == (Record(1),)
    run.put("a", 2)
    assert run.at(1_999) == ()
    assert run.at(2_000) == (Record(2),)


def test_buffer_that_is_full_flushes_at_once_and_begins_anew() -> None:
    """Updates of a key do not fill it; without memory-buffer-only nothing does."""
    run = _each_second(memory_buffer_only=True, max_entries=2)
    unbounded = _each_second(max_entries=2)

    assert run.put("a", 1) + run.put("a", 2) + run.put("a", 3) == ()
    assert run.put("b", 4) == (Record(3), Record(4))
    assert run.put("c", 5) == ()
    assert [unbounded.put(key, 1) for key in "abcd"] == [()] * 4


def test_buffer_that_is_not_keyed_holds_one_record() -> None:
    """Whatever keys come."""
    run = _each_second(keyed=False)
    run.put("a", 1)
    run.put("b", 2)

    assert run.idle() == (Record(2),)
    assert _each_second(keyed=False, memory_buffer_only=True, max_entries=1).put("a", 1) == (Record(1),)


@pytest.mark.parametrize("interval_ms", [None, 0])
def test_buffer_without_interval_holds_nothing(interval_ms: int | None) -> None:
    """Everything passes, the end of input too, and no occasion sends anything."""
    run = _Run(BufferOutput(interval_ms, memory_buffer_only=True, max_entries=1, backlog_interval_ms=60))
    marker = LatencyMarker(1, "op", 0)

    assert run.put("a", 1, 5) == (Record(1, 5),)
    for element in (Watermark(4), IDLE, marker, HISTORY, NEWS, EndOfInput()):
        assert run.tell(element) == (element,)
    assert run.at(10**12) + run.idle() == ()


def test_empty_buffer_lets_everything_pass() -> None:
    """Before the first record, and after a flush."""
    run = _each_second()
    elements = (Watermark(4), IDLE, LatencyMarker(2, "op", 0), LatencyMarker(1, "op", 0), NEWS)
    for element in elements:
        assert run.tell(element) == (element,)
    run.put("a", 1)
    run.idle()
    for element in elements:
        assert run.tell(element) == (element,)


def test_flush_sends_deletions_and_empty_values() -> None:
    """Downstream may hold a value from before, so a key that came and went is told all the same."""
    run = _each_second()
    run.put("a", {"count": 1})
    run.put("a", {"deleted": True})
    run.put("b", 1)
    run.put("b", None)

    assert run.idle() == (Record({"deleted": True}), Record(None))


@pytest.mark.parametrize(
    ("told", "between"),
    [
        ([Watermark(10)], [Watermark(10)]),
        ([IDLE, Watermark(10)], [IDLE, Watermark(10)]),
        ([Watermark(10), IDLE], [Watermark(10), IDLE]),
        ([Watermark(8), IDLE, Watermark(10)], [IDLE, Watermark(10)]),
        ([IDLE, Watermark(10), ACTIVE], [Watermark(10), ACTIVE]),
        ([IDLE, ACTIVE, Watermark(9), Watermark(10)], [ACTIVE, Watermark(10)]),
    ],
    ids=["watermark", "status-first", "watermark-first", "later-watermark", "later-status", "several"],
)
def test_flush_sends_the_latest_watermark_and_status_between_records(
    told: list[Any], between: list[Any]
) -> None:
    """Records that the watermark covers go first, those after it and those without time follow."""
    run = _each_second()
    for key, timestamp_ms in (("after", 11), ("at", 10), ("none", None), ("before", -1)):
        run.put(key, key, timestamp_ms)
    for element in told:
        assert run.tell(element) == ()

    released = run.idle()

    assert released[:2] == (Record("at", 10), Record("before", -1))
    assert list(released[2:-2]) == between
    assert released[-2:] == (Record("after", 11), Record("none"))


def test_flush_sends_records_in_the_order_in_which_they_came() -> None:
    """In that of the records that are sent: an updated key goes behind one that was not."""
    run = _each_second()
    for key, value in (("a", 1), ("b", 2), ("a", 3)):
        run.put(key, value)

    assert run.idle() == (Record(2), Record(3))


def test_flush_without_watermark_covers_no_record() -> None:
    """A status that was held goes ahead of them."""
    run = _each_second()
    run.put("a", 1, 5)
    run.tell(IDLE)

    assert run.idle() == (IDLE, Record(1, 5))


def test_flush_sends_the_earliest_marker_of_each_source_subtask_last() -> None:
    """Earliest by its mark, whichever came first; one subtask of two operators is two."""
    run = _each_second()
    run.put("a", 1)
    for marked_ms, operator, subtask in ((7, "x", 0), (5, "x", 0), (6, "x", 0), (9, "x", 1), (8, "y", 0)):
        run.tell(LatencyMarker(marked_ms, operator, subtask))

    released = run.tell(EndOfInput())

    assert released[0] == Record(1)
    assert set(released[1:-1]) == {
        LatencyMarker(5, "x", 0), LatencyMarker(9, "x", 1), LatencyMarker(8, "y", 0),
    }  # fmt: skip
    assert len(released) == 5
    assert released[-1] == EndOfInput()
    assert run.idle() == ()


def test_backlog_holds_records_until_it_is_gone() -> None:
    """What came before a change leaves before it, so that records stay on their side of it."""
    run = _each_second()
    run.put("a", 1)
    assert run.tell(HISTORY) == (Record(1), HISTORY)
    run.put("a", 2)
    assert run.at(10**9) == ()
    assert run.tell(HISTORY) == (HISTORY,)
    assert run.tell(NEWS) == (Record(2), NEWS)
    run.put("a", 3)
    assert run.at(10**9 + 999) == ()
    assert run.at(10**9 + 1_000) == (Record(3),)


def test_backlog_has_a_longer_interval_where_one_is_set() -> None:
    """It counts from the flush at the change."""
    run = _each_second(backlog_interval_ms=5_000)
    run.at(700)
    run.tell(HISTORY)
    run.put("a", 1)

    assert run.at(5_699) == ()
    assert run.at(5_700) == (Record(1),)


def test_backlog_does_not_hold_what_nothing_follows_or_memory_cannot() -> None:
    """Waiting saves nothing if the input is quiet, and a full buffer cannot wait."""
    run = _each_second(memory_buffer_only=True, max_entries=2)
    run.tell(HISTORY)
    run.put("a", 1)
    assert run.idle() == (Record(1),)
    run.put("a", 2)
    assert run.put("b", 3) == (Record(2), Record(3))


def test_buffer_knows_how_long_its_oldest_record_has_waited() -> None:
    """An update does not make it younger; a flush does."""
    run = _each_second()
    assert run.buffer.waiting_since_ms is None
    run.at(100)
    run.put("a", 1)
    run.at(200)
    run.put("a", 2)
    assert run.buffer.waiting_since_ms == 100
    run.idle()
    assert run.buffer.waiting_since_ms is None


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: BufferOutput(-1), "interval_ms=-1 is negative"),
        (lambda: BufferOutput(1, backlog_interval_ms=-1), "backlog_interval_ms=-1 is negative"),
        (lambda: BufferOutput(10, backlog_interval_ms=9), "backlog_interval_ms=9 is shorter .*_ms=10:"),
        (lambda: BufferOutput(1, max_entries=0), "max_entries=0 is not positive"),
        (lambda: BufferOutput(1, max_entries=-1), "max_entries=-1 is not positive"),
    ],
    ids=["interval", "backlog", "shorter", "zero-entries", "negative-entries"],
)  # fmt: skip
def test_config_refuses(build: Callable[[], object], message: str) -> None:
    """What cannot work is an error when it is declared."""
    with pytest.raises(ConfigurationError, match=message):
        build()


def test_config_takes_the_boundaries() -> None:
    """Equal intervals, no interval in backlog, one entry."""
    assert BufferOutput(10, backlog_interval_ms=10).interval_ms_in(backlog=True) == 10
    assert BufferOutput(10, backlog_interval_ms=0).interval_ms_in(backlog=True) is None
    assert BufferOutput(10, max_entries=1).full_at(1) is False


# What happens to a buffer: a name and what goes with it. Values hold the position, so no two are equal.
times = st.none() | st.integers(-5, 30)
happenings = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abc"), times),
        st.tuples(st.just("put"), st.sampled_from("abc"), times),
        st.tuples(st.just("watermark"), st.integers(1, 5)),
        st.tuples(st.just("status"), st.booleans()),
        st.tuples(st.just("marker"), st.integers(0, 9), st.integers(0, 1)),
        st.tuples(st.just("backlog"), st.booleans()),
        st.tuples(st.just("clock"), st.integers(0, 12)),
        st.tuples(st.just("idle")),
    ),
    max_size=40,
)
configs = st.builds(
    BufferOutput,
    interval_ms=st.sampled_from([None, 0, 1, 10]),
    keyed=st.booleans(),
    memory_buffer_only=st.booleans(),
    max_entries=st.sampled_from([None, 1, 2]),
    backlog_interval_ms=st.sampled_from([None, 0, 10, 20]),
)


def _happens(run: _Run, position: int, happening: tuple[Any, ...], watermark_ms: int) -> int:
    """Let it happen; the highest watermark after it."""
    match happening:
        case ("put", key, timestamp_ms):
            run.put(key, [key, position], timestamp_ms)
        case ("watermark", step):
            watermark_ms += step
            run.tell(Watermark(watermark_ms))
        case ("status", idle):
            run.tell(WatermarkStatus(idle))
        case ("marker", marked_ms, subtask):
            run.tell(LatencyMarker(marked_ms, "op", subtask))
        case ("backlog", backlog):
            run.tell(RecordAttributes(backlog))
        case ("clock", step):
            run.at(run.now_ms + step)
        case ("idle",):
            run.idle()
    return watermark_ms


def _ran(
    config: BufferOutput, happened: list[tuple[Any, ...]], restarts: frozenset[int] = frozenset()
) -> _Run:
    run, watermark_ms = _Run(config), -10
    for position, happening in enumerate(happened):
        if position in restarts:
            run.restart()
        watermark_ms = _happens(run, position, happening, watermark_ms)
    run.tell(EndOfInput())
    return run


def _records(elements: list[StreamElement[Any]]) -> list[Record[Any]]:
    return [element for element in elements if isinstance(element, Record)]


@given(configs, happenings)
def test_what_leaves_is_the_latest_record_of_each_key(
    config: BufferOutput, happened: list[tuple[Any, ...]]
) -> None:
    """Nothing is lost but for a later one of its key, nothing leaves twice, and nothing is made up."""
    put = {
        position: (happening[1] if config.keyed else None, happening[2])
        for position, happening in enumerate(happened)
        if happening[0] == "put"
    }
    latest = {key: position for position, (key, _) in put.items()}

    left = [(found.value[1], found.timestamp_ms) for found in _records(_ran(config, happened).left)]

    assert len({position for position, _ in left}) == len(left)
    assert all(put[position][1] == timestamp_ms for position, timestamp_ms in left)
    by_key: dict[Any, list[int]] = {}
    for position, _ in left:
        by_key.setdefault(put[position][0], []).append(position)
    assert {key: positions[-1] for key, positions in by_key.items()} == latest
    assert all(positions == sorted(positions) for positions in by_key.values())
    if not config.holds:
        assert [position for position, _ in left] == list(put)


@given(configs, happenings)
def test_no_watermark_overtakes_a_record_that_it_covers(
    config: BufferOutput, happened: list[tuple[Any, ...]]
) -> None:
    """Whatever came before a watermark with a time at or before it does not leave after it."""
    came, watermark_ms = {}, -10
    for position, happening in enumerate(happened):
        if happening[0] == "watermark":
            watermark_ms += happening[1]
            came[watermark_ms] = position

    left = _ran(config, happened).left

    for index, element in enumerate(left):
        if isinstance(element, Watermark):
            for after in _records(left[index:]):
                covered = after.timestamp_ms is not None and after.timestamp_ms <= element.timestamp_ms
                assert not (covered and after.value[1] < came[element.timestamp_ms])
    passed = [element.timestamp_ms for element in left if isinstance(element, Watermark)]
    assert passed == sorted(set(passed))
    assert passed[-1:] == ([watermark_ms] if came else [])


@given(configs, happenings)
def test_status_and_backlog_arrive_as_they_were_told_last(
    config: BufferOutput, happened: list[tuple[Any, ...]]
) -> None:
    """And records stay on their side of every change of backlog."""
    left = _ran(config, happened).left

    statuses = [element.idle for element in left if isinstance(element, WatermarkStatus)]
    assert statuses[-1:] == [happening[1] for happening in happened if happening[0] == "status"][-1:]
    told = [position for position, happening in enumerate(happened) if happening[0] == "backlog"]
    sides = [index for index, element in enumerate(left) if isinstance(element, RecordAttributes)]
    assert len(sides) == len(told)
    for index, position in zip(sides, told, strict=True):
        is_change = (
            happened[position][1] != ([False] + [happened[one][1] for one in told if one < position])[-1]
        )
        if is_change and config.holds:
            assert all(found.value[1] < position for found in _records(left[:index]))
            assert all(found.value[1] > position for found in _records(left[index:]))


@given(configs, happenings)
def test_earliest_marker_of_each_subtask_arrives(
    config: BufferOutput, happened: list[tuple[Any, ...]]
) -> None:
    """Markers that leave are among those that came, and the earliest of all is never the one dropped."""
    came = [happening[1:] for happening in happened if happening[0] == "marker"]

    left = [
        (element.marked_ms, element.subtask)
        for element in _ran(config, happened).left
        if isinstance(element, LatencyMarker)
    ]

    assert all(left.count(marker) <= came.count(marker) for marker in left)
    for subtask in {subtask for _, subtask in came}:
        assert min(m for m, s in left if s == subtask) == min(m for m, s in came if s == subtask)


@given(configs, happenings, st.frozensets(st.integers(0, 40)))
def test_restart_anywhere_changes_nothing(
    config: BufferOutput, happened: list[tuple[Any, ...]], restarts: frozenset[int]
) -> None:
    """The same elements leave in the same order."""
    assert _ran(config, happened, restarts).left == _ran(config, happened).left


@given(configs, happenings)
def test_nothing_waits_longer_than_allowed(config: BufferOutput, happened: list[tuple[Any, ...]]) -> None:
    """After whatever happens the buffer is neither overdue nor overfull; only records make others wait."""
    run, watermark_ms = _Run(config), -10
    for position, happening in enumerate(happened):
        watermark_ms = _happens(run, position, happening, watermark_ms)
        buffer = run.buffer
        interval_ms = config.interval_ms_in(backlog=buffer.backlog)
        assert config.holds or not buffer.records
        assert not config.full_at(len(buffer.records))
        assert buffer.records or not (buffer.held or buffer.markers)
        assert (buffer.waiting_since_ms is None) == (not buffer.records)
        if interval_ms is not None and buffer.waiting_since_ms is not None:
            assert run.now_ms - buffer.waiting_since_ms < interval_ms


@given(happenings)
def test_at_most_one_record_of_a_key_leaves_an_interval(happened: list[tuple[Any, ...]]) -> None:
    """However many come, if neither quiet nor backlog nor memory asks for more."""
    run, sent = _Run(BufferOutput(interval_ms=10)), []
    for position, happening in enumerate(happened):
        if happening[0] in ("put", "clock"):
            before = len(run.left)
            _happens(run, position, happening, 0)
            sent += [(run.now_ms, found.value[0]) for found in _records(run.left[before:])]

    for key in "abc":
        moments = [now_ms for now_ms, of_key in sent if of_key == key]
        assert all(later - earlier >= 10 for earlier, later in pairwise(moments))
