"""State that is distributed over other key groups is continued as if nothing had happened."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.deduplication.keyed import Deduplication
from flowcore.errors import StateError
from flowcore.flush.buffered import BufferedOperator
from flowcore.flush.config import BufferOutput
from flowcore.flush.operator import FlushBuffers
from flowcore.keyed.content import StoredSchemas
from flowcore.keyed.key_index import Ints
from flowcore.keyed.manifest import StateManifest
from flowcore.keyed.operator import KeyGroupOperator, StepOutputs
from flowcore.keyed.output_columns import END, RESULTS, START, TIMESTAMP
from flowcore.keyed.packed import Packed
from flowcore.keyed.regrouping import ContentDigest, RegroupedState, StoredGroup, regroup_state
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.state_cache import StateCache
from flowcore.process import KeyedProcessFunction
from flowcore.process.keyed import KeyedProcesses
from flowcore.ranking.keyed import Ranking
from flowcore.retraction.changelog import CHANGE, Changelog
from flowcore.retraction.ranking import RetractingRanking, RetractingRankingGroup
from flowcore.sorting.keyed import Sorting
from flowcore.testing.memory_store import MemoryStore
from flowcore.watermarks.merge import MergedWatermark
from flowcore.watermarks.progress import WatermarkSource
from flowcore.windows import GlobalWindows, SessionWindows, SlidingWindows
from flowcore.windows.triggers import Count
from tests.unit.keyed.sided_joins import SidedAsOf, SidedInterval, SidedLatest
from tests.unit.keyed.test_runtime import ROWS, STRATEGY, by_column, by_record, rows, windows

Row = tuple[str, int, int]
KEYS = pa.schema([ROWS.field("user")])


class Silence(KeyedProcessFunction):
    """Emits the sum of a key's values 5 ms of event time and 40 ms of the clock after each record."""

    def open(self, context: Any) -> None:
        self.sum = context.value_state("sum", "BIGINT")

    def process(self, record: Any, context: Any) -> None:
        self.sum.set(self.sum.get(0) + record["v"])
        context.register_event_timer(context.timestamp_ms + 5)
        context.register_processing_timer(context.processing_time_ms + 40)

    def on_timer(self, time_ms: int, context: Any) -> Any:
        yield {"user": context.key, "t": time_ms, "total": self.sum.get()}


def process() -> KeyedProcesses:
    return KeyedProcesses(
        name="silence", function=Silence(), keys=("user",), values=("v",), timestamp="t", rows=ROWS,
        results=pa.schema([("user", pa.string()), ("t", pa.int64()), ("total", pa.int64())]), side_outputs={},
    )  # fmt: skip


class ChangingGroup(RetractingRankingGroup):
    """Rows whose value is divisible by three are taken back."""

    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:
        signs = np.where(rows.column("v").to_numpy() % 3 == 0, -1, 1)
        super().rows(rows.append_column("change", pa.array(signs)), out)


class Changing(RetractingRanking):
    """Configuration."""

    def open(self) -> RetractingRankingGroup:
        return ChangingGroup(self)


SIDES: dict[str, Any] = {
    "keys": ("user",), "side": "is_right", "timestamp": "t", "left": {"l": "v"}, "right": {"r": "v"},
    "rows": ROWS.append(pa.field("is_right", pa.bool_())),
}  # fmt: skip


def buffered(operator: KeyGroupOperator) -> KeyGroupOperator:
    results = operator.outputs[RESULTS]
    buffer = FlushBuffers(
        config=BufferOutput(20), quiet_ms=1_000, keys=("user", START, END), timestamp=TIMESTAMP, rows=results
    )
    return BufferedOperator(operator=operator, buffer=buffer)


