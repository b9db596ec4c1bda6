"""Two operators with state, one downstream of the other: what the first emits is the input of the second."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.elements import RecordAttributes, Watermark, WatermarkStatus
from flowcore.keyed.control import QUERY, Channel, ControlElement, decode_control
from flowcore.keyed.exchange import Exchange
from flowcore.keyed.operator import CONTROL, CONTROL_ROWS, StepOutputs
from flowcore.keyed.output_columns import RESULTS, TIMESTAMP
from flowcore.keyed.packed import Packed, PackedKind, PackedRows, sort_packed
from flowcore.keyed.packing import InputColumns, Packing, Recipient
from flowcore.keyed.passing import PassingRows
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.state_cache import StateCache
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.spark.operators.unpacking import Outlet, Unpacking
from flowcore.testing.memory_store import MemoryStore
from flowcore.watermarks.progress import WatermarkSource
from flowcore.watermarks.strategies import BoundedOutOfOrderness, WatermarkStrategy
from flowcore.windows import TumblingWindows, WindowAggregate, WindowConfig
from flowcore.windows.built_in import BuiltIn, BuiltIns
from flowcore.windows.columnar.keyed import ColumnarWindows
from tests.unit.keyed.stored_group import read_state

ROWS = pa.schema([pa.field("user", pa.string()), pa.field("t", pa.int64()), pa.field("v", pa.int64())])
GROUPS = 2
_ELEMENTS: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())
Step = Sequence[tuple[int, Sequence[tuple[str, int]]]]
"""For partitions, the users and times of the records that a batch has of it."""


class MemoryGroup:
    """The stored state of a key group in memory."""

    def __init__(self) -> None:
        self.kept: bytes | None = None
        self.kept_segments: dict[tuple[str, int], bytes] = {}

    def manifests(self) -> bytes | None:
        return self.kept

    def put_manifests(self, manifests: bytes, /) -> None:
        self.kept = manifests

    def segment(self, operator: str, number: int, /) -> bytes | None:
        return self.kept_segments.get((operator, number))

    def put_segment(self, operator: str, number: int, content: bytes, /) -> None:
        self.kept_segments[operator, number] = content

    def remove_segment(self, operator: str, number: int, /) -> None:
        self.kept_segments.pop((operator, number), None)


def sums(size_ms: int) -> ColumnarWindows:
    function = WindowAggregate(BuiltIns((("total", BuiltIn("sum", ("v",))),)))
    config = WindowConfig(assigner=TumblingWindows(size_ms), function=function)
    return ColumnarWindows(config=config, keys=("user",), timestamp="t", rows=ROWS)


def group_of(user: str, shift: int = 0) -> int:
    return (ord(user) + shift) % GROUPS


@dataclass
class Chain:
    """Windows of 10 ms over two partitions, then windows of 20 ms over their results, in two key groups each.

    Attributes:
        strategy: The watermarks of the source.
    """

    strategy: WatermarkStrategy = field(default_factory=lambda: WatermarkStrategy(BoundedOutOfOrderness(0)))

    def __post_init__(self) -> None:
        sources = {"in": WatermarkSource(self.strategy, ("0", "1"))}
        self.first = Runtime(
            operator=sums(10),
            query="first",
            key_groups=GROUPS,
            sources=sources,
            rows=ROWS,
            emits_control=True,
        )
        channels = WatermarkSource(None, tuple(map(str, range(GROUPS))))
        self.second = Runtime(
            operator=sums(20), query="second", key_groups=GROUPS, sources={"first": channels}, rows=ROWS
        )
        self.stores = [[MemoryStore() for _ in range(GROUPS)] for _ in range(2)]
        self.watermarks_ms: list[int] = []

    def step(
        self, batch: Step, processing_time_ms: int = 0, *, attributes: Iterable[bool] = ()
    ) -> list[tuple[str, int, int]]:
        """Run a batch; the user, the last ms and the total of each result of the second windows."""
        items: list[list[Packed]] = [[] for _ in range(GROUPS)]
        for partition, records in batch:
            channel = Channel("in", str(partition))
            for number in range(GROUPS):
                mine = [(user, t, 1) for user, t in records if group_of(user) == number]
                items[number] += [Packed.of_rows(channel, 0, pa.RecordBatch.from_pylist(
                    [dict(zip(ROWS.names, each, strict=True)) for each in mine], schema=ROWS
                ))] if mine else []  # fmt: skip
                items[number].append(Packed.of_control(channel, {channel: max(t for _, t in records)}))
        for number in range(GROUPS):
            statuses = [
                ControlElement(QUERY, "", "", at, RecordAttributes(backlog))
                for at, backlog in enumerate(attributes)
            ]
            items[number].append(Packed.of_control(Channel("in", "0"), elements=statuses))
        packed = [
            (output, content.serialize().to_pybytes(), number)
            for number in range(GROUPS)
            for output, content in self._run(self.first, 0, number, items[number], processing_time_ms).batches
        ]
        results = []
        for number, inputs in self._exchange(packed).items():
            if inputs:
                for output, rows in self._run(self.second, 1, number, inputs, processing_time_ms).batches:
                    assert output == RESULTS
                    results += [(row["user"], row[TIMESTAMP], row["total"]) for row in rows.to_pylist()]
        return sorted(results)

    def _run(
        self, runtime: Runtime, place: int, number: int, items: list[Packed], processing_time_ms: int
    ) -> StepOutputs:
        stepped = runtime.step(number, items, processing_time_ms, self.stores[place][number], StateCache())
        self.watermarks_ms.append(stepped.manifest.sizes()["watermark_ms"])
        return stepped.outputs

    def _exchange(self, packed: list[tuple[str, bytes, int]]) -> dict[int, list[Packed]]:
        """Unpack the outputs of the first operator as one task, and pack them for the second."""
        schema = pa.schema(
            [("_branch", pa.int32()), ("_group", pa.int32()), ("_position", pa.int64()), *ROWS, *CONTROL_ROWS]
        )
        outlets = {
            (0, RESULTS): Outlet(
                schema=self.first.operator.outputs[RESULTS],
                columns={"user": "user", "t": TIMESTAMP, "v": "total"},
                constants={"_branch": 1},
                placed=True,
            ),
            (0, CONTROL): Outlet(
                schema=CONTROL_ROWS, columns={"element": "element"}, constants={"_branch": -2}, placed=True
            ),
        }
        unpacking = Unpacking(outlets=outlets, schema=schema, key_group="_group", position="_position")
        columns = [list(column) for column in zip(*packed, strict=True)] or [[], [], []]
        outputs = pa.record_batch(
            [
                pa.array(columns[0], pa.string()),
                pa.array(columns[1], pa.binary()),
                pa.array(columns[2], pa.int32()),
                pa.array([0] * len(columns[2]), pa.int32()),
            ],
            ["output", "content", "key_group", "operator"],
        )
        return unpack_and_pack(unpacking.run([outputs]))


def unpack_and_pack(batches: Iterable[pa.RecordBatch]) -> dict[int, list[Packed]]:
    inputs = InputColumns(
        channel="_group", offset="_position", element="element"
    )  # fmt: skip
    recipient = Recipient(key_group="to", columns=tuple(ROWS.names))
    packing = Packing(
        inputs=inputs, sources=("first",), key_groups=GROUPS, recipients=(recipient,),
        upstream=frozenset({"first"}),
    )  # fmt: skip
    found: dict[int, list[Packed]] = {number: [] for number in range(GROUPS)}
    for packed in packing.run(map(_with_targets, batches)):
        for row in packed.to_pylist():
            found[row.pop("key_group")].append(Packed(**row))
    return found


def _with_targets(batch: pa.RecordBatch) -> pa.RecordBatch:
    rows = batch.select(["user", "_branch"]).to_pylist()
    to = [group_of(row["user"], 1) if row["_branch"] == 1 else None for row in rows]
    columns = [*batch.columns, pa.array(to, pa.int32())]
    return pa.record_batch(columns, [*batch.schema.names, "to"])


def test_second_windows_close_by_the_watermark_of_all_key_groups_of_the_first() -> None:
    """Results leave in the batch that completes both windows."""
    chain = Chain()

    assert chain.step([(0, [("a", 5), ("b", 12), ("a", 19)])]) == []
    assert chain.step([(1, [("a", 3), ("b", 25)])]) == []
    assert chain.step([(0, [("b", 30)]), (1, [("a", 40)])]) == [("a", 19, 3), ("b", 19, 1)]


def test_records_precede_the_watermark_that_released_them() -> None:
    """A window result has the last ms of its window, and the watermark that follows it is not below that."""
    chain = Chain()
    rows = pa.RecordBatch.from_pylist([{"user": "a", "t": 5, "v": 1}], schema=ROWS)
    items = [
        Packed.of_rows(Channel("in", "0"), 0, rows),
        Packed.of_control(Channel("in", "0"), {Channel("in", "0"): 30}),
        Packed.of_control(Channel("in", "1"), {Channel("in", "1"): 30}),
    ]

    out = chain.first.step(0, items, 0, MemoryStore(), StateCache()).outputs

    assert [output for output, _ in out.batches] == [RESULTS, CONTROL]
    (element,) = out.batches[1][1].column("element").to_pylist()
    assert _ELEMENTS.decode(element) == Watermark(29)


def test_idleness_and_backlog_status_reach_the_second_operator() -> None:
    """An idle source's status changes are emitted, and the backlog status before all rows."""
    chain = Chain(WatermarkStrategy(BoundedOutOfOrderness(0), idle_after_ms=100))
    chain.step([(0, [("a", 5)]), (1, [("b", 5)])], attributes=[True])
    chain.step([], processing_time_ms=50)
    outs = [chain.first.step(0, [], clock, chain.stores[0][0], StateCache()).outputs for clock in (100, 1000)]

    elements = [
        _ELEMENTS.decode(row["element"])
        for out in outs
        for _, rows in out.batches
        for row in rows.to_pylist()
    ]
    assert elements == [WatermarkStatus(idle=True)]
    manifests = [read_state(chain.second, store)[0] for store in chain.stores[1]]
    assert [manifest.sizes()["backlog"] for manifest in manifests] == [1, 1]


