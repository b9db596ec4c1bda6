"""The join with the newest row by key group agrees with a plain model, over restarts and any batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.elements import MAX_TIMESTAMP_MS, RecordAttributes, StreamElement, Watermark, WatermarkStatus
from flowcore.joins.latest import LatestJoin
from flowcore.keyed.control import Channel, ControlElement
from flowcore.keyed.inspection import _keys
from flowcore.keyed.manifest import StateManifest
from flowcore.keyed.operator import CONTROL, StepOutputs
from flowcore.keyed.output_columns import RESULTS
from flowcore.keyed.packed import Packed
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.state_cache import StateCache
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.testing.memory_store import MemoryStore
from flowcore.watermarks.progress import WatermarkSource
from tests.unit.joins.sided_rows import ROWS, Row, batch_of, found_in, left, right
from tests.unit.keyed.stored_group import StoredGroup

How = Literal["inner", "left"]
Load = Literal["caught-up"] | int | None
Output = tuple[str | None, int, str | None, int]
"""Key, left value, right value, timestamp."""
_ELEMENTS: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())


_DELETING = ROWS.append(pa.field("gone", pa.bool_()))
"""The columns of rows of which right ones may delete their key."""


def join(
    how: How = "left", load: Load = None, ttl_ms: int | None = None, *, deletes: bool = False
) -> LatestJoin:
    return LatestJoin(
        keys=("key",), side="is_right", timestamp="t", rows=_DELETING if deletes else ROWS, left={"l": "l"},
        right={"r": "r", "@gone": "gone"} if deletes else {"r": "r"}, how=how, load=load, ttl_ms=ttl_ms,
        deleted="@gone" if deletes else None,
    )  # fmt: skip


def is_gone(row: Row) -> bool:
    """Whether a right row deletes its key, in tests of rows that may."""
    return row.is_right and row.number % 3 == 0


def deleting_batch(rows: list[Row]) -> pa.RecordBatch:
    """Rows with the column that says whether they delete their key, null or false where they do not."""
    flags = [True if is_gone(row) else None if row.number % 2 else False for row in rows]
    columns = [*batch_of(rows).columns, pa.array(flags, pa.bool_())]
    return pa.RecordBatch.from_arrays(columns, schema=_DELETING)


@dataclass
class Model:
    """Remembers every right row, and looks through all of them for each left row."""

    config: LatestJoin
    processing_time_ms: int = 0
    began_ms: int | None = None
    loaded: bool = False
    rights: list[tuple[Row, int]] = field(default_factory=list)
    waiting: list[Row] = field(default_factory=list)

    def advance_processing_time(self, processing_time_ms: int) -> None:
        self.processing_time_ms = max(self.processing_time_ms, processing_time_ms)
        self.began_ms = processing_time_ms if self.began_ms is None else self.began_ms
        self.loaded = self.loaded or self.config.load is None

    def take(self, rows: list[Row]) -> list[Output]:
        self.rights += [(row, self.processing_time_ms) for row in rows if row.is_right]
        keyless = [row for row in rows if not row.is_right and row.key is None]
        alone = [(None, row.number, None, row.t) for row in keyless if self.config.how == "left"]
        self.waiting += [row for row in rows if not row.is_right and row.key is not None]
        return [*alone, *self.release()]

    def advance_watermark(self, watermark_ms: int) -> list[Output]:
        load = self.began_ms if self.config.load == "caught-up" else self.config.load
        self.loaded = self.loaded or load is None or watermark_ms >= load
        return self.release()

    def release(self) -> list[Output]:
        if not self.loaded:
            return []
        released, self.waiting = self.waiting, []
        found = [(row.key, row.number, self.partner(row), row.t) for row in released]
        return [each for each in found if each[2] is not None or self.config.how == "left"]

    def partner(self, row: Row) -> str | None:
        ttl_ms = self.config.ttl_ms
        kept = [
            other
            for other, arrived_ms in self.rights
            if other.key == row.key and (ttl_ms is None or arrived_ms + ttl_ms > self.processing_time_ms)
        ]
        if not kept or (self.config.deleted is not None and is_gone(kept[-1])):
            return None
        return str(kept[-1].number)


@st.composite
def _histories(draw: st.DrawFn) -> list[tuple[list[tuple[bool, str | None]], int, int, str]]:
    """Batches of rows, how far the clock and the watermark advance, and a worker's fate."""
    row = st.tuples(st.booleans(), st.sampled_from([None, "a", "b", "c"]))
    fate = st.sampled_from(["delta", "delta", "snapshot", "restart", "former worker"])
    steps = st.sampled_from([0, 0, 1, 2, 5, 9])
    return draw(st.lists(st.tuples(st.lists(row, max_size=8), steps, steps, fate), max_size=12))


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["inner", "left"]),
    st.sampled_from([None, "caught-up", 5, 12]),
    st.sampled_from([None, 1, 3, 8]),
    st.booleans(),
    _histories(),
)
def test_rows_leave_in_the_step_in_which_the_model_says(
    how: How, load: Load, ttl_ms: int | None, deletes: bool, history: Any
) -> None:
    """This holds over restarts, and for a worker that reads the last piece of state again."""
    config = join(how, load, ttl_ms, deletes=deletes)
    model, stored = Model(config), StoredGroup(config)
    processing_time_ms, watermark_ms, number = 4, 0, 0
    for given_rows, clock_step_ms, watermark_step_ms, fate in history:
        rows = []
        for is_right, key in given_rows:
            number += 1
            rows.append(Row(is_right, key, number % 7, number))
        processing_time_ms += clock_step_ms
        out = StepOutputs()
        model.advance_processing_time(processing_time_ms)
        stored.group.advance_processing_time(processing_time_ms, out)
        expected = model.take(rows)
        stored.group.rows(deleting_batch(rows) if deletes else batch_of(rows), out)
        if watermark_step_ms:
            watermark_ms += watermark_step_ms
            expected += model.advance_watermark(watermark_ms)
            stored.group.advance_watermark(watermark_ms, out)
        stored.store(fate)

        assert found_in(out) == expected
        assert out.counters == {}