OPERATORS = {
    "panes": lambda: by_column(windows(assigner=SlidingWindows(12, 4), allowed_lateness_ms=6)),
    "sessions": lambda: by_column(windows(assigner=SessionWindows(5), allowed_lateness_ms=6)),
    "records": lambda: by_record(windows(assigner=SlidingWindows(12, 4), allowed_lateness_ms=6)),
    "expiring": lambda: by_record(windows(assigner=GlobalWindows(), trigger=Count(1), ttl_ms=30)),
    "running": lambda: by_column(windows(assigner=GlobalWindows(), trigger=Count(1), ttl_ms=30)),
    "process": process,
    "seen": lambda: Deduplication(
        keys=("user",), within_ms=20, time="event", timestamp="t", rows=ROWS, passed=("user", "t", "v")
    ),
    "ranked": lambda: Ranking(
        keys=("user",),
        n=2,
        order=(("v", True),),
        newest_first=False,
        timestamp=None,
        rows=ROWS,
        passed={"user": "user", "v": "v"},
        ttl_ms=30,
    ),
    "grouped": lambda: Changing(
        keys=("user",),
        row_key=("t",),
        n=2,
        order=(("v", True),),
        change="change",
        rows=ROWS.append(pa.field("change", pa.int64())),
        results={"v": "v", "t": "t"},
        passed={},
    ),
    "sorted": lambda: Sorting(keys=("user",), timestamp="t", rows=ROWS, passed=("user", "t", "v")),
    "joined": lambda: SidedInterval(before_ms=10, after_ms=20, how="full", **SIDES),
    "joined as of": lambda: SidedAsOf(how="left", **SIDES),
    "joined as of within": lambda: SidedAsOf(how="left", tolerance_ms=20, **SIDES),
    "joined latest": lambda: SidedLatest(how="left", load=None, ttl_ms=None, **SIDES),
    "joined latest, loaded": lambda: SidedLatest(how="left", load=20, ttl_ms=20, **SIDES),
    "joined latest, waiting": lambda: SidedLatest(how="left", load=1 << 40, ttl_ms=None, **SIDES),
    "buffered windows": lambda: buffered(by_column(windows(assigner=SlidingWindows(12, 4)))),
    "buffer": lambda: FlushBuffers(
        config=BufferOutput(20), quiet_ms=1_000, keys=("user",), timestamp="t", rows=ROWS
    ),
}


def assign(keys: pa.RecordBatch, key_groups: int) -> Ints:
    return np.array(
        [zlib.crc32(str(row["user"]).encode()) % key_groups for row in keys.to_pylist()], np.int64
    )


class Groups:
    """The key groups of one operator, each with its store."""

    def __init__(self, operator: KeyGroupOperator, key_groups: int) -> None:
        self.operator = operator
        self.stores = [MemoryStore() for _ in range(key_groups)]
        self.cache = StateCache()

    def step(self, batch: Sequence[Row], processing_time_ms: int) -> Counter[str]:
        """What all key groups emit for records; each gets the control rows."""
        found: Counter[str] = Counter()
        groups = assign(
            pa.RecordBatch.from_pylist([{"user": row[0]} for row in batch], KEYS), len(self.stores)
        )
        control = rows(*batch)[1]
        for number, store in enumerate(self.stores):
            mine = [row for row, group in zip(batch, groups, strict=True) if group == number]
            items: list[Packed] = [*(rows(*mine)[:1] if mine else ()), control]
            runtime = Runtime(
                operator=self.operator, query="q", key_groups=len(self.stores), rows=ROWS,
                sources={"in": WatermarkSource(STRATEGY, ("0",))}, smallest_log_bytes=700,
            )  # fmt: skip
            result = runtime.step(number, items, processing_time_ms, store, self.cache)
            for output, each in result.outputs.batches:
                if output == RESULTS:
                    found.update(json.dumps(row, sort_keys=True) for row in each.to_pylist())
        return found

    def stored(self) -> dict[int, StoredGroup]:
        found = {}
        for number, store in enumerate(self.stores):
            manifest = StateManifest.read(store.manifest() or {})
            refs = (*manifest.snapshot, *manifest.deltas)
            found[number] = StoredGroup(manifest, [store.segments[each.segment] for each in refs])
        return found

    def regroup(self, key_groups: int) -> Groups:
        """The same state in other key groups."""
        schemas = StoredSchemas(KEYS, self.operator.outputs[RESULTS])
        before, after = self.stored(), Groups(self.operator, key_groups)
        moved = regroup_state(before, schemas, assign, key_groups, {})
        for store, group in zip(after.stores, moved.groups, strict=True):
            store.put_manifest(group.manifest.encode())
            for number, piece in enumerate(group.pieces):
                store.put_segment(number, piece)
        digests = [ContentDigest(), ContentDigest()]
        for digest, groups in zip(digests, (before, after.stored()), strict=True):
            for group in groups.values():
                digest.add("operator", group.read(schemas))
        assert digests[0] == digests[1]
        return after


