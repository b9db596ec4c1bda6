"""Packing sends records to their key groups, and event time to all of them."""

from __future__ import annotations

import json
from operator import itemgetter
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from flowcore.elements import RecordAttributes, Watermark
from flowcore.keyed.control import QUERY, Channel, ControlElement, StepControl, channel_order, decode_control
from flowcore.keyed.packed import Packed, PackedKind, PackedRows, sort_packed
from flowcore.keyed.packing import BACKLOG_CHANNELS, InputColumns, Packing, Recipient
from flowcore.serializers import TaggedSerializer
from flowcore.serializers.formats import RawFormat

ROWS = pa.schema([pa.field("user", pa.string()), pa.field("t", pa.int64()), pa.field("v", pa.int64())])

TASK = pa.schema(
    {
        "g": pa.int32(), "p": pa.int32(), "o": pa.int64(), "element": pa.binary(),
        "sender": pa.string(), **{field.name: field.type for field in ROWS},
    }
)  # fmt: skip


RECIPIENT = Recipient(key_group="g", columns=tuple(ROWS.names))


def _control(item: Packed) -> StepControl:
    return decode_control(((item.channel, item.payload),))


def _newest(control: StepControl) -> dict[str, int]:
    (newest,) = control.newest.values()
    return dict(zip(newest.partitions, newest.times_ms.tolist(), strict=True))


def test_packing_sends_records_to_their_group_and_time_to_all() -> None:
    """Dropped records carry event time; each part is separate from the rest of its batch."""
    packing = Packing(
        inputs=InputColumns(
            channel="p", offset="o", newest="newest"
        ),
        sources=("in",), key_groups=3, recipients=(RECIPIENT,),
    )  # fmt: skip
    batch = pa.record_batch(
        {
            "g": pa.array([2, 0, 2, None], pa.int32()),
            "p": pa.array([4, 4, 5, 4], pa.int32()),
            "o": [10, 11, 3, 12],
            "newest": [1, 2, 3, 99],
            "user": ["a", "b", "c", "d"],
            "t": [1, 2, 3, 99],
            "v": [1, 2, 3, 4],
        }
    )

    packed = [row for part in packing.run([batch]) for row in part.to_pylist()]

    items = [(row.pop("key_group"), Packed(**row)) for row in packed]
    sent = [
        (group, item.channel, item.rows(ROWS).column("user").to_pylist())
        for group, item in items
        if item.kind == PackedKind.ROWS
    ]
    four = Channel("in", "4").encode()  # which identifies the task
    assert sorted(sent) == [(0, four, ["b"]), (2, four, ["a", "c"])]
    control = {group: _control(item) for group, item in items if item.kind == PackedKind.CONTROL}
    assert sorted(control) == [0, 1, 2]
    assert all(_newest(each) == {"4": 99, "5": 3} for each in control.values())


def test_packing_separates_records_from_backlog_statuses() -> None:
    """The query's status precedes all records; that of a topic has its place among them."""
    packing = Packing(
        inputs=InputColumns(
            channel="p", offset="o", newest="newest", element="element", sender="sender"
        ),
        sources=("in",), key_groups=2, recipients=(RECIPIENT,),
    )  # fmt: skip
    attributes = TaggedSerializer(RawFormat()).encode(RecordAttributes(backlog=True))
    lags, current = BACKLOG_CHANNELS
    batch = pa.record_batch(
        {
            "g": pa.array([None, 1, None, None], pa.int32()),
            "p": pa.array([lags, 4, current, 4]),
            "o": [7, 11, 8, 12],
            "newest": [None, 2, None, None],
            "element": [None, None, None, attributes],
            "sender": [None, None, None, "x"],
            "user": [None, "b", None, None],
            "t": [None, 2, None, None],
            "v": [None, 2, None, None],
        }
    )

    packed = [row for part in packing.run([batch]) for row in part.to_pylist()]

    items = [(row.pop("key_group"), Packed(**row)) for row in packed]
    control = [_control(item) for _, item in items if item.kind == PackedKind.CONTROL]
    four = Channel("in", "4").encode()
    assert [each.backlog for each in control] == [
        [
            ((channel_order(QUERY), 7), QUERY, "", True),
            ((channel_order(QUERY), 8), QUERY, "", False),
            ((channel_order(four), 12), "in", "4/x", True),
        ]
    ] * 2
    rows = [(group, item.at) for group, item in items if item.kind == PackedKind.ROWS_WITH_PLACES]
    assert rows == [(1, 11)]
    assert [_newest(each) for each in control] == [{"4": 2}] * 2


def test_users_function_computes_the_watermark() -> None:
    """It gets the timestamps of one partition's batch."""
    packing = Packing(
        inputs=InputColumns(channel="p", offset="o", newest="t"),
        sources=("in",), key_groups=1, recipients=(RECIPIENT,),
        functions={"in": lambda times: len(times) * 100},
    )  # fmt: skip
    zeros = pa.array([0, 0], pa.int32())
    batch = pa.record_batch(
        {"g": zeros, "p": zeros, "o": [0, 1], "user": ["a", "b"], "t": [1, 2], "v": [1, 1]}
    )

    packed = [row for part in packing.run([batch]) for row in part.to_pylist()]

    items = [Packed(row["kind"], row["channel"], row["at"], row["payload"]) for row in packed]
    control = [_control(item) for item in items if item.kind == PackedKind.CONTROL]
    assert [_newest(each) for each in control] == [{"0": 200}]


