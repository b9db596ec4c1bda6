"""The content of a state store is shown without the operator that wrote it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from flowcore.deduplication.keyed import Deduplication
from flowcore.errors import StateError
from flowcore.flush import BufferOutput
from flowcore.flush.buffered import BufferedOperator
from flowcore.flush.operator import FlushBuffers
from flowcore.joins.asof import AsOfJoin
from flowcore.joins.interval import IntervalJoin
from flowcore.joins.latest import LatestJoin
from flowcore.keyed.content import StoredSchemas, read_content
from flowcore.keyed.control import Channel
from flowcore.keyed.inspection import InspectedGroup, inspect_state
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.output_columns import RESULTS
from flowcore.keyed.packed import Packed
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.state_cache import StateCache
from flowcore.ranking.keyed import Ranking
from flowcore.sorting.keyed import Sorting
from flowcore.testing.memory_store import MemoryStore
from flowcore.windows import SessionWindows, TumblingWindows
from tests.unit.keyed.test_runtime import ROWS, by_column, by_record, rows, runtime_of, windows

SIDED = ROWS.append(pa.field("is_right", pa.bool_()))
RECORDS = [("a", 1, 1), ("a", 2, 2), ("b", 12, 4), ("b", 30, 8)]


def left_by(operator: Any, *batches: list[tuple[str, int, int]]) -> InspectedGroup:
    runtime: Runtime = runtime_of(operator)
    store, remembered = MemoryStore(), StateCache()
    for clock, batch in enumerate(batches):
        runtime.step(0, rows(*batch), clock, store, remembered)
    return inspected(store)


def inspected(store: MemoryStore, change: tuple[bytes, bytes] = (b"", b"")) -> InspectedGroup:
    """The state of the one operator in a store, after a change of the manifest's text."""
    assert store.kept is not None
    segments = {("windows", number): content for number, content in store.segments.items()}
    (found,) = inspect_state(b'{"windows": ' + store.kept.replace(*change) + b"}", segments)
    return found


def shown(found: InspectedGroup) -> dict[str, list[tuple[Any, ...]]]:
    assert found.keys is not None
    return {
        key.key["user"]: [
            (each["start_ms"], each["end_ms"], each.get("records", each.get("fields", {}).get("sum:v")))
            for each in (*key.windows, *key.panes)
        ]
        for key in found.keys
    }


@pytest.mark.parametrize("operator", [by_column, by_record], ids=["by column", "by record"])
def test_deleted_windows_are_not_shown(operator: Any) -> None:
    """Older segments may still contain them."""
    found = left_by(operator(windows(allowed_lateness_ms=5)), RECORDS, [("c", 24, 16)], [("b", 33, 32)])

    ends = {key: [each[:2] for each in held] for key, held in shown(found).items()}
    assert ends == {"b": [(30, 40)]} | ({"c": [(20, 30)]})
    assert found.watermark_ms == 32


def test_deduplication_shows_what_it_remembers() -> None:
    """Forgotten keys may still be in older segments."""
    config = {"keys": ("user",), "timestamp": "t", "rows": ROWS, "passed": ("v",)}
    operator: Any = Deduplication(within_ms=10, time="event", **config)
    found = left_by(operator, [("a", 1, 1), ("a", 12, 1), ("b", 5, 1)], [("c", 25, 1)], [("a", 40, 1)])

    assert found.keys is not None
    assert {key.key["user"]: key.states["passed_ms"] for key in found.keys} == {"a": [40], "c": [25]}


SIDES: dict[str, Any] = {
    "keys": ("user",), "side": "is_right", "timestamp": "t", "how": "left", "rows": SIDED, "left": {"v": "v"},
    "right": {"w": "v"},
}  # fmt: skip
JOINS: dict[str, tuple[Any, dict[str, dict[str, list[int]]]]] = {
    "interval": (
        IntervalJoin(before_ms=10, after_ms=20, **SIDES),
        {"a": {"left_ms": [15], "right_ms": [16, 24]}, "b": {"right_ms": [25]}},
    ),
    "as of": (AsOfJoin(**SIDES), {"a": {"right_ms": [24]}, "b": {"right_ms": [25]}}),
    "as of within 0": (AsOfJoin(tolerance_ms=0, **SIDES), {"b": {"right_ms": [25]}}),
    "latest": (
        LatestJoin(load=None, ttl_ms=None, **SIDES),
        {"a": {"right_ms": [1]}, "b": {"right_ms": [1]}},
    ),
    "latest waits": (
        LatestJoin(load=99, ttl_ms=1, **SIDES),
        {"a": {"left_ms": [1, 15], "right_ms": [1]}, "b": {"right_ms": [1]}},
    ),
}