def test_state_is_the_newest_right_row_of_each_key() -> None:
    """The state also has the left rows that wait."""
    stored = StoredGroup(join(load=100))
    for processing_time_ms in range(200):
        stored.group.advance_processing_time(processing_time_ms, StepOutputs())
        stored.group.rows(
            batch_of([right("a", 0, processing_time_ms), left("a", 0, processing_time_ms)]), StepOutputs()
        )
        stored.store("delta")
    stored.store("restart")
    left_rows, right_rows = (side.take_all().to_pylist() for side in stored.group._sides)
    assert (len(left_rows), [row["r"] for row in right_rows]) == (200, ["199"])

    out = StepOutputs()
    stored.group.advance_watermark(100, out)
    stored.store("delta")
    stored.store("restart")
    assert found_in(out) == [("a", number, "199", 0) for number in range(200)]
    assert [side.take_all().num_rows for side in stored.group._sides] == [0, 1]


def test_a_key_that_is_deleted_takes_no_memory() -> None:
    """Its deletion is in the state until it is stored, and is not shown."""
    stored = StoredGroup(join(deletes=True))
    for number in (1, 3):
        stored.group.advance_processing_time(number, StepOutputs())
        stored.group.rows(deleting_batch([right("a", 0, number), right("b", 0, 4)]), StepOutputs())
        stored.store("delta")
    manifest = StateManifest(layout=stored.config.layout, key_groups=1)
    manifest.header = stored.header
    assert [each.key for each in _keys(manifest, stored.pieces) or ()] == [{"key": "b"}]

    stored.group.advance_processing_time(4, StepOutputs())
    assert [row["key0"] for row in stored.group._sides[1].take_all().to_pylist()] == ["b"]


def test_a_key_of_left_rows_only_takes_no_memory() -> None:
    """Left rows are not stored, so nothing else removes their keys."""
    group = join().open()
    group.advance_processing_time(0, StepOutputs())
    group.rows(batch_of([right("z", 0, 1), right("a", 0, 39)]), StepOutputs())
    for step in range(40):
        group.advance_processing_time(step, StepOutputs())
        keys = [f"{step}-{number}" for number in range(100)]
        group.rows(batch_of([left(key, 0, step) for key in keys]), StepOutputs())
    assert len(group._index) < 2_000
    out = StepOutputs()
    group.rows(batch_of([left("a", 0, 1), left("new", 0, 2)]), out)
    assert found_in(out) == [("a", 1, "39", 0), ("new", 2, None, 0)]


def test_a_deletion_is_stored_in_the_step_of_the_load() -> None:
    """Otherwise a restart would bring the deleted row back."""
    stored, out = StoredGroup(join(load=100, deletes=True)), StepOutputs()
    for processing_time_ms, number in ((1, 1), (2, 3)):
        stored.group.advance_processing_time(processing_time_ms, out)
        stored.group.rows(deleting_batch([right("a", 0, number)]), out)
        stored.group.advance_watermark(50 * processing_time_ms, out)
        stored.store("delta")
    stored.store("restart")
    stored.group.advance_processing_time(3, out)
    stored.group.rows(deleting_batch([left("a", 5, 4)]), out)

    assert found_in(out) == [("a", 4, None, 5)]


