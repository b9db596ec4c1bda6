"""A buffer holds the latest of each key, and flushes when it is due."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flowcore.elements import (
    EndOfInput,
    LatencyMarker,
    Record,
    RecordAttributes,
    Watermark,
    WatermarkStatus,
)
from flowcore.errors import ConfigurationError
from flowcore.flush import BufferOutput
from tests.unit.flush.buffer_run import BufferRun

IDLE, ACTIVE = WatermarkStatus(idle=True), WatermarkStatus(idle=False)

BACKLOG, LIVE = RecordAttributes(backlog=True), RecordAttributes(backlog=False)


def _each_second(**settings: Any) -> BufferRun:
    return BufferRun(BufferOutput(interval_ms=1_000, **settings))


def test_buffer_flushes_once_the_interval_has_passed_since_the_last_flush() -> None:
    """It does not flush earlier; the next interval starts at the flush, not at its due time."""
    run = _each_second()
    run.put("a", 1)

    assert run.at(999) == ()
    assert run.at(1_700) == (Record(1),)
    run.put("a", 2)
    assert run.at(2_699) == ()
    assert run.at(2_700) == (Record(2),)


def test_buffer_counts_the_interval_from_its_start() -> None:
    """The first flush is not due at once, although the clock shows the time of day."""
    run = BufferRun(BufferOutput(interval_ms=1_000), now_ms=1_700_000_000_000)

    assert run.put("a", 1) == ()
    assert run.at(1_700_000_000_999) == ()
    assert run.at(1_700_000_001_000) == (Record(1),)


@pytest.mark.parametrize("occasion", ["idle", "poll", "full", "upstream"])
def test_buffer_counts_the_interval_from_a_flush_of_any_kind(occasion: str) -> None:
    """An empty flush starts a new interval, too."""
    run = _each_second(memory_buffer_only=True, max_entries=2)
    run.at(500)
    match occasion:
        case "idle":
            run.idle()
        case "poll":
            run.at(1_000)
            run.at(2_000)
        case "full":
            assert run.put("a", 1) + run.put("b", 1) == (Record(1), Record(1))
        case "upstream":
            run.buffer.flush(run.now_ms)
    flushed_ms = run.now_ms

    assert run.put("a", 2) == ()
    assert run.at(flushed_ms + 999) == ()
    assert run.at(flushed_ms + 1_000) == (Record(2),)


def test_buffer_is_polled_by_every_element() -> None:
    """A late record or watermark is in the flush that was due."""
    run = _each_second()
    run.put("a", 1, 5)
    run.now_ms = 1_000
    assert run.put("a", 2, 6) == (Record(2, 6),)
    run.put("a", 3, 7)
    run.now_ms = 2_000
    assert run.control(Watermark(9)) == (Record(3, 7), Watermark(9))


def test_buffer_flushes_when_the_clock_was_put_back() -> None:
    """If the clock is set back an hour, records do not wait an hour."""
    run = _each_second()
    run.at(3_600_000)
    run.put("a", 1)

    assert run.at(1_000) == (Record(1),)
    run.put("a", 2)
    assert run.at(1_999) == ()
    assert run.at(2_000) == (Record(2),)


def test_buffer_that_is_full_flushes_at_once_and_begins_anew() -> None:
    """Updates of a key do not fill the buffer, and only memory-buffer-only limits its size."""
    run = _each_second(memory_buffer_only=True, max_entries=2)
    unbounded = _each_second(max_entries=2)

    assert run.put("a", 1) + run.put("a", 2) + run.put("a", 3) == ()
    assert run.put("b", 4) == (Record(3), Record(4))
    assert run.put("c", 5) == ()
    assert [unbounded.put(key, 1) for key in "abcd"] == [()] * 4


def test_buffer_that_is_not_keyed_holds_one_record() -> None:
    """It holds one record for all keys."""
    run = _each_second(keyed=False)
    run.put("a", 1)
    run.put("b", 2)

    assert run.idle() == (Record(2),)
    assert _each_second(keyed=False, memory_buffer_only=True, max_entries=1).put("a", 1) == (Record(1),)


@pytest.mark.parametrize("interval_ms", [None, 0])
def test_buffer_without_interval_holds_nothing(interval_ms: int | None) -> None:
    """Every element passes, including the end of input, and no event causes a flush."""
    run = BufferRun(BufferOutput(interval_ms, memory_buffer_only=True, max_entries=1, backlog_interval_ms=60))
    marker = LatencyMarker(1, "op", 0)

    assert run.put("a", 1, 5) == (Record(1, 5),)
    for element in (Watermark(4), IDLE, marker, BACKLOG, LIVE, EndOfInput()):
        assert run.control(element) == (element,)
    assert run.at(10**12) + run.idle() == ()


def test_empty_buffer_lets_everything_pass() -> None:
    """This holds before the first record and after a flush."""
    run = _each_second()
    elements = (Watermark(4), IDLE, LatencyMarker(2, "op", 0), LatencyMarker(1, "op", 0), LIVE)
    for element in elements:
        assert run.control(element) == (element,)
    run.put("a", 1)
    run.idle()
    for element in elements:
        assert run.control(element) == (element,)


def test_flush_sends_deletions_and_empty_values() -> None:
    """A key deleted within its interval is emitted, since downstream may have an earlier value."""
    run = _each_second()
    run.put("a", {"count": 1})
    run.put("a", {"deleted": True})
    run.put("b", 1)
    run.put("b", None)

    assert run.idle() == (Record({"deleted": True}), Record(None))


@pytest.mark.parametrize(
    ("controls", "between"),
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
    controls: list[Any], between: list[Any]
) -> None:
    """Records that the watermark covers go first, those after it and those without time follow."""
    run = _each_second()
    for key, timestamp_ms in (("after", 11), ("at", 10), ("none", None), ("before", -1)):
        run.put(key, key, timestamp_ms)
    for element in controls:
        assert run.control(element) == ()

    released = run.idle()

    assert released[:2] == (Record("at", 10), Record("before", -1))
    assert list(released[2:-2]) == between
    assert released[-2:] == (Record("after", 11), Record("none"))


def test_flush_sends_records_in_the_order_in_which_they_came() -> None:
    """The order is that of each key's latest record, so an updated key follows earlier ones."""
    run = _each_second()
    for key, value in (("a", 1), ("b", 2), ("a", 3)):
        run.put(key, value)

    assert run.idle() == (Record(2), Record(3))


