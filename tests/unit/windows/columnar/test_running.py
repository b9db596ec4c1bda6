"""Running aggregates by column are those of windows without end that process single records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.state_cache import StateCache
from flowcore.testing.harness import WindowHarness
from flowcore.testing.memory_store import MemoryStore
from flowcore.windows import GlobalWindows, WindowAggregate, WindowConfig
from flowcore.windows.built_in import BuiltIns
from flowcore.windows.columnar import running_group
from flowcore.windows.columnar.keyed import ColumnarWindows
from flowcore.windows.triggers import Count
from tests.unit.keyed.test_inspection import inspected
from tests.unit.keyed.test_runtime import by_column, results, runtime_of
from tests.unit.keyed.test_runtime import rows as packed
from tests.unit.keyed.test_runtime import windows as totals_of
from tests.unit.windows.test_keyed import AGGREGATES, ROWS, Restarted, Row, Step, batch, by_record, rows

TTL_MS = 10
times = st.none() | st.integers(-8, 16) | st.just(MAX_TIMESTAMP_MS)
with_or_without_time = st.builds(lambda row, time: (*row[:2], time, *row[3:]), rows, times)
records = st.tuples(st.just("in"), st.lists(with_or_without_time, min_size=1, max_size=6))
steps: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(
        records,
        records,
        st.tuples(st.just("clock"), st.integers(0, 40)),
        st.tuples(st.sampled_from(["delta", "snapshot", "elsewhere"]), st.none()),
    ),
    max_size=20,
)
EXPIRED_AND_BACK: list[Step] = [
    ("in", [("a", 0, 3, 1, None, None), ("b", 0, 3, 1, None, None)]),
    ("clock", 9), ("in", [("b", 0, None, 1, None, None)]), ("delta", None),
    ("clock", 10), ("elsewhere", None),
    ("in", [("a", 0, 1, 1, None, None), ("b", 0, 1, 1, None, None)]), ("clock", 19),
]  # fmt: skip


def _config(ttl_ms: int | None) -> WindowConfig:
    function = WindowAggregate(BuiltIns(AGGREGATES))
    return WindowConfig(assigner=GlobalWindows(), function=function, trigger=Count(1), ttl_ms=ttl_ms)


def _operator(config: WindowConfig, keys: tuple[str, ...] = ("user", "site")) -> ColumnarWindows:
    return ColumnarWindows(config=config, keys=keys, timestamp="t", rows=ROWS)


@pytest.fixture(autouse=True)
def small_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places of keys that have expired are given up soon."""
    monkeypatch.setattr(running_group, "_LEAST_GARBAGE", 1)


@example(TTL_MS, EXPIRED_AND_BACK)
@settings(max_examples=300, deadline=None)
@given(st.sampled_from([TTL_MS, None]), steps)
def test_running_aggregates_are_those_of_single_records(ttl_ms: int | None, taken: list[Step]) -> None:
    """Of each key that a step changes, the last result; also after a restore, and after its expiry."""
    config = _config(ttl_ms)
    columns, single = Restarted(_operator(config)), WindowHarness(config)

    for action, argument in (("clock", 0), *taken):
        _ = by_record(single, action, argument)
        expected = {each.key: each for each in single.results}
        single.results.clear()
        out = columns.step(action, argument)

        found = [row for _, rows in out.batches for row in rows.to_pylist()]
        assert [(row["user"], row["site"]) for row in found] == [*expected]
        for row, each in zip(found, expected.values(), strict=True):
            values = [*row.values()]
            times = [each.window_start_ms, each.window_end_ms, each.timestamp_ms, each.firing, each.is_late]
            assert values.pop() == 0  # the ordinal of firings below 2**31
            if ttl_ms is None:  # single records have neither beginning nor newest time then
                del values[-3], values[-4], times[2], times[0]
            assert repr(values[2:]) == repr([*each.value.values(), *times])
    panes = [pane for key in single._state.keys.values() for pane in key.panes.values()]
    used_ms = min((pane.life.used_ms for pane in panes if pane.life), default=None)
    assert columns.group.wake_ms == (None if ttl_ms is None or used_ms is None else used_ms + ttl_ms)


