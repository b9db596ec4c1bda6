"""Control rows: what a task's input says of event time, for every key group.

A task sends every key group the same row: which partitions had records, the watermarks and statuses of its
channels with their places among the records, and backlog statuses. All key groups of a step receive equal
rows, so a worker decodes them once for all of its key groups.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS, EndOfInput, StreamElement, Watermark, WatermarkStatus
from flowcore.watermarks.arriving import channel_name
from flowcore.watermarks.merge import ChannelElements

__all__ = ["Channel", "ControlElement", "Place", "StepControl", "decode_control", "encode_control"]

Place = tuple[str, int]
"""The place of a row or element in a step: the task, and the position among its rows and elements."""

_COLUMNS: dict[str, pa.DataType] = {
    "source": pa.string(), "partition": pa.string(), "sender": pa.string(), "at": pa.int64(),
    "time_ms": pa.int64(), "flag": pa.bool_(),
}  # fmt: skip
_ROWS = pa.schema(_COLUMNS)


class Channel(NamedTuple):
    """An input channel.

    Attributes:
        source: The source's name.
        partition: The input partition, or the key group of another operator.
    """

    source: str
    partition: str

    def encode(self) -> str:
        """As text."""
        return json.dumps(self)


class ControlElement(NamedTuple):
    """A control element of a channel.

    Attributes:
        source: The source.
        partition: The partition, or key group of another operator.
        sender: Who sent it, where several write to one partition.
        at: Its place among the rows and elements of its task.
        element: A watermark, a status or the end of input; another element has no event time.
    """

    source: str
    partition: str
    sender: str
    at: int
    element: StreamElement[Any]


@dataclass(frozen=True, slots=True)
class StepControl:
    """The control rows of a step.

    Attributes:
        newest_ms: By source and partition with records, the newest time that counts; None if none does.
        arrivals: By source, the elements of its channels.
        places: For each of these elements, the place up to which rows precede it.
        backlog: Backlog statuses, in order.
        flushed: A buffer of another operator was flushed in this step.
    """

    newest_ms: Mapping[str, Mapping[str, int | None]]
    arrivals: Mapping[str, ChannelElements]
    places: Mapping[str, Sequence[Place]]
    backlog: Sequence[bool]
    flushed: bool


def encode_control(
    newest_ms: Mapping[Channel, int | None],
    elements: Iterable[ControlElement],
    backlog: Iterable[tuple[int, bool]],
    *,
    flushed: bool = False,
) -> bytes:
    """The control row of a task.

    Args:
        newest_ms: By source and partition with records, the newest time that counts.
        elements: The control elements.
        backlog: Backlog statuses, each with its order.
        flushed: A buffer of another operator was flushed.
    """
    rows: list[tuple[str | None, str | None, str | None, int | None, int | None, bool | None]] = [
        (source, partition, None, None, time_ms, None) for (source, partition), time_ms in newest_ms.items()
    ]
    for source, partition, sender, at, element in elements:
        match element:
            case Watermark(timestamp_ms):
                rows.append((source, partition, sender, at, timestamp_ms, None))
            case WatermarkStatus(idle):
                rows.append((source, partition, sender, at, None, idle))
            case EndOfInput():
                rows.append((source, partition, sender, at, MAX_TIMESTAMP_MS, None))
    rows += [(None, None, None, at, None, each) for at, each in backlog]
    rows += [(None, None, None, None, None, None)] if flushed else []
    columns = zip(*rows, strict=True) if rows else ([] for _ in _ROWS)
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, _ROWS, strict=True)]
    return pa.record_batch(arrays, schema=_ROWS).serialize().to_pybytes()


@lru_cache(maxsize=64)
def decode_control(rows: tuple[tuple[str, bytes], ...]) -> StepControl:
    """Decode the control rows of all tasks of a step, each with its task."""
    newest_ms: dict[str, dict[str, int | None]] = {}
    elements: dict[str, list[tuple[Place, str, Watermark | WatermarkStatus]]] = {}
    backlog: list[tuple[int, bool]] = []
    flushed = False
    for task, payload in sorted(rows):
        batch = pa.ipc.read_record_batch(pa.py_buffer(payload), _ROWS)
        for source, partition, sender, at, time_ms, flag in zip(
            *(column.to_pylist() for column in batch.columns), strict=True
        ):
            if source is None and at is None:
                flushed = True
            elif source is None:
                backlog.append((at, flag))
            elif at is None:
                times = newest_ms.setdefault(source, {})
                known = [each for each in (times.get(partition), time_ms) if each is not None]
                times[partition] = max(known, default=None)
            else:
                element = Watermark(time_ms) if flag is None else WatermarkStatus(flag)
                elements.setdefault(source, []).append(((task, at), channel_name(partition, sender), element))
    arrivals, places = {}, {}
    for source, each in elements.items():
        each.sort(key=lambda one: one[0])
        arrivals[source], order = ChannelElements.of((name, element) for _, name, element in each)
        places[source] = [each[number][0] for number in order]
    return StepControl(newest_ms, arrivals, places, [flag for _, flag in sorted(backlog)], flushed)
