"""Values at any depth reach functions and states as the types that a state can keep."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from flowcore.keyed.key_index import to_python_values
from flowcore.keyed.operator import KeyGroupOperator, StepOutputs
from flowcore.process import KeyedProcessFunction
from flowcore.process.keyed import KeyedProcesses
from flowcore.windows import TumblingWindows, WindowAggregate, WindowConfig
from flowcore.windows.built_in import BuiltIn, BuiltIns
from flowcore.windows.columnar.accumulators import result_type
from flowcore.windows.keyed import RecordWindows
from tests.unit.keyed.stored_group import StoredGroup

NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
WHEN = pa.timestamp("us", tz="UTC")
TEXTS = pa.map_(pa.string(), pa.string())
CASES: list[tuple[str, pa.DataType, Any]] = [
    ("TIMESTAMP", WHEN, NOON),
    ("ARRAY<TIMESTAMP>", pa.list_(WHEN), [NOON, None]),
    ("STRUCT<at: TIMESTAMP, n: INT>", pa.struct([("at", WHEN), ("n", pa.int32())]), {"at": NOON, "n": 1}),
    ("MAP<STRING, TIMESTAMP>", pa.map_(pa.string(), WHEN), {"a": NOON, "b": None}),
    ("ARRAY<STRUCT<at: TIMESTAMP>>", pa.list_(pa.struct([("at", WHEN)])), [{"at": NOON}, {"at": None}, None]),
    ("MAP<STRING, MAP<STRING, STRING>>", pa.map_(pa.string(), TEXTS), {"a": {"b": "c"}, "d": None, "e": {}}),
    ("STRUCT<of: MAP<STRING, STRING>>", pa.struct([("of", TEXTS)]), {"of": {"a": None}}),
    ("ARRAY<STRING>", pa.list_(pa.string()), ["a"]),
]
SHOWN = [case[0] for case in CASES]


def _rows(kind: pa.DataType, *values: Any) -> pa.RecordBatch:
    fields: list[tuple[str, pa.DataType]] = [("k", pa.string()), ("t", pa.int64()), ("v", kind)]
    count = len(values)
    columns: list[pa.Array[Any]] = [pa.array(["a"] * count), pa.array([1] * count), pa.array(values, kind)]
    return pa.record_batch(columns, schema=pa.schema(fields))


def _windows(kind: pa.DataType, function: str) -> RecordWindows:
    aggregate, rows = BuiltIn(function, ("v",)), _rows(kind).schema
    return RecordWindows(
        name="w",
        config=WindowConfig(
            assigner=TumblingWindows(10), function=WindowAggregate(BuiltIns((("v", aggregate),)))
        ),
        keys=("k",),
        key_of=lambda key: key[0],
        values=("v",),
        timestamp="t",
        rows=rows,
        results=pa.schema([("v", result_type(aggregate, {"v": kind}))]),
    )


class _Kept(KeyedProcessFunction):
    """Keeps a value and emits it at the end of event time."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def open(self, context: Any) -> None:
        self._value = context.value_state("value", self._kind)

    def process(self, record: Mapping[str, Any], context: Any) -> None:
        self._value.set(record["v"])
        context.register_event_timer(9)

    def on_timer(self, _time_ms: int, _context: Any) -> Iterator[Mapping[str, Any]]:
        yield {"v": self._value.get()}


def _processes(text: str, kind: pa.DataType) -> KeyedProcesses:
    rows = _rows(kind).schema
    return KeyedProcesses(
        name="p", function=_Kept(text), values=("v",), side_outputs={}, keyed=True,
        results=pa.schema([("v", kind)]), keys=("k",), timestamp="t", rows=rows,
    )  # fmt: skip


def _emitted_after_restart(operator: KeyGroupOperator, rows: pa.RecordBatch) -> list[Any]:
    stored = StoredGroup(operator)
    stored.group.rows(rows, StepOutputs())
    stored.store("restart")
    out = StepOutputs()
    stored.group.advance_watermark(100, out)
    return [value for _, batch in out.batches for value in to_python_values(batch.column("v"))]


@pytest.mark.parametrize(("text", "kind", "value"), CASES, ids=SHOWN)
def test_a_value_is_what_python_calls_it(text: str, kind: pa.DataType, value: Any) -> None:
    assert repr(to_python_values(pa.array([value, None], kind))) == repr([value, None]), text


@pytest.mark.parametrize(("text", "kind", "value"), CASES, ids=SHOWN)
def test_windows_and_states_keep_values_over_a_restart(text: str, kind: pa.DataType, value: Any) -> None:
    rows = _rows(kind, value)

    assert _emitted_after_restart(_windows(kind, "last_value"), rows) == [value]
    assert _emitted_after_restart(_windows(kind, "collect_list"), rows) == [[value]]
    assert _emitted_after_restart(_processes(text, kind), rows) == [value]


def test_a_map_whose_keys_python_cannot_look_up_is_pairs() -> None:
    kind = pa.map_(pa.struct([("at", WHEN)]), pa.int64())
    value = [({"at": NOON}, 1)]

    assert repr(to_python_values(pa.array([value, None], kind))) == repr([value, None])
    assert _emitted_after_restart(_windows(kind, "last_value"), _rows(kind, value)) == [value]


@pytest.mark.parametrize("function", ["max", "last_value"])
def test_windows_keep_durations_over_a_restart(function: str) -> None:
    values = (dt.timedelta(days=-1), dt.timedelta(microseconds=5))

    found = _emitted_after_restart(_windows(pa.duration("us"), function), _rows(pa.duration("us"), *values))

    assert found == [dt.timedelta(microseconds=5)]
