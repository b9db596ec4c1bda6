"""For any input a buffer emits the latest record of each key, in order and in time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

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
from flowcore.flush import BufferOutput
from tests.unit.flush.buffer_run import BufferRun

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


def _happens(run: BufferRun, position: int, happening: tuple[Any, ...], watermark_ms: int) -> int:
    """Apply one event; return the highest watermark after it."""
    match happening:
        case ("put", key, timestamp_ms):
            run.put(key, [key, position], timestamp_ms)
        case ("watermark", step):
            watermark_ms += step
            run.control(Watermark(watermark_ms))
        case ("status", idle):
            run.control(WatermarkStatus(idle))
        case ("marker", marked_ms, subtask):
            run.control(LatencyMarker(marked_ms, "op", subtask))
        case ("backlog", backlog):
            run.control(RecordAttributes(backlog))
        case ("clock", step):
            run.at(run.now_ms + step)
        case ("idle",):
            run.idle()
    return watermark_ms


def _ran(
    config: BufferOutput, happened: list[tuple[Any, ...]], restarts: frozenset[int] = frozenset()
) -> BufferRun:
    run, watermark_ms = BufferRun(config), -10
    for position, happening in enumerate(happened):
        if position in restarts:
            run.restart()
        watermark_ms = _happens(run, position, happening, watermark_ms)
    run.control(EndOfInput())
    return run


def _records(elements: list[StreamElement[Any]]) -> list[Record[Any]]:
    return [element for element in elements if isinstance(element, Record)]


@given(configs, happenings)
def test_latest_record_of_each_key_is_emitted(config: BufferOutput, happened: list[tuple[Any, ...]]) -> None:
    """A record is lost only to a later one of its key; none is emitted twice, and none is invented."""
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
    if not config.is_enabled:
        assert [position for position, _ in left] == list(put)


@given(configs, happenings)
def test_no_watermark_overtakes_a_record_that_it_covers(
    config: BufferOutput, happened: list[tuple[Any, ...]]
) -> None:
    """A record at or before a watermark that arrived before it is emitted before it."""
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
def test_last_status_and_every_backlog_change_are_emitted(
    config: BufferOutput, happened: list[tuple[Any, ...]]
) -> None:
    """Records stay on their side of every change of backlog."""
    left = _ran(config, happened).left

    statuses = [element.idle for element in left if isinstance(element, WatermarkStatus)]
    assert statuses[-1:] == [happening[1] for happening in happened if happening[0] == "status"][-1:]
    controls = [position for position, happening in enumerate(happened) if happening[0] == "backlog"]
    sides = [index for index, element in enumerate(left) if isinstance(element, RecordAttributes)]
    assert len(sides) == len(controls)
    for index, position in zip(sides, controls, strict=True):
        is_change = (
            happened[position][1] != ([False] + [happened[one][1] for one in controls if one < position])[-1]
        )
        if is_change and config.is_enabled:
            assert all(found.value[1] < position for found in _records(left[:index]))
            assert all(found.value[1] > position for found in _records(left[index:]))


@given(configs, happenings)
def test_earliest_marker_of_each_subtask_arrives(
    config: BufferOutput, happened: list[tuple[Any, ...]]
) -> None:
    """Emitted markers are among those received, and the earliest one is never dropped."""
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
    """The same elements are emitted in the same order."""
    assert _ran(config, happened, restarts).left == _ran(config, happened).left


@given(configs, happenings)
def test_nothing_waits_longer_than_allowed(config: BufferOutput, happened: list[tuple[Any, ...]]) -> None:
    """The buffer is never overdue or too large; only records make other elements wait."""
    run, watermark_ms = BufferRun(config), -10
    for position, happening in enumerate(happened):
        watermark_ms = _happens(run, position, happening, watermark_ms)
        buffer, state = run.buffer, run.buffer.state
        interval_ms = config.interval_ms_in(backlog=state.backlog)
        assert config.is_enabled or not buffer.records
        assert config.capacity is None or len(buffer.records) < config.capacity
        assert buffer.records or not (state.controls or state.markers)
        assert (state.waiting_since_ms is None) == (not buffer.records)
        if interval_ms is not None and state.waiting_since_ms is not None:
            assert run.now_ms - state.waiting_since_ms < interval_ms


@given(happenings)
def test_at_most_one_record_of_a_key_is_emitted_in_an_interval(happened: list[tuple[Any, ...]]) -> None:
    """This holds for any number of records, unless quiet input, backlog or memory causes a flush."""
    run, sent = BufferRun(BufferOutput(interval_ms=10)), []
    for position, happening in enumerate(happened):
        if happening[0] in ("put", "clock"):
            before = len(run.left)
            _happens(run, position, happening, 0)
            sent += [(run.now_ms, found.value[0]) for found in _records(run.left[before:])]

    for key in "abc":
        moments = [now_ms for now_ms, of_key in sent if of_key == key]
        assert all(later - earlier >= 10 for earlier, later in pairwise(moments))