def test_partitions_are_processed_in_the_order_of_their_numbers() -> None:
    """Those of a history are in the order of event time, also if there are more than ten of them."""
    channels = [Channel("in", str(partition)) for partition in range(12)]
    elements = [ControlElement("in", "10", "", 1, Watermark(9))]
    control = Packed.of_control(channels[10], elements=elements)
    rows = [
        Packed.of_rows(channel, 0, pa.RecordBatch.from_pylist([{"user": "a", "t": number, "v": 1}], ROWS))
        for number, channel in enumerate(channels)
    ]

    ordered = sort_packed([control, *rows])

    packed, place = PackedRows(ordered, ROWS), _control(control).place("in", 0)
    assert [part["t"].to_pylist() for part in packed.take(place)] == [[number] for number in range(11)]
    assert [part["t"].to_pylist() for part in packed.take()] == [[11]]


@given(st.lists(st.tuples(st.sampled_from(["in", "in 2", "\u00e9", 'i"']), st.integers(0, 9)), max_size=20))
def test_channels_of_up_to_ten_partitions_have_the_order_of_their_texts(found: list[tuple[str, int]]) -> None:
    """A batch that is repeated from an existing checkpoint processes its records in the same order."""
    texts = [Channel(source, str(partition)).encode() for source, partition in found]

    assert sorted([QUERY, *texts], key=channel_order) == sorted([QUERY, *texts])


def test_partitions_without_a_number_have_an_order() -> None:
    """They precede those with one."""
    texts = [Channel("in", partition).encode() for partition in ("10", "b", "", "2", "a")]

    assert [json.loads(text)[1] for text in sorted(texts, key=channel_order)] == ["", "a", "b", "2", "10"]


PARTITIONS = 12
PARTS = st.lists(
    st.tuples(st.integers(0, PARTITIONS - 1), st.one_of(st.sampled_from("abc"), st.just(None))), max_size=40
)


@given(PARTS, st.lists(st.integers(0, 3), min_size=PARTITIONS, max_size=PARTITIONS), st.randoms())
def test_order_does_not_depend_on_which_partitions_share_a_task(
    sent: list[tuple[int, str | None]], task_of: list[int], random: Random
) -> None:
    """Records and control elements of a key group are the same, whatever tasks read their partitions."""
    alone = _processed(sent, [*range(PARTITIONS)])
    random.shuffle(task_of)

    assert _processed(sent, task_of) == alone


@given(PARTS, st.lists(st.integers(0, 2), min_size=40, max_size=40), st.randoms())
def test_order_does_not_depend_on_the_tasks_among_which_a_join_scatters_a_partition(
    sent: list[tuple[int, str | None]], task_of: list[int], random: Random
) -> None:
    """Each record is processed between the same records and control elements of its partition."""
    alone = _processed(sent, [*range(PARTITIONS)])

    for tasks in (task_of, random.sample(task_of, len(task_of))):
        scattered = _processed(sent, tasks, scattered=True)
        assert [_flat(found) for found in scattered] == [_flat(found) for found in alone]


def _flat(found: tuple[Any, ...]) -> tuple[Any, ...]:
    """Places are offsets, or counts, and only their order matters."""
    _, taken, last, newest = found
    return [[row for part in parts for row in part] for parts in [*taken, last]], newest


def _processed(
    sent: list[tuple[int, str | None]], task_of: list[int], *, scattered: bool = False
) -> list[tuple[Any, ...]]:
    """What the two key groups process: records, or watermarks where there is no user, by partition.

    ``task_of`` has the task of each partition, or of each row if these are ``scattered``.
    """
    packing = Packing(
        inputs=InputColumns(
            channel="p", offset="o", newest="t", element="element", sender="sender"
        ),
        sources=("in",), key_groups=2, recipients=(RECIPIENT,), by_channel=True, scattered=scattered,
    )  # fmt: skip
    watermarks = TaggedSerializer(RawFormat())
    items: dict[int, list[Packed]] = {0: [], 1: []}
    for task in {*task_of}:
        rows = [
            {
                "g": None if user is None else ord(user) % 2,
                "p": partition,
                "o": offset,
                "element": watermarks.encode(Watermark(offset)) if user is None else None,
                "sender": "x" if user is None else None,
                "user": user,
                "t": None if user is None else offset,
                "v": offset,
            }
            for offset, (partition, user) in enumerate(sent)
            if task_of[offset if scattered else partition] == task
        ]
        rows.sort(key=itemgetter("p"))  # a task reads one partition after the other
        batch = pa.RecordBatch.from_pylist(rows, schema=TASK)
        for row in (row for part in packing.run([batch] if rows else []) for row in part.to_pylist()):
            items[row.pop("key_group")].append(Packed(**row))
    found = []
    for each in items.values():
        control = decode_control(
            tuple(sorted((item.channel, item.payload) for item in each if item.kind == PackedKind.CONTROL))
        )
        rows = PackedRows(sort_packed(each), ROWS)
        places = control.places.get("in", [])
        taken = [[part.to_pylist() for part in rows.take(place)] for place in places]
        newest = {name: sorted(_newest(control).items()) for name in control.newest}
        last = [part.to_pylist() for part in rows.take()]
        found.append((places, taken, last, newest))
    return found