@pytest.mark.parametrize("name", OPERATORS)
@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from("abcdefg"), st.integers(0, 60), st.integers(1, 5)),
            min_size=1,
            max_size=6,
        ),
        min_size=2,
        max_size=8,
    ),
    st.integers(1, 5),
    st.integers(1, 5),
    st.data(),
)
def test_results_are_those_of_unchanged_key_groups(
    name: str, batches: list[list[Row]], before: int, after: int, data: st.DataObject
) -> None:
    """At any point between two steps, from any number to any other."""
    operator = OPERATORS[name]()
    changed, unchanged = Groups(operator, before), Groups(operator, before)
    at = data.draw(st.integers(1, len(batches) - 1))

    for number, batch in enumerate([*batches, [("z", 200, 1)], [("z", 300, 1)]]):
        if number == at:
            changed = changed.regroup(after)
        assert changed.step(batch, 17 * number) == unchanged.step(batch, 17 * number)


def test_session_windows_of_a_key_are_not_divided() -> None:
    """A piece of state, here of 4,096 rows, replaces all windows of its keys."""
    groups = Groups(OPERATORS["sessions"](), 1)
    groups.step([("a", 20, 1), *((f"{key:04}", at, 1) for key in range(2_500) for at in (11, 20))], 0)

    results = groups.regroup(1).step([("z", 200, 1)], 1)

    assert len(results) == 2_501


def test_a_join_upstream_has_emitted_a_delayed_watermark() -> None:
    """The new channels of the next operator do not pass what the join has not emitted."""
    groups = Groups(OPERATORS["joined"](), 2)
    groups.step([("a", 5, 1), ("b", 107, 2)], 0)
    schemas = StoredSchemas(KEYS, groups.operator.outputs[RESULTS])

    moved = regroup_state(groups.stored(), schemas, assign, 3, {})

    assert moved.watermark.watermark_ms == 107 - 1 - 20


def test_channels_are_the_new_key_groups_of_the_operator_upstream() -> None:
    """A key group with buffered records holds what it has not emitted; the others have emitted everything."""
    groups = Groups(by_column(windows()), 2)
    groups.step([("a", 5, 1), ("b", 7, 1)], 0)
    channels = MergedWatermark(("0", "1"))
    channels.merge({})
    channels.channels_ms[:] = (3, 6)
    channels.idle_channels[1] = True
    for store in groups.stores:
        manifest = dict(store.manifest() or {})
        manifest["event_time"]["sources"]["first"] = channels.snapshot()
        store.put_manifest(manifest)
    sender = MergedWatermark(("in",))
    sender.watermark_ms = 6
    upstream = RegroupedState([], frozenset({1}), sender)
    schemas = StoredSchemas(KEYS, groups.operator.outputs[RESULTS])

    moved = regroup_state(groups.stored(), schemas, assign, 3, {"first": upstream})

    for group in moved.groups:
        found = MergedWatermark.from_snapshot(group.manifest.event_time["sources"]["first"])
        assert found.names == ("0", "1", "2")
        assert found.channels_ms.tolist() == [6, 3, 6]
        assert not found.idle_channels.any()


