"""Keys of floating-point numbers and structs are found in every runtime of key groups, over restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.keyed.control import Channel
from flowcore.keyed.key_index import factorize_keys, to_python_keys
from flowcore.keyed.packed import Packed
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.state_cache import StateCache
from flowcore.process import KeyedProcessFunction
from flowcore.process.keyed import KeyedProcesses
from flowcore.testing.memory_store import MemoryStore
from flowcore.watermarks.progress import WatermarkSource
from flowcore.watermarks.strategies import BoundedOutOfOrderness, WatermarkStrategy
from flowcore.windows import SessionWindows, TumblingWindows, WindowAggregate, WindowConfig
from flowcore.windows.built_in import BuiltIn, BuiltIns
from flowcore.windows.columnar.keyed import ColumnarWindows
from flowcore.windows.keyed import RecordWindows

NAN = float("nan")
INNER = pa.struct([pa.field("x", pa.float64()), pa.field("name", pa.string())])
KIND = pa.struct([pa.field("inner", INNER), pa.field("n", pa.int32())])
COLUMNS: list[tuple[str, pa.DataType]] = [
    ("k", KIND),
    ("f", pa.float32()),
    ("t", pa.int64()),
    ("v", pa.int64()),
]
ROWS = pa.schema(COLUMNS)
COUNTS = (("n", BuiltIn("count")), ("total", BuiltIn("sum", ("v",))))

numbers = st.sampled_from([0.0, 1.5, NAN]) | st.none()
inner = st.none() | st.builds(lambda x, name: {"x": x, "name": name}, numbers, st.sampled_from(["a", None]))
keys = st.none() | st.builds(lambda one, n: {"inner": one, "n": n}, inner, st.sampled_from([1, None]))


def shown(value: Any) -> str:
    return repr(value)


class Counted(KeyedProcessFunction):
    """Counts records and emits the count at a timer."""

    def open(self, context: Any) -> None:
        self.n = context.value_state("n", "BIGINT")

    def process(self, _record: Mapping[str, Any], context: Any) -> Iterator[Mapping[str, Any]]:
        self.n.set(self.n.get(0) + 1)
        context.delete_event_timer(1_000 + self.n.get() - 1)
        context.register_event_timer(1_000 + self.n.get())
        return iter(())

    def on_timer(self, _time_ms: int, context: Any) -> list[Mapping[str, Any]]:
        return [{"n": self.n.get(), "shown": shown(context.key)}]


def operators() -> dict[str, Any]:
    def config(assigner: Any) -> WindowConfig:
        return WindowConfig(assigner=assigner, function=WindowAggregate(BuiltIns(COUNTS)))

    both = {"keys": ("k", "f"), "timestamp": "t", "rows": ROWS}
    results = pa.schema([pa.field("n", pa.int64()), pa.field("total", pa.int64())])
    return {
        "tumbling": ColumnarWindows(config=config(TumblingWindows(1_000)), **both),
        "sessions": ColumnarWindows(config=config(SessionWindows(100)), **both),
        "records": RecordWindows(
            name="w", config=config(TumblingWindows(1_000)), key_of=lambda key: key, values=("v",),
            results=results, **both,
        ),
        "process": KeyedProcesses(
            name="p", function=Counted(), values=("v",), side_outputs={}, keyed=True,
            results=pa.schema([pa.field("n", pa.int64()), pa.field("shown", pa.string())]), **both,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("operator", ["tumbling", "sessions", "records", "process"])
@settings(max_examples=40, deadline=None)
@given(steps=st.lists(st.lists(st.tuples(keys, numbers), min_size=1, max_size=5), min_size=1, max_size=5))
def test_keys_are_found_again(operator: str, steps: list[list[tuple[Any, Any]]]) -> None:
    """A worker that reads them from the store finds them too; they are emitted unchanged."""
    store = MemoryStore()
    configured = operators()[operator]
    for clock, found in enumerate(steps):
        columns: Any = [[k for k, _ in found], [f for _, f in found], [1] * len(found), [1] * len(found)]
        _step(configured, columns, clock, store)
    stepped = _step(configured, [[{"inner": None, "n": 9}], [9.0], [5_000], [1]], 99, store)

    rows = [row for _, batch in stepped.outputs.batches for row in batch.to_pylist()]
    names = ("@key_k", "@key_f") if operator == "process" else ("k", "f")
    rows = [row for row in rows if row[names[1]] != 9]  # which says how far time has come
    expected = Counter(shown(pair) for found in steps for pair in found)
    assert {shown(tuple(row[name] for name in names)): row["n"] for row in rows} == expected
    assert len(rows) == len(expected)


def _step(configured: Any, columns: Any, clock: int, store: MemoryStore) -> Any:
    arrays = [pa.array(values, kind) for values, (_, kind) in zip(columns, COLUMNS, strict=True)]
    channel = Channel("in", "0")
    rows = pa.record_batch(arrays, schema=ROWS)
    items = [Packed.of_rows(channel, 0, rows), Packed.of_control(channel, {channel: max(columns[2])})]
    source = WatermarkSource(WatermarkStrategy(BoundedOutOfOrderness(0)), ("0",))
    run = Runtime(operator=configured, query="q", key_groups=1, sources={"in": source}, rows=ROWS)
    return run.step(0, items, clock, store, StateCache())


@settings(max_examples=100, deadline=None)
@given(st.lists(keys))
def test_struct_key_becomes_a_tuple_and_back(values: list[Any]) -> None:
    """Equal structs have the same number."""
    column = pa.array(values, KIND)
    (found,) = ([*to_python_keys([column], len(values))],)
    assert repr(pa.array(found, KIND).to_pylist()) == repr(values)
    codes = factorize_keys([column], len(values)).codes.tolist()
    texts = list(map(repr, values))
    pairs = {(text, code) for text, code in zip(texts, codes, strict=True)}
    assert len(pairs) == len(set(texts)) == len(set(codes))
