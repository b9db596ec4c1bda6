"""Deduplication by key group agrees with a list of everything that passed, over restarts and any batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.deduplication.keyed import Deduplication
from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.errors import NoTimestampError
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.output_columns import RESULTS
from tests.unit.keyed.stored_group import StoredGroup

Time = Literal["event", "processing"]
Record = tuple[str | None, int, int]
"""Key, timestamp and number."""
ROWS = pa.schema([("key", pa.string()), ("t", pa.int64()), ("n", pa.int64())])


def deduplication(within_ms: int | None, time: Time = "event", **changed: Any) -> Deduplication:
    given = {"keys": ("key",), "timestamp": "t", "rows": ROWS, "passed": ("n", "t"), **changed}
    return Deduplication(within_ms=within_ms, time=time, **given)


@dataclass
class Oracle:
    """Compares each record with all that passed and are remembered, one by one."""

    within_ms: int | None
    time: Time
    now_ms: int = MIN_TIMESTAMP_MS
    passed: list[tuple[str | None, int, int]] = field(default_factory=list)

    def takes(self, key: str | None, time_ms: int) -> bool:
        """Whether a record passes."""
        time_ms = self.now_ms if self.time == "processing" else time_ms
        for known, then_ms, arrival_ms in self.passed:
            near = self.within_ms is None or abs(time_ms - then_ms) < self.within_ms
            if known == key and near and self._remembers(arrival_ms):
                return False
        self.passed.append((key, time_ms, max(time_ms, self.now_ms)))
        return True

    def _remembers(self, arrival_ms: int) -> bool:
        return self.within_ms is None or self.now_ms < (arrival_ms // self.within_ms + 2) * self.within_ms


class Stored(StoredGroup):
    """A group, with what a step of it emits."""

    def step(self, elements: list[Record | int]) -> list[int]:
        """The numbers of the records that pass, of records and of times to which the clock advances."""
        out = StepOutputs()
        for each in elements:
            if isinstance(each, int):
                self.group.advance_processing_time(each, out)
                self.group.advance_watermark(each, out)
            else:
                self.group.rows(whole([each]), out)
        return [number for _, batch in out.batches for number in batch["n"].to_pylist()]


def whole(records: list[Record]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(zip(ROWS.names, each, strict=True)) for each in records], schema=ROWS
    )


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[tuple[str | None, int]], int, str]]:
    """Batches of records, how far the clock is after each, and what becomes of its worker."""
    record = st.tuples(st.sampled_from([None, "a", "b", "c"]), st.integers(-30, 60))
    fate = st.sampled_from(["delta", "delta", "snapshot", "restart", "former worker"])
    return draw(st.lists(st.tuples(st.lists(record, max_size=6), st.integers(0, 15), fate), max_size=14))


@pytest.mark.parametrize("time", ["event", "processing"])
@settings(max_examples=150, deadline=None)
@given(histories(), st.sampled_from([1, 4, 7, 20, None]))
def test_records_pass_as_the_oracle_says(time: Time, history: Any, within_ms: int | None) -> None:
    """This holds whatever is stored between batches, and for late records."""
    oracle, stored = Oracle(within_ms, time), Stored(deduplication(within_ms, time))
    processing_time_ms, number = -20, 0
    for records, advance_ms, fate in history:
        out = StepOutputs()
        if advance_ms:  # as the runtime, which advances the watermark only if it is higher
            processing_time_ms += advance_ms
            oracle.now_ms = processing_time_ms
            stored.group.advance_processing_time(processing_time_ms, out)
            stored.group.advance_watermark(processing_time_ms, out)
        numbered = [(key, t, number + place) for place, (key, t) in enumerate(records)]
        number += len(records)
        expected = [n for key, t, n in numbered if oracle.takes(key, t)]
        stored.group.rows(whole(numbered), out)
        stored.store(fate)

        assert [n for _, batch in out.batches for n in batch["n"].to_pylist()] == expected
        assert out.counters.get("repeated_records", 0) == len(records) - len(expected)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 80)), max_size=60),
    st.sampled_from([1, 6, None]),
    st.lists(st.integers(0, 60)),
)
def test_any_batches_give_the_same(records: Any, within_ms: int | None, cuts: list[int]) -> None:
    """Without late records, every partition of the input into batches passes the same records."""
    numbered: list[Record] = [
        (key, t, n) for n, (key, t) in enumerate(sorted(records, key=lambda each: each[1]))
    ]
    at_once = Stored(deduplication(within_ms))
    out = StepOutputs()
    at_once.group.rows(whole(numbered), out)
    oracle = Oracle(within_ms, "event")
    expected = [n for key, t, n in numbered if oracle.takes(key, t)]
    found: list[int] = []
    cut = Stored(deduplication(within_ms))
    bounds = sorted({0, len(numbered), *(each for each in cuts if each < len(numbered))})
    for start, end in pairwise(bounds):
        part = numbered[start:end]
        found += cut.step([*part, part[-1][1] - 1])
        cut.store("restart")

    assert [n for _, batch in out.batches for n in batch["n"].to_pylist()] == expected == found


def test_many_records_of_a_key_pass_in_one_batch() -> None:
    """A batch larger than what is compared at once passes one record in each ``within`` of its times."""
    rows = pa.record_batch([["a"] * 30_000, range(30_000), range(30_000)], schema=ROWS)
    out = StepOutputs()
    deduplication(100).open().rows(rows, out)

    assert [n for _, batch in out.batches for n in batch["n"].to_pylist()] == [*range(0, 30_000, 100)]


def test_passed_columns_are_those_of_the_first_record() -> None:
    out = StepOutputs()
    deduplication(10).open().rows(whole([("a", 5, 1), ("a", 9, 2), ("b", 5, 3), ("a", 15, 4)]), out)

    assert out.batches[0][0] == RESULTS
    assert out.batches[0][1].to_pylist() == [{"n": 1, "t": 5}, {"n": 3, "t": 5}, {"n": 4, "t": 15}]


def test_records_without_key_pass_and_are_counted_if_they_shall() -> None:
    """Otherwise null equals null."""
    records: list[Record] = [(None, 5, 1), ("a", 5, 2), (None, 5, 3), ("a", 5, 4)]
    for pass_null_keys, expected in ((True, [1, 2, 3]), (False, [1, 2])):
        out = StepOutputs()
        deduplication(10, pass_null_keys=pass_null_keys).open().rows(whole(records), out)

        assert [row["n"] for _, batch in out.batches for row in batch.to_pylist()] == expected
        assert out.counters.get("unidentified_records", 0) == 2 * pass_null_keys
        assert out.counters["repeated_records"] == len(records) - len(expected)


def test_not_a_number_equals_itself_and_keys_have_parts() -> None:
    parts = pa.schema([("x", pa.float64()), ("y", pa.struct([("z", pa.int32())])), *ROWS])
    config = deduplication(None, "processing", keys=("x", "y"), rows=parts)
    rows: list[dict[str, Any]] = [
        {"x": math.nan, "y": {"z": 1}, "n": 1}, {"x": math.nan, "y": {"z": None}, "n": 2},
        {"x": math.nan, "y": {"z": 1}, "n": 3}, {"x": math.nan, "y": None, "n": 4},
    ]  # fmt: skip
    stored = Stored(config)
    found = []
    for row in [*rows, *rows]:
        out = StepOutputs()
        stored.group.rows(pa.RecordBatch.from_pylist([row], schema=parts), out)
        found += [n for _, batch in out.batches for n in batch["n"].to_pylist()]
        stored.store("restart")

    assert found == [1, 2, 4]


@pytest.mark.parametrize("time", ["event", "processing"])
def test_state_is_bounded_by_two_lengths(time: Time) -> None:
    """Deltas and snapshots contain what is remembered, and no more."""
    stored = Stored(deduplication(100, time))
    sizes = []
    for start in range(0, 2_000, 50):
        out = StepOutputs()
        stored.group.advance_processing_time(start, out)
        stored.group.advance_watermark(start, out)
        stored.group.rows(whole([(f"k{n}", n, n) for n in range(start, start + 50)]), out)
        stored.store("snapshot")
        sizes.append(sum(map(len, stored.pieces)))

    assert max(sizes[10:]) <= 1.6 * sizes[3]


def test_the_ends_of_time_do_not_overflow() -> None:
    """The least timestamp is far from the greatest, and both equal themselves."""
    stored = Stored(deduplication(10))
    least, most = MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS

    assert stored.step([("a", least, 1), ("a", most, 2), ("a", least, 3), ("a", most, 4)]) == [1, 2]
    stored.store("restart")
    assert stored.step([MAX_TIMESTAMP_MS, ("a", most, 5), ("a", least, 6), ("a", least, 7)]) == [6]


def test_changed_length_counts_for_later_records() -> None:
    """State of another ``within`` is read, and its keys are found."""
    first = Stored(deduplication(10))
    first.step([("a", 5, 1), ("a", 25, 2), ("b", 25, 3)])
    first.store("delta")
    for within_ms, expected in ((50, [6]), (3, [5, 6]), (None, [6])):
        second = deduplication(within_ms).open()
        second.restore(first.header, iter(first.pieces))
        out = StepOutputs()
        second.rows(whole([("a", 26, 4), ("b", 29, 5), ("c", 5, 6)]), out)

        assert [n for _, batch in out.batches for n in batch["n"].to_pylist()] == expected


@pytest.mark.parametrize("fate", ["delta", "snapshot"])
def test_all_records_that_a_shorter_length_let_pass_are_remembered(fate: str) -> None:
    """With a longer one they are in one step, and each of them may be the one that is near."""
    stored = Stored(deduplication(10))
    assert stored.step([("a", 20, 1), ("a", 0, 2), ("a", 40, 3)]) == [1, 2, 3]
    stored.store(fate)
    for time_ms, expected in ((139, []), (140, [4]), (-99, []), (-100, [4])):
        stored.config = deduplication(100)
        stored.store("restart")
        stored.former = None
        assert stored.step([("a", time_ms, 4)]) == expected
        stored.group = deduplication(100).open()
        stored.group.restore(stored.header, iter(stored.pieces))


def test_a_record_without_timestamp_is_named() -> None:
    rows = pa.record_batch([["a"], pa.array([None], pa.int64()), [1]], schema=ROWS)

    with pytest.raises(NoTimestampError, match=r"with \{'key': 'a'\} has no timestamp"):
        deduplication(10).open().rows(rows, StepOutputs())
