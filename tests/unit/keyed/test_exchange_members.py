"""Several operators with state in one exchange: each has its own records, watermark and state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS, Watermark
from flowcore.keyed.control import Channel, ControlElement
from flowcore.keyed.exchange import Exchange, ExchangeResult
from flowcore.keyed.inspection import inspect_state
from flowcore.keyed.packed import Packed, PackedKind
from flowcore.keyed.packing import InputColumns, Packing, Recipient
from flowcore.keyed.passing import SeenRows
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.state_cache import StateCache
from flowcore.watermarks.progress import WatermarkSource
from flowcore.watermarks.strategies import BoundedOutOfOrderness, WatermarkStrategy
from tests.unit.keyed.test_exchanges import ROWS, MemoryGroup, sums

STRATEGY = WatermarkStrategy(BoundedOutOfOrderness(0))
IDLE = WatermarkStrategy(BoundedOutOfOrderness(0), idle_after_ms=100, all_idle="advance")


def windows(name: str, size_ms: int, *sources: str, strategy: WatermarkStrategy = STRATEGY) -> Runtime:
    known = {source: WatermarkSource(strategy, ("0",)) for source in sources or ("in",)}
    return Runtime(operator=sums(size_ms), query=name, key_groups=1, sources=known, rows=ROWS, name=name)


def records(*times: int, operator: int, source: str = "in") -> list[Packed]:
    rows = pa.RecordBatch.from_pylist([{"user": "a", "t": t, "v": 1} for t in times], schema=ROWS)
    return [Packed.of_rows(Channel(source, "0"), 0, rows, operator)]


def seen(newest_ms: int, source: str = "in") -> Packed:
    channel = Channel(source, "0")
    return Packed.of_control(channel, {channel: newest_ms})


def results(found: ExchangeResult) -> dict[int, list[tuple[int, int]]]:
    """By operator, the ends and the totals of its windows."""
    rows = {number: [rows.to_pylist() for _, rows in step.outputs.batches] for number, step in found.steps}
    return {
        number: [(row["@end_ms"], row["total"]) for each in lists for row in each]
        for number, lists in rows.items()
    }


def run(
    store: MemoryGroup, runtimes: Sequence[Runtime], *items: Packed, processing_time_ms: int = 0
) -> ExchangeResult:
    return Exchange(query="q", runtimes=tuple(runtimes)).step(
        0, items, processing_time_ms, store, StateCache()
    )


def test_operators_come_and_go_and_the_others_keep_their_state() -> None:
    """An operator that is gone leaves nothing in the store, and begins anew if it comes back."""
    store, short, long = MemoryGroup(), windows("short", 10), windows("long", 40)
    third = windows("third", 20)

    run(store, [short, long], *records(5, operator=0), *records(5, operator=1), seen(5))
    run(store, [third, long], *records(6, operator=0), *records(6, operator=1), seen(6))

    assert {name for name, _ in store.kept_segments} == {"third", "long"}
    assert {each.operator for each in inspect_state(store.kept, store.kept_segments)} == {"third", "long"}
    found = run(store, [long, short, third], seen(100))
    assert results(found) == {0: [(40, 2)], 1: [], 2: [(20, 1)]}


def test_an_operator_hears_only_the_channels_that_it_reads() -> None:
    """The watermark of another source neither holds nor moves it; without input for it, it makes no step."""
    store = MemoryGroup()
    one, both = windows("one", 10, "in"), windows("both", 10, "in", "other")
    first = run(store, [one, both], *records(5, operator=0), *records(5, operator=1), seen(20))
    second = run(store, [one, both], seen(20, "other"))

    assert results(first) == {0: [(10, 1)], 1: []}
    assert results(second) == {1: [(10, 1)]}
    strange = Packed.of_control(
        Channel("in", "0"), {Channel("in", "0"): 21}, [ControlElement("up", "0", "", 0, Watermark(99))]
    )
    third = run(store, [one, both], strange)
    assert [step.manifest.sizes()["watermark_ms"] for _, step in third.steps] == [20, 19]


def test_an_exchange_wakes_for_the_operator_that_is_due_first() -> None:
    """At that time the others do nothing; state that is removed does not wake it."""
    store = MemoryGroup()
    calm, restless = windows("calm", 10), windows("restless", 10, strategy=IDLE)
    first = run(store, [calm, restless], *records(5, operator=1), seen(5))
    assert (first.wake_before_ms, first.wake_ms) == (None, 1)

    second = run(store, [calm, restless], processing_time_ms=1)
    assert [number for number, _ in second.steps] == [1]
    assert second.wake_before_ms == 1
    assert second.wake_ms is not None

    third = run(store, [calm], seen(6), processing_time_ms=2)
    assert (third.wake_before_ms, third.wake_ms) == (second.wake_ms, None)


def packing(*recipients: Recipient, **settings: Any) -> Packing:
    inputs = InputColumns(channel="p", offset="o", newest="newest")
    return Packing(inputs=inputs, sources=("in", "up"), key_groups=2, recipients=recipients, **settings)


_TYPES = {"_branch": pa.int32(), "_source": pa.int32(), "p": pa.int32(), "newest": pa.int64()}
PASSED = pa.schema(_TYPES)


def batch(count: int) -> pa.RecordBatch:
    numbers = [*range(count)]
    return pa.record_batch(
        {
            "p": pa.array([3] * count, pa.int32()),
            "o": numbers,
            "newest": pa.array(numbers, pa.int64()),
            "passes": pa.nulls(count, pa.bool_()),
            "to": pa.array([number % 2 for number in numbers], pa.int32()),
            "even": pa.array([0 if number % 2 == 0 else None for number in numbers], pa.int32()),
            "user": ["a"] * count,
            "t": numbers,
            "v": [1] * count,
        }
    )


def test_a_row_goes_to_each_operator_that_reads_it_by_its_own_key() -> None:
    """Operators of one branch share its rows, and may have other columns of them."""
    whole = Recipient(key_group="to", columns=tuple(ROWS.names))
    even = Recipient(key_group="even", columns=("t",))

    packed = [row for part in packing(whole, even).run([batch(5)]) for row in part.to_pylist()]

    items = [(row.pop("key_group"), Packed(**row)) for row in packed]
    schemas = (ROWS, pa.schema([("t", pa.int64())]))
    found = [
        (item.operator, group, item.rows(schemas[item.operator]).column("t").to_pylist())
        for group, item in items
        if item.kind == PackedKind.ROWS
    ]
    assert found == [(0, 0, [0, 2, 4]), (0, 1, [1, 3]), (1, 0, [0, 2, 4])]


def test_what_was_seen_of_a_source_passes_to_a_later_exchange_once() -> None:
    """Rows that a filter has dropped do not pass, but their event time does."""
    later = SeenRows(
        sources=frozenset({"in"}), schema=PASSED, values={"_branch": -3}, columns=("_source", "p", "newest")
    )
    none = Recipient(key_group="even", columns=("t",))

    packed = [row for part in packing(none, later=later).run([batch(5)]) for row in part.to_pylist()]

    (row,) = (row for row in packed if row["kind"] == PackedKind.PASSING)
    assert (row["key_group"], row["at"]) == (1, MAX_TIMESTAMP_MS)
    passed = pa.ipc.read_record_batch(pa.py_buffer(row["payload"]), PASSED).to_pylist()
    assert passed == [{"_branch": -3, "_source": 0, "p": 3, "newest": 4}]
    assert not [
        row for part in packing(none, later=replace(later, sources=frozenset())).run([batch(5)])
        for row in part.to_pylist() if row["kind"] == PackedKind.PASSING
    ]  # fmt: skip