def test_a_result_has_the_newest_event_time_of_its_records() -> None:
    """It has none if no record has one."""
    group = Restarted(_operator(_config(None)))
    came: list[Row] = [("a", 0, 5, 1, None, None), ("a", 0, 3, 1, None, None), ("b", 0, None, 1, None, None)]  # type: ignore[list-item]

    (_, found), = group.step("in", came).batches  # fmt: skip

    assert found.column("@timestamp_ms").to_pylist() == [5, None]


def test_ids_are_not_repeated_when_the_time_to_live_is_removed() -> None:
    """A key that has expired began anew, and what is told apart by its beginning stays so."""
    ids: list[Any] = []
    pieces: list[bytes] = []
    header: Any = None
    for ttl_ms, clocks in ((None, [0, 5]), (10, [6, 20]), (None, [21, 22])):
        group = _operator(_config(ttl_ms)).open()
        if header is not None:
            group.restore(header, iter(pieces))
        for clock in clocks:
            out = StepOutputs()
            group.advance_processing_time(clock, out)
            group.rows(batch([("a", 0, 3, 1, None, None)]), out)
            ids += [(row["@start_ms"], row["@firing"]) for row in out.batches[0][1].to_pylist()]
        pieces, header = [*group.snapshot()], group.header()

    assert ids == [(0, 1), (0, 2), (0, 3), (20, 1), (20, 2), (20, 3)]


def test_ids_differ_beyond_the_numbers_that_a_firing_holds() -> None:
    """A key with more than 2**31 records; a query at 50,000 a second has it in half a day."""
    group: Any = _operator(_config(None)).open()
    first = StepOutputs()
    group.rows(batch([("a", 0, 3, 1, None, None)]), first)
    group._table.combine(running_group._RECORDS, np.array([0]), 2**31)
    second = StepOutputs()
    group.rows(batch([("a", 0, 3, 1, None, None)]), second)

    found = [out.batches[0][1].select(["@firing", "@ordinal"]).to_pylist() for out in (first, second)]
    assert found == [[{"@firing": 1, "@ordinal": 0}], [{"@firing": 2, "@ordinal": 1}]]


def test_one_group_has_no_key() -> None:
    group = Restarted(_operator(_config(None), keys=()))
    group.step("in", [("a", 0, 5, 1, None, None)])
    group.step("elsewhere", None)

    (_, found), = group.step("in", [("b", 0, 5, 2, None, None)]).batches  # fmt: skip

    assert found.select(["records", "total"]).to_pylist() == [{"records": 2, "total": 3}]


def test_expired_keys_leave_the_store_and_what_flowcore_state_shows() -> None:
    """The next record of a key starts anew, also in a worker without the key's state."""
    config = totals_of(assigner=GlobalWindows(), trigger=Count(1), ttl_ms=TTL_MS)
    runtime = runtime_of(by_column(config), strategy=None)
    store = MemoryStore()

    def step(processing_time_ms: int, *batch: tuple[str, int, int]) -> list[tuple[Any, ...]]:
        items = packed(*batch) if batch else []
        return [each[:3] for each in results(runtime.step(0, items, processing_time_ms, store, StateCache()))]

    assert step(1, ("a", 1, 1), ("b", 1, 10), ("a", 1, 2)) == [("a", 2, 3), ("b", 1, 10)]
    assert {key.key["user"]: key.states for key in inspected(store).keys or ()} == {
        "a": {"count:": 2, "count:v": 2, "sum:v": 3},
        "b": {"count:": 1, "count:v": 1, "sum:v": 10},
    }
    assert inspected(store).wake_ms == 1 + TTL_MS
    assert step(1 + TTL_MS) == []
    assert inspected(store).keys == []
    assert inspected(store).wake_ms is None
    assert step(2 + TTL_MS, ("a", 1, 5)) == [("a", 1, 5)]


@pytest.mark.parametrize("latest_only", [False, True])
def test_only_the_last_result_of_the_same_records_is_computed_by_column(latest_only: bool) -> None:
    """A window that fires for each record emits each of them."""
    types = {each.name: each.type for each in ROWS}
    refusal = ColumnarWindows.refusal(_config(None), types, latest_only=latest_only)

    assert (refusal is None) == latest_only