@pytest.mark.parametrize("name", JOINS)
def test_join_shows_the_rows_that_may_find_a_partner(name: str) -> None:
    """Rows that have ended, were replaced or written twice may still be in older segments."""
    operator, expected = JOINS[name]
    runtime = replace(runtime_of(operator), rows=SIDED)
    store, channel = MemoryStore(), Channel("in", "0")
    first = [("a", 1, 1, False), ("a", 15, 2, False), ("a", 16, 3, True)]
    for clock, batch in enumerate([first, [("b", 25, 4, True), ("a", 24, 5, True)]]):
        rows = pa.record_batch([list(column) for column in zip(*batch, strict=True)], schema=SIDED)
        control = Packed.of_control(channel, {channel: max(row[1] for row in batch)})
        runtime.step(0, [Packed.of_rows(channel, 0, rows), control], clock, store, StateCache())
    found = inspected(store)

    assert found.keys is not None
    assert {key.key["user"]: key.states for key in found.keys} == expected


FAR = 253_402_300_800_000_000  # year 10000, in microseconds


@pytest.mark.parametrize(
    "stored",
    [
        pa.array([FAR], pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array([b"\xff"]).cast(pa.string(), safe=False),
    ],
    ids=["a time that Python lacks", "a text that is not UTF-8"],
)
def test_stored_values_that_python_cannot_hold_are_read(stored: Any) -> None:
    """The query keeps and emits them: they can be shown, and moved to other key groups."""
    schema = pa.schema([("user", pa.string()), ("t", pa.int64()), ("v", stored.type)])
    operator = Ranking(
        keys=("user",), n=1, order=(("t", True),), newest_first=True, timestamp="t", rows=schema,
        passed={"user": "user", "v": "v"},
    )  # fmt: skip
    written = pa.record_batch([pa.array(["a"]), pa.array([1]), stored], schema=schema)
    group: Any = operator.open()
    store, channel = MemoryStore(), Channel("in", "0")
    group.advance_processing_time(1, StepOutputs())
    group.rows(written, StepOutputs())
    schemas = StoredSchemas(pa.schema([("user", pa.string())]), operator.outputs["results"])
    pieces, header = [group.delta()], json.loads(json.dumps(group.header()))
    (content,) = read_content(operator.layout, header, pieces, schemas)
    runtime = replace(runtime_of(operator), rows=schema)
    runtime.step(0, [Packed.of_rows(channel, 0, written)], 0, store, StateCache())

    (text,) = content.texts()
    assert "'a'" in text
    assert inspected(store).keys is not None


def test_sort_shows_the_records_that_wait() -> None:
    """Records that have left may still be in older segments."""
    operator: Any = Sorting(keys=("user",), timestamp="t", rows=ROWS, passed=("v",))
    found = left_by(operator, [("a", 9, 1), ("a", 30, 2), ("b", 8, 3)], [("a", 29, 4), ("b", 31, 5)])

    assert found.keys is not None
    assert found.watermark_ms == 30
    assert {key.key["user"]: key.states for key in found.keys} == {"b": {"waiting_ms": [31]}}


def test_later_segment_takes_precedence() -> None:
    """This holds for a pane and for a key's sessions."""
    panes = left_by(by_column(windows()), [("a", 1, 1)], [("a", 2, 2), ("b", 3, 5)])
    sessions = left_by(
        by_column(windows(assigner=SessionWindows(5))), [("a", 1, 1)], [("a", 4, 2), ("a", 9, 7)]
    )

    assert shown(panes) == {"a": [(0, 10, 3)], "b": [(0, 10, 5)]}
    assert shown(sessions) == {"a": [(1, 14, 10)]}


@pytest.mark.parametrize("operator", [by_column, by_record], ids=["by column", "by record"])
def test_operator_with_a_flush_buffer_is_shown_without_the_buffer(operator: Any) -> None:
    """The pieces of its state hold those of the buffer too."""
    inner = operator(windows())
    buffer = FlushBuffers(
        config=BufferOutput(interval_ms=60_000), quiet_ms=60_000, keys=("user",),
        timestamp="@timestamp_ms", rows=inner.outputs[RESULTS],
    )  # fmt: skip
    found = left_by(BufferedOperator(operator=inner, buffer=buffer), RECORDS)

    assert {key: [each[:2] for each in held] for key, held in shown(found).items()} == {"b": [(30, 40)]}


def test_unknown_state_layout_is_shown_by_size_only() -> None:
    """A newer version may have written the state."""
    runtime = runtime_of(by_column(windows()))
    store = MemoryStore()
    runtime.step(0, rows(("a", 1, 1)), 0, store, StateCache())

    found = inspected(store, (b"panes of", b"tiles of"))

    assert found.keys is None
    assert found.bytes > 0


def test_state_of_another_version_is_refused() -> None:
    """It is refused as a query would refuse it."""
    store = MemoryStore()
    runtime_of(by_column(windows(assigner=TumblingWindows(10)))).step(
        0, rows(("a", 1, 1)), 0, store, StateCache()
    )

    with pytest.raises(StateError, match="state of version 99"):
        inspected(store, (b'"version":4', b'"version":99'))