def test_channels_that_become_active_together_hold_the_watermark_together() -> None:
    """After idleness, the first channel's watermark does not make the records of the others late."""
    chain = Chain(WatermarkStrategy(BoundedOutOfOrderness(0), idle_after_ms=100))
    chain.step([(0, [("a", 5), ("b", 5)]), (1, [("a", 5)])])
    for processing_time_ms in (1, 1000):
        assert chain.step([], processing_time_ms=processing_time_ms) == []

    found = chain.step([(0, [("a", 15), ("b", 15), ("b", 40)]), (1, [("a", 40)])], processing_time_ms=1001)

    assert found == [("a", 19, 3), ("b", 19, 2)]


def test_control_elements_of_many_channels_are_one_row_for_each_key_group() -> None:
    """Python functions may emit the records of a batch before its control elements: positions decide."""
    channels = 50
    schema = pa.schema([*ROWS, *CONTROL_ROWS])
    records = [{"user": "a", "t": 1, "v": number} for number in range(channels)] * 2
    controls = [{"element": _ELEMENTS.encode(Watermark(number))} for number in range(channels)]
    batch = pa.RecordBatch.from_pylist([*records, *controls], schema=schema)
    added = {
        "_group": pa.array([*range(channels)] * 3, pa.int32()),
        "_position": pa.array([0] * channels + [2] * channels + [1] * channels, pa.int64()),
        "_branch": pa.array([1] * 2 * channels + [-2] * channels, pa.int32()),
    }
    batch = pa.record_batch([*batch.columns, *added.values()], [*schema.names, *added])

    found = unpack_and_pack([batch])

    for number, items in found.items():
        control, *others = sort_packed(items)
        assert control.kind == PackedKind.CONTROL
        decoded = decode_control(((control.channel, control.payload),))
        assert decoded.arrivals["first"].watermark_ms.tolist() == [*range(channels)]
        if number != group_of("a", 1):
            assert others == []
            continue
        assert [item.kind for item in others] == [PackedKind.ROWS_WITH_PLACES]
        records = PackedRows(others, ROWS)
        taken = [
            [row for part in records.take(place) for row in part.column("v").to_pylist()]
            for place in decoded.places["first"]
        ]
        assert taken == [[0], *([each, each + 1] for each in range(channels - 1))]
        assert [part.column("v").to_pylist() for part in records.take()] == [[channels - 1]]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from("abc"), st.integers(0, 6)), max_size=40),
    st.lists(st.integers(1, 6), min_size=40, max_size=40),
)
def test_results_do_not_depend_on_batches(records: list[tuple[int, str, int]], sizes: list[int]) -> None:
    """Each partition is in order of time; whatever the batches, each result is that of a plain count."""
    times = [0, 0]
    stream = []
    for partition, user, later in records:
        times[partition] += later
        stream.append((partition, user, times[partition]))
    expected = Counter((user, t - t % 20 + 19) for _, user, t in stream)
    chain = Chain()
    found: list[tuple[str, int, int]] = []
    rest = [*stream]
    for size in sizes:
        part, rest = rest[:size], rest[size:]
        batch = [
            (number, [(user, t) for partition, user, t in part if partition == number]) for number in range(2)
        ]
        found += chain.step([each for each in batch if each[1]])
    found += chain.step([(0, [("z", 1000)]), (1, [("z", 1000)])])

    assert sorted(found) == sorted((user, last, total) for (user, last), total in expected.items())


