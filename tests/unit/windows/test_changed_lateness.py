"""An allowed lateness that is changed on existing state: what has ended stays so."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.keyed.content import read_ended_ms
from flowcore.keyed.inspection import _keys
from flowcore.keyed.manifest import StateManifest
from flowcore.keyed.operator import StepOutputs
from flowcore.testing.harness import WindowHarness
from flowcore.windows import (
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    WindowAggregate,
    WindowAssigner,
    WindowConfig,
)
from flowcore.windows.built_in import BuiltIn, BuiltIns
from flowcore.windows.columnar.keyed import ColumnarWindows
from flowcore.windows.keyed import RecordWindows
from tests.unit.keyed.stored_group import StoredGroup
from tests.unit.keyed.test_runtime import ROWS, by_column, by_record

TOTALS = BuiltIns((("n", BuiltIn("count")), ("total", BuiltIn("sum", ("v",)))))
ASSIGNERS = (TumblingWindows(10), SlidingWindows(12, 4), SessionWindows(4))
Result = tuple[str, int, int, int, bool]
"""Key, number of records, start, firing, and whether it is late."""


def config_of(assigner: WindowAssigner, lateness_ms: int) -> WindowConfig:
    return WindowConfig(
        assigner=assigner, function=WindowAggregate(TOTALS), allowed_lateness_ms=lateness_ms,
        late="side-output",
    )  # fmt: skip


class Stored:
    """A key group whose state is written after each call, as a snapshot or as deltas."""

    def __init__(self, operator: ColumnarWindows | RecordWindows, how: str = "delta") -> None:
        self.stored, self._how = StoredGroup(operator), how

    def start(self, lateness_ms: int) -> None:
        """Start again with another lateness."""
        config = replace(self.stored.config.config, allowed_lateness_ms=lateness_ms)
        self.stored.config = replace(self.stored.config, config=config)
        self.stored.store("restart")

    def feed(self, *times_ms: int) -> tuple[Counter[Result], list[int]]:
        """The results of records at these times, and the times of the late ones."""
        columns: list[Any] = [["a"] * len(times_ms), [*times_ms], [1] * len(times_ms)]
        out = StepOutputs()
        self.stored.group.rows(pa.record_batch(columns, schema=ROWS), out)
        return self._found(out)

    def watermark(self, watermark_ms: int) -> Counter[Result]:
        out = StepOutputs()
        self.stored.group.advance_watermark(watermark_ms, out)
        return self._found(out)[0]

    def _found(self, out: StepOutputs) -> tuple[Counter[Result], list[int]]:
        self.stored.store(self._how)
        names = ("user", "n", "@start_ms", "@firing", "@is_late")
        rows = [(name, row) for name, batch in out.batches for row in batch.to_pylist()]
        results = Counter(tuple(row[each] for each in names) for name, row in rows if name == "results")
        return results, [row["t"] for name, row in rows if name == "late"]


@pytest.mark.parametrize("how", ["delta", "snapshot"])
@pytest.mark.parametrize("operator", [by_column, by_record], ids=["by column", "by record"])
@pytest.mark.parametrize("assigner", ASSIGNERS, ids=["tumbling", "sliding", "sessions"])
def test_a_longer_lateness_opens_no_window_that_has_ended(
    assigner: WindowAssigner, operator: Any, how: str
) -> None:
    """Such a window would begin anew, and replace its result by one with fewer records."""
    windows = Stored(operator(config_of(assigner, 0)), how)
    windows.feed(1, 2, 3, 17)
    assert max(each[1] for each in windows.watermark(15)) == 3

    windows.start(lateness_ms=3600)
    assert windows.feed(2) == (Counter(), [2])
    assert windows.watermark(40)
    results, late = windows.feed(16)
    assert (late, {each[3] for each in results}) == ([], {2})  # the lateness counts from then on

    windows.start(lateness_ms=0)
    assert windows.feed(16) == (Counter(), [16])
    windows.start(lateness_ms=3600)
    assert windows.feed(16) == (Counter(), [16])


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(ASSIGNERS),
    st.lists(
        st.one_of(
            st.tuples(st.just("in"), st.lists(st.integers(0, 40), min_size=1, max_size=5)),
            st.tuples(st.just("in"), st.lists(st.integers(0, 40), min_size=1, max_size=5)),
            st.tuples(st.just("watermark"), st.integers(1, 12)),
            st.tuples(st.just("lateness"), st.sampled_from([0, 3, 9, MAX_TIMESTAMP_MS])),
        ),
        max_size=16,
    ),
)
def test_all_windows_agree_on_what_has_ended(
    assigner: WindowAssigner, history: list[tuple[str, Any]]
) -> None:
    """By column or by record, over any changes of the lateness; no result has the id of an earlier one."""
    groups = [Stored(operator(config_of(assigner, 3))) for operator in (by_column, by_record)]
    harness, watermark_ms = WindowHarness(config_of(assigner, 3)), 0
    seen: set[tuple[int, int]] = set()
    for action, argument in history:
        found: list[tuple[Counter[Result], list[int]]] = []
        if action == "lateness":
            for group in groups:
                group.start(argument)
            harness.config = replace(harness.config, allowed_lateness_ms=argument)
            harness.restart()
            continue
        if action == "in":
            found = [group.feed(*argument) for group in groups]
            feed = harness.feed(*(("a", {"v": 1}, time_ms) for time_ms in argument))
            assert [each.timestamp_ms for each in feed.late] == found[0][1]
        else:
            watermark_ms += argument
            found = [(group.watermark(watermark_ms), []) for group in groups]
            harness.watermark(watermark_ms)
        assert found[0] == found[1]
        for _, _, start_ms, firing, _ in found[0][0].elements():
            assert isinstance(assigner, SessionWindows) or (start_ms, firing) not in seen
            seen.add((start_ms, firing))


@pytest.mark.parametrize("how", ["delta", "snapshot"])
@pytest.mark.parametrize("operator", [by_column, by_record], ids=["by column", "by record"])
def test_a_session_that_a_shorter_lateness_has_ended_gets_no_more_records(operator: Any, how: str) -> None:
    """Although it is there until the next watermark: it would emit again, with more records."""
    windows = Stored(operator(config_of(SessionWindows(30), 100)), how)
    windows.feed(0)
    assert windows.watermark(50) == Counter({("a", 1, 0, 1, False): 1})

    windows.start(lateness_ms=0)

    assert windows.feed(30) == (Counter(), [])
    assert windows.feed(10) == (Counter(), [])
    windows.start(lateness_ms=0)
    assert windows.feed(29) == (Counter(), [])
    assert windows.watermark(59) == Counter({("a", 3, 10, 1, False): 1})


def test_sessions_that_have_ended_are_not_shown() -> None:
    """Older segments may still contain them."""
    windows = Stored(by_column(config_of(SessionWindows(4), 0)))
    windows.feed(1)
    windows.watermark(20)
    windows.start(lateness_ms=3600)
    windows.feed(30)

    stored = windows.stored
    manifest = StateManifest(layout=stored.config.layout, key_groups=1)
    manifest.header = stored.header
    keys = _keys(manifest, stored.pieces)
    assert keys is not None
    assert [each["start_ms"] for key in keys for each in key.windows] == [30]


@pytest.mark.parametrize("operator", [by_column, by_record], ids=["by column", "by record"])
@pytest.mark.parametrize("assigner", ASSIGNERS, ids=["tumbling", "sliding", "sessions"])
def test_state_of_an_earlier_version_is_restored(assigner: WindowAssigner, operator: Any) -> None:
    """Its header does not say what has ended; of sessions it says the allowed lateness."""
    windows = Stored(operator(config_of(assigner, 9)))
    windows.feed(21)
    windows.watermark(24)
    group, header = windows.stored.config.open(), dict(windows.stored.header)
    ended_ms = header.pop("ended_ms")
    if isinstance(assigner, SessionWindows) and operator is by_column:
        header["lateness_ms"] = 9
        assert read_ended_ms(header) == ended_ms
        assert read_ended_ms({**header, "watermark_ms": MAX_TIMESTAMP_MS}) == MAX_TIMESTAMP_MS
    else:
        assert read_ended_ms(header) < ended_ms
    group.restore(header, iter(windows.stored.pieces))

    windows.stored.group = group
    results, late = windows.feed(22)
    assert (late, {each[1] for each in windows.watermark(60)} | {each[1] for each in results}) == ([], {2})
    assert windows.feed(22)[1] == [22]
