"""Records that do not let their window fire are added by column, with the results of single records."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.windows import (
    CountEvictor,
    SlidingWindows,
    TumblingWindows,
    WindowAggregate,
    WindowConfig,
    WindowContext,
    WindowProcess,
    quiet_records,
)
from flowcore.windows.built_in import BuiltIn, BuiltIns
from flowcore.windows.columnar.accumulators import result_type
from flowcore.windows.keyed import RecordWindows
from flowcore.windows.quiet_records import QuietRecords
from flowcore.windows.top_rows import EachRow, TopRows
from flowcore.windows.triggers import Count, EventTimeTrigger, Purging
from tests.unit.windows.test_keyed import ROWS, Restarted, Step, batch, by_column, steps

AGGREGATES = (
    ("records", BuiltIn("count")),
    ("known", BuiltIn("count", ("v",))),
    ("different", BuiltIn("count", ("x",), distinct=True)),
    ("users", BuiltIn("count", ("user",), distinct=True)),
    ("values", BuiltIn("collect_list", ("v",))),
    ("each", BuiltIn("collect_list", ("v",), distinct=True)),
    ("newest", BuiltIn("max_by", ("user", "v"))),
    ("first", BuiltIn("first_value", ("v",))),
    ("last", BuiltIn("last_value", ("v",), ignore_nulls=True)),
    ("good", BuiltIn("count_if", ("ok",))),
    ("mean", BuiltIn("avg", ("v",))),
)
TYPES = {each.name: each.type for each in ROWS}


class Every:
    """All values, in order."""

    def process(self, _context: WindowContext, values: Any, /) -> list[dict[str, Any]]:
        return [{"values": [value["v"] for value in values]}]

    def clear(self, _context: WindowContext, /) -> None:
        """Do nothing."""


RANKING = TopRows(order=(("x", True), ("v", False)), n=2, rank="rank", ties=True)
FUNCTIONS = {
    "aggregates": WindowAggregate(BuiltIns(AGGREGATES)),
    "process": WindowProcess(Every()),
    "ranking": WindowAggregate(RANKING, EachRow()),
}
RESULTS = {
    "aggregates": pa.schema([pa.field(name, result_type(each, TYPES)) for name, each in AGGREGATES]),
    "process": pa.schema([pa.field("values", pa.list_(pa.int64()))]),
    "ranking": pa.schema([*(ROWS.field(name) for name in ("v", "x", "ok")), pa.field("rank", pa.int32())]),
}


def _operator(config: WindowConfig, function: str = "aggregates") -> RecordWindows:
    return RecordWindows(
        name="windows", config=config, keys=("user", "site"), key_of=lambda key: key,
        values=tuple(ROWS.names), timestamp="t", rows=ROWS, results=RESULTS[function],
        late=("user", "site", "v", "t"),
    )  # fmt: skip


def _config(assigner: Any, function: str = "aggregates", **others: Any) -> WindowConfig:
    return WindowConfig(assigner=assigner, function=FUNCTIONS[function], **others)


ENDS_OF_TIME: list[Step] = [
    ("in", [("a", 0, MIN_TIMESTAMP_MS, 1, None, None), ("a", 0, MAX_TIMESTAMP_MS, 2, None, None)]),
    ("watermark", 3),
]


@pytest.mark.parametrize("function", FUNCTIONS)
@example(TumblingWindows(5, 2), 0, ENDS_OF_TIME, 0)
@settings(max_examples=300, deadline=None)
@given(
    st.builds(TumblingWindows, st.integers(1, 6), st.integers(-9, 9)), st.sampled_from([0, 0, 4]), steps,
    st.sampled_from([0, 64]),
)  # fmt: skip
def test_results_are_those_of_single_records(
    function: str, assigner: TumblingWindows, lateness_ms: int, taken: list[Step], few: int
) -> None:
    """Also late ones, firings for them, and after a restore."""
    config = _config(assigner, function, allowed_lateness_ms=lateness_ms, late="side-output")
    together, single = Restarted(_operator(config, function)), Restarted(_operator(config, function))
    with pytest.MonkeyPatch.context() as patched, pytest.MonkeyPatch.context() as by_arrow:
        by_arrow.setattr(quiet_records, "_FEW", few)
        for action, argument in taken:
            patched.setattr(QuietRecords, "of", lambda *_: None)
            single.group._quiet = None  # type: ignore[attr-defined]
            expected = single.step(action, argument)
            patched.undo()

            assert by_column(together.step(action, argument)) == by_column(expected)
            assert {*together.group._state.keys} == {*single.group._state.keys}  # type: ignore[attr-defined]


@pytest.mark.parametrize("function", ["aggregates", "process"])
def test_many_records_of_several_keys_stay_in_order(function: str) -> None:
    group = Restarted(_operator(_config(TumblingWindows(1_000), function), function))
    group.step("in", [(user, 0, 0, number, None, None) for number in range(200) for user in "abc"])

    ((_, found),) = group.step("watermark", 2_000).batches

    assert found.column("values").to_pylist() == [[*range(200)]] * 3


def test_only_what_may_fire_is_processed_one_by_one() -> None:
    """A record of a window that is complete; all others are added together."""
    config = _config(TumblingWindows(10), allowed_lateness_ms=100)
    group: Any = _operator(config).open()
    group._state.watermark_ms = 9
    rows = batch([("a", 0, 5, 1, None, None), ("a", 0, 15, 2, None, None), ("b", 0, 11, 3, None, None)])

    others, changed = group._quiet.add(rows, group._state, -100)

    assert others.column("t").to_pylist() == [5]
    assert changed == {("a", 0), ("b", 0)}


@pytest.mark.parametrize(
    ("config", "is_quiet"),
    [
        (_config(TumblingWindows(10)), True),
        (_config(TumblingWindows(10), trigger=EventTimeTrigger()), True),
        (_config(TumblingWindows(10), "process"), True),
        (_config(TumblingWindows(10), "ranking"), True),
        (_config(TumblingWindows(10), "process", evictor=CountEvictor(3)), False),
        (_config(TumblingWindows(10), trigger=Purging(Count(3))), False),
        (_config(TumblingWindows(10), time="processing"), False),
        (_config(SlidingWindows(10, 5)), False),
    ],
)
def test_it_is_known_when_tumbling_windows_fire_by_event_time(config: WindowConfig, is_quiet: bool) -> None:
    """A trigger may let a window fire for any record."""
    assert (QuietRecords.of(config, (), lambda key: key, "t", ()) is not None) == is_quiet