@pytest.mark.parametrize("own", [("x", "kind", "value"), ("value",)], ids=["columns", "text"])
def test_rows_that_pass_are_emitted_as_they_came_and_in_their_order(own: tuple[str, ...]) -> None:
    """They are not records of the operator, and are not opened."""
    other = pa.schema([("x", pa.int64()), ("kind", pa.string()), ("value", pa.binary())])
    passed = [
        [None, {"x": x, "kind": "bad", "value": b"\xff"}, None, {"x": x + 1, "kind": "late", "value": None}]
        for x in (7, 17)
    ]
    inputs = InputColumns(channel="p", offset="o", newest="newest")
    packing = Packing(
        inputs=inputs,
        sources=("in",),
        key_groups=GROUPS,
        recipients=(Recipient(key_group="g", columns=tuple(ROWS.names)),),
        passing=PassingRows(schema=other, passes="passes", names={name: f"p{name}" for name in own}),
    )

    def batch(first: int, rows: list[dict[str, Any] | None]) -> pa.RecordBatch:
        found: dict[str, Any] = {
            "g": pa.array([0, None, 1, None], pa.int32()),
            "p": pa.array([1] * 4, pa.int32()),
            "o": [*range(first, first + 4)],
            "newest": [1, None, 3, None],
            "passes": [row and _as_spark_writes(row, own) for row in rows],
            "user": ["a", None, "b", None],
            "t": [1, None, 3, None],
            "v": [1, None, 1, None],
        }
        for name in own:
            found[f"p{name}"] = pa.array([row and row[name] for row in rows], other.field(name).type)
        return pa.record_batch(found)

    items: list[list[Packed]] = [[], []]
    for each in (batch(5, passed[1]), batch(1, passed[0])):  # of two tasks
        for part in packing.run([each]):
            for row in part.to_pylist():
                items[row.pop("key_group")].append(Packed(**row))

    exchange = Exchange(query="q", runtimes=(Chain().first,))
    outs = [exchange.step(0, each, 0, MemoryGroup(), StateCache()) for each in items]
    assert list(outs[0].passing) == []
    rows = [pa.ipc.read_record_batch(pa.py_buffer(content), other) for content in outs[1].passing]
    assert [row for each in rows for row in each.to_pylist()] == [
        row for each in passed for row in each if row
    ]


