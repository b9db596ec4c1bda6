"""Rows of two sides for tests of joins, and random batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from flowcore.joins.group import JoinConfig
from flowcore.keyed.control import Channel
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.output_columns import RESULTS, TIMESTAMP
from flowcore.keyed.packed import Packed
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.state_cache import StateCache
from flowcore.testing.memory_store import MemoryStore
from flowcore.watermarks.progress import WatermarkSource
from flowcore.watermarks.strategies import BoundedOutOfOrderness, WatermarkStrategy

__all__ = ["ROWS", "Row", "batch_of", "found_in", "histories", "left", "right", "run_until_idle"]

ROWS = pa.schema(
    [("is_right", pa.bool_()), ("key", pa.string()), ("t", pa.int64()), ("l", pa.int64()), ("r", pa.string())]
)


class Row(NamedTuple):
    """A row of one side; ``number`` is its column ``l`` or, as text, ``r``."""

    is_right: bool
    key: str | None
    t: int
    number: int


def left(key: str | None, t: int, number: int) -> Row:
    return Row(False, key, t, number)


def right(key: str | None, t: int, number: int) -> Row:
    return Row(True, key, t, number)


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {"is_right": row.is_right, "key": row.key, "t": row.t, "r" if row.is_right else "l": _value(row)}
            for row in rows
        ],
        schema=ROWS,
    )


def _value(row: Row) -> int | str:
    return str(row.number) if row.is_right else row.number


def found_in(out: StepOutputs, output: str = RESULTS) -> list[Any]:
    """The pairs, or keys and timestamps of late rows."""
    names = ("key", "l", "r", TIMESTAMP) if output == RESULTS else ("key", "t")
    batches = (batch for name, batch in out.batches if name == output)
    return [tuple(row.get(name) for name in names) for batch in batches for row in batch.to_pylist()]


def run_until_idle(operator: JoinConfig, rows: list[Row]) -> list[list[Any]]:
    """What leaves in three steps for rows of one topic: the other one is silent, and idle in the third."""
    orders, strategy = Channel("orders", "0"), WatermarkStrategy(BoundedOutOfOrderness(0))
    runtime = Runtime(
        operator=operator, query="q", key_groups=1, rows=ROWS,
        sources={
            "orders": WatermarkSource(strategy, ("0",)),
            "others": WatermarkSource(replace(strategy, idle_after_ms=1_000), ("0",)),
        },
    )  # fmt: skip
    store, cache = MemoryStore(), StateCache()
    items = [
        Packed.of_rows(orders, 0, batch_of(rows)),
        Packed.of_control(orders, {orders: max(row.t for row in rows)}),
    ]
    return [
        found_in(runtime.step(0, arriving, processing_time_ms, store, cache).outputs)
        for processing_time_ms, arriving in ((0, items), (1_000, []), (1_001, []))
    ]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[tuple[bool, str | None, int]], int, str]]:
    """Batches of rows with times relative to the watermark, how far it advances, and a worker's fate."""
    row = st.tuples(st.booleans(), st.sampled_from([None, "a", "b"]), st.integers(-4, 12))
    fate = st.sampled_from(["delta", "delta", "snapshot", "restart", "former worker"])
    advance = st.sampled_from([0, 0, 1, 2, 5, 9, 30])
    return draw(st.lists(st.tuples(st.lists(row, max_size=8), advance, fate), max_size=12))