def test_buffer_with_records_holds_what_it_held() -> None:
    """The watermark that waits for its records, and latency markers once; an empty buffer holds nothing."""
    groups = Groups(OPERATORS["buffer"](), 2)
    groups.step([("a", 5, 1)], 0)
    for number, store in enumerate(groups.stores):
        manifest = dict(store.manifest() or {})
        manifest["wake_ms"] = (None, 70)[number]
        if manifest["header"]["rest"]["held"]:
            manifest["header"]["rest"]["markers"] = [["in", 0, 7]]
        store.put_manifest(manifest)

    found = [each.manifest for each in groups.regroup(7).stored().values()]

    (own,) = assign(pa.RecordBatch.from_pylist([{"user": "a"}], KEYS), 7)
    rests = [each.header["rest"] for each in found]
    assert [rest["held"] for rest in rests] == [[{"watermark": 4}] if n == own else [] for n in range(7)]
    assert [rest["markers"] for rest in rests] == [[["in", 0, 7]] if n == own else [] for n in range(7)]
    assert [rest["waiting_since_ms"] for rest in rests] == [0 if n == own else None for n in range(7)]
    assert {each.wake_ms for each in found} == {70}


def test_key_groups_at_different_watermarks_are_refused() -> None:
    """A window may have fired in one of them and not in the other."""
    groups = Groups(by_column(windows()), 2)
    groups.step([("a", 5, 1)], 0)
    kept = groups.stores[1].copy()
    groups.step([("a", 50, 1)], 1)
    groups.stores[1] = kept

    with pytest.raises(StateError, match="key groups are at different watermarks"):
        groups.regroup(3)


def test_key_in_a_wrong_key_group_is_refused() -> None:
    """The types of keys decide where they belong."""
    groups = Groups(by_column(windows()), 2)
    groups.step([("a", 5, 1), ("b", 7, 1), ("c", 7, 1)], 0)
    groups.stores.reverse()

    with pytest.raises(StateError, match="has keys that do not belong there"):
        groups.regroup(3)


def test_what_expired_in_one_key_group_has_not_expired_in_another() -> None:
    """The clocks of key groups differ: a row that was not retracted yet is, whichever clock is ahead."""
    passed = {"user": "user", "v": "v"}
    groups = Groups(Changelog(keys=("user",), rows=ROWS, passed=passed, ttl_ms=30), 2)
    (number,) = assign(pa.RecordBatch.from_pylist([{"user": "d"}], KEYS), 2)
    groups.step([("a", 5, 1), ("d", 5, 1)], 0)
    kept = groups.stores[number].copy()
    groups.step([("a", 5, 2)], 50)
    groups.stores[number] = kept  # it had no step
    assert [*assign(pa.RecordBatch.from_pylist([{"user": "a"}], KEYS), 2)] != [number]

    found = [json.loads(each) for each in groups.regroup(1).step([("z", 5, 3)], 51)]

    assert {(row["user"], row["v"], row[CHANGE]) for row in found} == {("d", 1, -1), ("z", 3, 1)}


def test_counters_are_kept_once() -> None:
    """The sum over all key groups stays."""
    groups = Groups(by_column(windows()), 2)
    groups.step([("a", 50, 1), ("b", 50, 1)], 0)
    groups.step([("a", 1, 1), ("b", 1, 1), ("b", 1, 1)], 1)

    found = [each.manifest.counters for each in groups.regroup(4).stored().values()]

    assert sum((Counter(each) for each in found), Counter()) == {"dropped_records": 3}


def test_unknown_layout_is_refused() -> None:
    """A newer version may have written it."""
    groups = Groups(by_column(windows()), 1)
    groups.step([("a", 5, 1)], 0)
    (group,) = groups.stored().values()
    other = StoredGroup(replace(group.manifest, layout="rings by user"), group.pieces)

    with pytest.raises(StateError, match="layout 'rings by user' is unknown"):
        regroup_state({0: other}, StoredSchemas(KEYS, ROWS), assign, 2, {})