def _as_spark_writes(row: Mapping[str, Any], besides: Collection[str]) -> str:
    """The text of ``to_json``, which leaves nulls out."""
    return json.dumps({name: each for name, each in row.items() if each is not None and name not in besides})


def test_records_without_a_channel_are_packed_and_carry_no_event_time() -> None:
    """It is unknown which records a row of `map_batches` was made from."""
    batch = pa.record_batch(
        {
            "g": pa.array([1, 0, 1], pa.int32()),
            "p": pa.array([None, 3, None], pa.int32()),
            "o": pa.array([None, 7, 8], pa.int64()),
            "newest": pa.array([None, 9, None], pa.int64()),
            "user": ["a", "b", "c"],
            "t": pa.array([None, 9, None], pa.int64()),
            "v": [1, 2, 3],
        }
    )
    packing = Packing(
        inputs=InputColumns(channel="p", offset="o", newest="newest"),
        sources=("in",),
        key_groups=GROUPS,
        recipients=(Recipient(key_group="g", columns=tuple(ROWS.names)),),
    )

    packed = [row for part in packing.run([batch]) for row in part.to_pylist()]

    items = [(row.pop("key_group"), Packed(**row)) for row in packed]
    records = [
        (group, item.rows(ROWS).column("user").to_pylist())
        for group, item in items
        if item.kind == PackedKind.ROWS
    ]
    assert records == [(0, ["b"]), (1, ["a", "c"])]
    (control, _) = (item for _, item in items if item.kind == PackedKind.CONTROL)
    newest = decode_control(((control.channel, control.payload),)).newest
    assert {source: each.partitions for source, each in newest.items()} == {"in": ("3",)}
