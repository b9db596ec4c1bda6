"""What fires at one time is emitted in the same order by a worker that has read the state again."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from flowcore.joins.retracting import RetractingJoin
from flowcore.keyed.operator import KeyGroupOperator, StepOutputs
from flowcore.process import KeyedProcessFunction
from flowcore.process.keyed import KeyedProcesses
from flowcore.windows import (
    GlobalWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    WindowAggregate,
    WindowAssigner,
    WindowConfig,
    WindowProcess,
)
from flowcore.windows.built_in import BuiltIn, BuiltIns
from flowcore.windows.columnar.keyed import ColumnarWindows
from flowcore.windows.keyed import RecordWindows
from flowcore.windows.triggers import ContinuousProcessingTime
from tests.unit.keyed.stored_group import StoredGroup

FIELDS: list[tuple[str, pa.DataType]] = [("k", pa.string()), ("n", pa.int64()), ("t", pa.int64())]
ROWS = pa.schema(FIELDS)
COUNTED = BuiltIns((("n", BuiltIn("count")),))
SIZE_MS = 1_000


class Timers(KeyedProcessFunction):
    """Emits at the end of the second of a record, by the time of the record and by the clock."""

    def process(self, record: Any, context: Any) -> Any:  # noqa: ARG002 - the signature of the method
        context.register_event_timer(SIZE_MS - 1)
        context.register_processing_timer(SIZE_MS - 1)

    def on_timer(self, time_ms: int, context: Any) -> Any:
        yield {"seen": f"{context.key} {time_ms}"}


class Values:
    """Emits the number of records."""

    def process(self, context: Any, values: Any, /) -> list[dict[str, Any]]:  # noqa: ARG002
        return [{"n": len(values)}]

    def clear(self, context: Any, /) -> None:
        """Keep nothing."""


def by_record(assigner: WindowAssigner, function: Any, **config: Any) -> RecordWindows:
    return RecordWindows(
        name="counted", config=WindowConfig(assigner=assigner, function=function, **config), keys=("k",),
        key_of=lambda key: key[0], values=("n",), timestamp="t", rows=ROWS,
        results=pa.schema([("n", pa.int64())]),
    )  # fmt: skip


def by_column(assigner: WindowAssigner) -> ColumnarWindows:
    config = WindowConfig(assigner=assigner, function=WindowAggregate(COUNTED))
    return ColumnarWindows(config=config, keys=("k",), timestamp="t", rows=ROWS)


OPERATORS: dict[str, KeyGroupOperator] = {
    "process function": KeyedProcesses(
        name="timers", function=Timers(), keys=("k",), values=("n",), timestamp="t", rows=ROWS,
        results=pa.schema([("seen", pa.string())]), side_outputs={},
    ),
    "tumbling by record": by_record(TumblingWindows(SIZE_MS), WindowProcess(Values())),
    "sessions by record": by_record(SessionWindows(SIZE_MS), WindowAggregate(COUNTED)),
    "global with a ttl": by_record(
        GlobalWindows(), WindowAggregate(COUNTED), trigger=ContinuousProcessingTime(SIZE_MS), ttl_ms=1_500
    ),
    "tumbling by column": by_column(TumblingWindows(SIZE_MS)),
    "sliding by column": by_column(SlidingWindows(SIZE_MS, SIZE_MS // 2)),
    "sessions by column": by_column(SessionWindows(SIZE_MS)),
}  # fmt: skip


@pytest.mark.parametrize("how", ["snapshot", "delta"])
@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_a_restart_changes_no_order_of_what_fires_at_one_time(operator: KeyGroupOperator, how: str) -> None:
    chance = random.Random(7)  # noqa: S311
    kept, restored = StoredGroup(operator), StoredGroup(operator)
    emitted = []
    for group in (kept, restored):
        chance.seed(7)
        for step in range(3):
            keys = [f"key {chance.randrange(80)}" for _ in range(60)]
            group.group.advance_processing_time(step, StepOutputs())
            rows = [{"k": key, "n": 1, "t": 5} for key in keys]
            group.group.rows(pa.RecordBatch.from_pylist(rows, schema=ROWS), StepOutputs())
            group.store("delta")
        if group is restored:
            group.store(how)
            group.store("restart")
        out = StepOutputs()
        group.group.advance_processing_time(2_000, out)
        group.group.advance_watermark(2 * SIZE_MS, out)
        emitted.append([row for _, batch in out.batches for row in batch.to_pylist()])

    assert len(emitted[0]) >= 60
    assert emitted[0] == emitted[1]


SIDED = pa.schema(
    [
        ("k", pa.string()),
        ("right", pa.bool_()),
        ("t", pa.int64()),
        ("change", pa.int64()),
        ("row", pa.string()),
    ]
)


@pytest.mark.parametrize("how", ["left", "full", "semi", "anti"])
def test_a_restart_changes_no_order_of_what_a_join_takes_back(how: str) -> None:
    """The last row that changes a group downstream names its result, also when a batch is repeated."""
    join = RetractingJoin(
        keys=("k",), side="right", timestamp="t", how=how, rows=SIDED, left={"l": "row"}, right={"r": "row"},
        before_ms=2**63 - 1, after_ms=2**63 - 1, time="processing", change="change", row_names=("l", "r"),
    )  # fmt: skip
    given = [
        (f"key {key}", right, None, 1, f"{'r' if right else 'l'}{key}")
        for right in (True, False)
        for key in range(40)
    ]
    emitted = []
    for restarts in (False, True):
        random.Random(5).shuffle(given)  # noqa: S311
        group = StoredGroup(join)
        for step in range(8):
            _join(group, step, given[step * 10 : step * 10 + 10])
            group.store("delta")
        if restarts:
            group.store("restart")
        back = [(key, right, time, -1, row) for key, right, time, _, row in given if right]
        emitted.append(_join(group, 9, sorted(back)))
        given.sort()

    assert len(emitted[0]) >= 40
    assert emitted[0] == emitted[1]


def _join(group: StoredGroup, now_ms: int, rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    out = StepOutputs()
    group.group.advance_processing_time(now_ms, out)
    named = [dict(zip(SIDED.names, row, strict=True)) for row in rows]
    group.group.rows(pa.RecordBatch.from_pylist(named, SIDED), out)
    group.group.finish(out, idle=False)
    return [row for _, batch in out.batches for row in batch.to_pylist()]