def test_flush_without_watermark_covers_no_record() -> None:
    """A buffered status is emitted before the records."""
    run = _each_second()
    run.put("a", 1, 5)
    run.control(IDLE)

    assert run.idle() == (IDLE, Record(1, 5))


def test_flush_sends_the_earliest_marker_of_each_source_subtask_last() -> None:
    """The earliest mark counts, not the first arrival; subtasks of two operators are separate."""
    run = _each_second()
    run.put("a", 1)
    for marked_ms, operator, subtask in ((7, "x", 0), (5, "x", 0), (6, "x", 0), (9, "x", 1), (8, "y", 0)):
        run.control(LatencyMarker(marked_ms, operator, subtask))

    released = run.control(EndOfInput())

    assert released[0] == Record(1)
    assert set(released[1:-1]) == {
        LatencyMarker(5, "x", 0), LatencyMarker(9, "x", 1), LatencyMarker(8, "y", 0),
    }  # fmt: skip
    assert len(released) == 5
    assert released[-1] == EndOfInput()
    assert run.idle() == ()


def test_backlog_buffers_records_until_it_ends() -> None:
    """Records before a change are emitted before it, and none crosses it."""
    run = _each_second()
    run.put("a", 1)
    assert run.control(BACKLOG) == (Record(1), BACKLOG)
    run.put("a", 2)
    assert run.at(10**9) == ()
    assert run.control(BACKLOG) == (BACKLOG,)
    assert run.control(LIVE) == (Record(2), LIVE)
    run.put("a", 3)
    assert run.at(10**9 + 999) == ()
    assert run.at(10**9 + 1_000) == (Record(3),)


def test_backlog_has_a_longer_interval_where_one_is_set() -> None:
    """The interval starts at the flush of the change."""
    run = _each_second(backlog_interval_ms=5_000)
    run.at(700)
    run.control(BACKLOG)
    run.put("a", 1)

    assert run.at(5_699) == ()
    assert run.at(5_700) == (Record(1),)


def test_backlog_is_flushed_when_input_is_quiet_or_memory_is_full() -> None:
    """Waiting saves nothing if the input is quiet, and a full buffer cannot wait."""
    run = _each_second(memory_buffer_only=True, max_entries=2)
    run.control(BACKLOG)
    run.put("a", 1)
    assert run.idle() == (Record(1),)
    run.put("a", 2)
    assert run.put("b", 3) == (Record(2), Record(3))


def test_buffer_has_the_time_of_its_oldest_record() -> None:
    """An update does not make it younger; a flush does."""
    run = _each_second()
    assert run.buffer.state.waiting_since_ms is None
    run.at(100)
    run.put("a", 1)
    run.at(200)
    run.put("a", 2)
    assert run.buffer.state.waiting_since_ms == 100
    run.idle()
    assert run.buffer.state.waiting_since_ms is None


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
    """An invalid configuration is an error when it is declared."""
    with pytest.raises(ConfigurationError, match=message):
        build()


def test_config_takes_the_boundaries() -> None:
    """Equal intervals, no interval in backlog and one entry are valid."""
    assert BufferOutput(10, backlog_interval_ms=10).interval_ms_in(backlog=True) == 10
    assert BufferOutput(10, backlog_interval_ms=0).interval_ms_in(backlog=True) is None
    assert BufferOutput(10, max_entries=1).capacity is None