def test_a_clock_that_is_set_back_makes_no_earlier_row_the_newest() -> None:
    group, out = join().open(), StepOutputs()
    for processing_time_ms, number in ((1_000, 1), (10, 2)):
        group.advance_processing_time(processing_time_ms, out)
        group.rows(batch_of([right("a", 0, number)]), out)
    group.rows(batch_of([left("a", 5, 3)]), out)

    assert found_in(out) == [("a", 3, "2", 5)]


class _Steps:
    """Steps of a runtime, with elements that arrive from one channel a side."""

    def __init__(self, config: LatestJoin) -> None:
        self._store = MemoryStore()
        self.start(config)

    def start(self, config: LatestJoin) -> None:
        """Start, or start again with another configuration."""
        self._runtime = Runtime(
            operator=config, query="q", key_groups=1, rows=ROWS, emits_control=True,
            sources={side: WatermarkSource(None, ("0",)) for side in ("left", "right")},
        )  # fmt: skip

    def step(
        self, processing_time_ms: int, rows: list[Row], elements: dict[str, StreamElement[Any]]
    ) -> list[Output | StreamElement[Any]]:
        """What leaves, in order; each step reads the state that was stored."""
        arriving = [ControlElement(side, "0", "test", 0, element) for side, element in elements.items()]
        items = [Packed.of_control(Channel(each.source, "0"), elements=[each]) for each in arriving]
        items.append(Packed.of_rows(Channel("left", "0"), 0, batch_of(rows)))
        result = self._runtime.step(0, items, processing_time_ms, self._store, StateCache())
        found: list[Output | StreamElement[Any]] = []
        for output, batch in result.outputs.batches:
            if output == CONTROL:
                found += [_ELEMENTS.decode(each) for each in batch.column(0).to_pylist()]
            elif output == RESULTS:
                one = StepOutputs()
                one.rows(RESULTS, batch)
                found += found_in(one)
        return found


def test_no_watermark_is_emitted_before_the_left_rows_that_wait() -> None:
    """Watermarks and the backlog status follow when the right side is loaded, and then pass at once."""
    steps = _Steps(join(load="caught-up"))
    backlog = RecordAttributes(backlog=True)
    assert steps.step(100, [left("a", 7, 1)], {"left": Watermark(50), "right": Watermark(60)}) == []
    assert steps.step(130, [right("a", 7, 2)], {"left": backlog}) == []

    loaded = steps.step(140, [], {"left": Watermark(120), "right": Watermark(100)})
    assert loaded == [backlog, ("a", 1, "2", 7), Watermark(100)]
    assert steps.step(150, [left("a", 130, 3)], {"right": Watermark(110)}) == [
        ("a", 3, "2", 130), Watermark(110),
    ]  # fmt: skip


def test_left_rows_leave_when_all_inputs_are_idle() -> None:
    """After the last watermark before, which was pending."""
    steps, idle = _Steps(join(load="caught-up")), WatermarkStatus(idle=True)
    assert steps.step(100, [left("a", 7, 1)], {"left": Watermark(5), "right": Watermark(6)}) == []
    assert steps.step(110, [], {"right": idle}) == []

    assert steps.step(120, [], {"left": idle}) == [("a", 1, None, 7), Watermark(5), idle]


@pytest.mark.parametrize("load", [None, 5, "caught-up"])
def test_left_rows_leave_if_a_changed_load_does_not_wait(load: Load) -> None:
    """They are joined at the next start, before the rows of its first step."""
    steps = _Steps(join(load=10**15))
    reached: dict[str, StreamElement[Any]] = {"left": Watermark(50), "right": Watermark(50)}
    assert steps.step(40, [right("a", 7, 1), left("a", 7, 2)], reached) == []
    steps.start(join(load=60))
    assert steps.step(60, [], {}) == []

    steps.start(join(load=load))
    assert steps.step(70, [left("a", 60, 3)], {}) == [("a", 2, "1", 7), Watermark(50), ("a", 3, "1", 60)]
    assert steps.step(80, [left("a", 60, 4)], {}) == [("a", 4, "1", 60)]


@pytest.mark.parametrize("load", ["caught-up", 10**15])
def test_left_rows_leave_at_the_end_of_input(load: Load) -> None:
    steps, end = _Steps(join(load=load)), Watermark(MAX_TIMESTAMP_MS)

    assert steps.step(100, [left("a", 7, 1)], {"left": end, "right": end}) == [("a", 1, None, 7), end]
