"""What a task sends to every key group is bounded, also when a stranger writes to its topic."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flowcore.channels import MOST_SENDERS
from flowcore.elements import StreamElement, Watermark, WatermarkStatus
from flowcore.keyed.control import Channel, StepControl, decode_control
from flowcore.keyed.packed import Packed, PackedKind
from flowcore.keyed.packing import InputColumns, Packing
from flowcore.keyed.task_elements import SenderFiles, count_ignored
from flowcore.serializers import TaggedSerializer
from flowcore.serializers.formats import RawFormat
from flowcore.watermarks.merge import PartitionWatermark
from flowcore.watermarks.progress import WatermarkProgress, WatermarkSource

ELEMENTS: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())
Sent = tuple[str, StreamElement[Any]]


def _control(tmp_path: Path, elements: Iterable[Sent], offset: int) -> tuple[StepControl, int]:
    """What a task of one partition that begins at an offset sends, and its size in bytes."""
    inputs = InputColumns(channel="p", offset="o", element="element", sender="sender")
    senders = SenderFiles(str(tmp_path), frozenset({"bids"}))
    packing = Packing(inputs=inputs, sources=("bids",), key_groups=1, recipients=(), senders=senders)
    ((_, item),) = _packed(packing, elements, offset)
    assert item.kind == PackedKind.CONTROL
    return decode_control(((item.channel, item.payload),)), len(item.payload)


def _packed(packing: Packing, elements: Iterable[Sent], offset: int) -> Iterator[tuple[int, Packed]]:
    given = [*elements]
    batch = pa.record_batch(
        {
            "p": pa.array([3] * len(given), pa.int32()),
            "o": [*range(offset, offset + len(given))],
            "element": [ELEMENTS.encode(element) for _, element in given],
            "sender": [sender for sender, _ in given],
        }
    )
    for part in packing.run([batch.slice(0, 5), batch.slice(5)]):
        for row in part.to_pylist():
            yield row.pop("key_group"), Packed(**row)


def _names(control: StepControl) -> list[str]:
    return [*control.arrivals["bids"].names]


def test_senders_that_came_first_are_heard_in_a_flood(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A task of a later batch continues with them; a task that runs again sends the same."""
    flood = [(f"{'e' * 240}{number}", Watermark(number)) for number in range(10_000)]
    with caplog.at_level(logging.WARNING):
        first, _ = _control(tmp_path, [("a", Watermark(1)), ("b", Watermark(2)), *flood], 0)
        attempts = [
            _control(tmp_path, [*flood, ("b", Watermark(7)), *flood, ("a", Watermark(8))], 10_002)
            for _ in range(2)
        ]

    assert _names(first)[:3] == ["3/a", "3/b", f"3/{flood[0][0]}"]
    assert len(_names(first)) == MOST_SENDERS
    for control, size in attempts:
        assert sorted(_names(control)) == sorted(_names(first))
        assert size < MOST_SENDERS * 600
        heard = control.arrivals["bids"]
        watermarks = dict(zip(heard.names, heard.highest_ms[heard.last].tolist(), strict=True))
        assert (watermarks["3/a"], watermarks["3/b"]) == (8, 7)
    assert count_ignored(tmp_path) == {Channel("bids", "3"): 3 * (10_000 - MOST_SENDERS + 2)}
    (message,) = caplog.messages
    assert message.startswith("bids-3 has more than 64 senders of control elements: those of '3/ee")


def test_sources_that_declare_channels_keep_no_senders(tmp_path: Path) -> None:
    """Their other senders do not arrive here, and declared ones may be many."""
    inputs = InputColumns(channel="p", offset="o", element="element", sender="sender")
    senders = SenderFiles(str(tmp_path), frozenset())
    packing = Packing(inputs=inputs, sources=("bids",), key_groups=1, recipients=(), senders=senders)
    many = [(f"n{number}", Watermark(number)) for number in range(100)]

    ((_, item),) = _packed(packing, many, 0)

    assert len(_names(decode_control(((item.channel, item.payload),)))) == 100
    assert [*tmp_path.iterdir()] == []


def test_too_many_elements_of_a_sender_become_the_last_of_each_kind(tmp_path: Path) -> None:
    """The watermarks that are left out are below the last one, which has its own place."""
    many = [("a", Watermark(number)) for number in range(50_000)]
    end = [("a", WatermarkStatus(idle=True)), ("a", Watermark(3)), ("a", WatermarkStatus(idle=False))]

    control, size = _control(tmp_path, [*many, *end], 0)

    heard = control.arrivals["bids"]
    assert size < 200_000
    assert len(heard.channel) < 5_000
    assert heard.highest_ms[-1] == 49_999
    assert heard.last_status[-1] == 0
    places = [at for _, at in control.places["bids"]]
    assert places[:3] == [0, 1, 2]
    assert places[-2:] == [49_999, 50_002]


@pytest.mark.parametrize("statuses", [1, 3])
@pytest.mark.parametrize("many", [100, 50_000])
def test_an_idle_sender_that_becomes_active_among_too_many_elements_holds_event_time(
    tmp_path: Path, many: int, statuses: int
) -> None:
    """Its records would be late if only its last status arrived, which is idle."""
    active, idle = WatermarkStatus(idle=False), WatermarkStatus(idle=True)
    sent: list[Sent] = [("a", Watermark(1000 + number)) for number in range(many)]
    sent += [
        ("c", active),
        ("c", Watermark(599)),
        *[("c", idle), ("c", active)] * (statuses - 1),
        ("c", idle),
    ]
    control, _ = _control(tmp_path, sent, 0)
    progress = WatermarkProgress({"bids": WatermarkSource(None, ())})
    channels = {"3/a": PartitionWatermark(500), "3/c": PartitionWatermark(500, idle=True)}
    progress._sources["bids"].merged.merge(channels)
    progress.emit()

    (source, number, emitted), *_ = progress.follow(control.arrivals, {})

    assert emitted == (Watermark(599),)
    assert control.place(source, number)[1] == many + 1
