"""Control rows: event time and backlog in a task's input, for every key group.

A task sends every key group the same row: which partitions had records, and the control elements of its
channels with their places among the records. All key groups of a step receive equal rows, so a worker decodes
them once for all of its key groups.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from operator import itemgetter
from typing import Any, NamedTuple

from flowcore.channels import channel_name
from flowcore.elements import (
    MAX_TIMESTAMP_MS,
    EndOfInput,
    RecordAttributes,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from flowcore.watermarks.generated import NewestTimes
from flowcore.watermarks.merge import ChannelElements

__all__ = [
    "LOW_BITS", "PARTITION_BITS", "QUERY", "BacklogReport", "Channel", "ChannelOrder", "ControlElement",
    "Place", "StepControl", "channel_order", "decode_control", "encode_control",
]  # fmt: skip

QUERY = ""
"""The source of the query's own backlog status, which precedes all records of a step."""
PARTITION_BITS = 32
"""A channel's number is that of its source before so many bits of its partition or key group."""
LOW_BITS = (1 << PARTITION_BITS) - 1
_BACKLOG, _LIVE = "backlog", "live"
ChannelOrder = tuple[str, int, str]
Place = tuple[ChannelOrder, int]
"""The place of a row or element in a step: the task, by the order of its channel, and the position among its
rows and elements."""


class Channel(NamedTuple):
    """An input channel: a partition of a source, or a key group of another operator."""

    source: str
    partition: str

    def encode(self) -> str:
        """As text."""
        return json.dumps(self)


@lru_cache(maxsize=4096)
def channel_order(channel: str) -> ChannelOrder:
    """What orders a channel, given as text, among others: its source, then the number of its partition.

    `QUERY` precedes all channels, and partitions that are not numbers precede those that are.
    """
    if channel == QUERY:
        return "", -1, ""
    source, partition = json.loads(channel)
    number = int(partition) if partition.isdecimal() else -1
    # As JSON, which is the order of channels as text: a batch that is repeated keeps its order.
    return json.dumps(source), number, partition


class ControlElement(NamedTuple):
    """A control element of a channel.

    Attributes:
        sender: The sender, where several write to one partition.
        at: Its place among the rows and elements of its task.
        element: A watermark, a status, record attributes or the end of input.
    """

    source: str
    partition: str
    sender: str
    at: int
    element: StreamElement[Any]


class BacklogReport(NamedTuple):
    """The backlog status of a channel.

    Attributes:
        place: The place up to which rows precede it.
        source: The source, or `QUERY`.
        backlog: The status; None if the channel has ended.
    """

    place: Place
    source: str
    channel: str
    backlog: bool | None


@dataclass(frozen=True, slots=True)
class StepControl:
    """The control rows of a step.

    Attributes:
        newest: By source, the newest times of its partitions with records.
        arrivals: By source, the watermarks and statuses of its channels.
        places: For each of these elements, the place up to which rows precede it.
        backlog: Backlog statuses, in the order of their places.
        flushed: The operators upstream whose buffer was flushed in this step.
    """

    newest: Mapping[str, NewestTimes]
    arrivals: Mapping[str, ChannelElements]
    places: Mapping[str, Sequence[Place]]
    backlog: Sequence[BacklogReport]
    flushed: frozenset[str]

    def place(self, source: str, number: int) -> Place:
        """The place up to which rows precede an arrival.

        The sources follow each other, so that an arrival may complete what those of the sources before it
        have begun: the rows that precede these precede it too.
        """
        before = takewhile(lambda name: name != source, self.arrivals)
        return max([self.places[source][number], *(self.places[name][-1] for name in before)])

    def of(self, sources: Container[str]) -> StepControl:
        """The part for an operator that reads some sources; the query's backlog is for all operators."""
        known = {*self.newest, *self.arrivals, *self.flushed, *(each.source for each in self.backlog)}
        if all(source in sources for source in known - {QUERY}):
            return self
        newest = {source: each for source, each in self.newest.items() if source in sources}
        arrivals = {source: each for source, each in self.arrivals.items() if source in sources}
        flushed = frozenset(source for source in self.flushed if source in sources)
        backlog = [each for each in self.backlog if each.source == QUERY or each.source in sources]
        return StepControl(newest, arrivals, self.places, backlog, flushed)

    def __bool__(self) -> bool:
        return bool(self.newest or self.arrivals or self.backlog or self.flushed)


def encode_control(
    newest_ms: Mapping[Channel, int | None],
    elements: Iterable[ControlElement],
    flushed: Iterable[str],
) -> bytes:
    """The control row of a task.

    Args:
        newest_ms: By source and partition with records, the newest time that counts.
        flushed: The operators upstream whose buffer was flushed.
    """
    arrived: list[tuple[str, str, int, int | bool | str]] = []
    for source, partition, sender, at, element in elements:
        name = channel_name(partition, sender)
        match element:
            case Watermark(timestamp_ms):
                arrived.append((source, name, at, timestamp_ms))
            case WatermarkStatus(idle):
                arrived.append((source, name, at, idle))
            case EndOfInput():
                arrived.append((source, name, at, MAX_TIMESTAMP_MS))
            case RecordAttributes(backlog):
                arrived.append((source, name, at, _BACKLOG if backlog else _LIVE))
    newest = [(*channel, time_ms) for channel, time_ms in newest_ms.items()]
    return json.dumps([newest, arrived, [*flushed]], separators=(",", ":")).encode()


@lru_cache(maxsize=64)
def decode_control(rows: tuple[tuple[str, bytes], ...]) -> StepControl:
    """Decode the control rows of all tasks of a step, each with its task, in order."""
    times: dict[str, dict[str, int | None]] = {}
    elements: dict[str, list[tuple[Place, str, Watermark | WatermarkStatus]]] = {}
    reports: list[BacklogReport] = []
    flushed: set[str] = set()
    for task, payload in rows:
        newest, arrived, of_task = json.loads(payload)
        flushed.update(of_task)
        for source, partition, time_ms in newest:
            of_source = times.setdefault(source, {})
            known = [each for each in (of_source.get(partition), time_ms) if each is not None]
            of_source[partition] = max(known, default=None)
        for source, name, at, value in arrived:
            place = (channel_order(QUERY if source == QUERY else task), at)
            if isinstance(value, str):
                reports.append(BacklogReport(place, source, name, value == _BACKLOG))
                continue
            if value == MAX_TIMESTAMP_MS:
                reports.append(BacklogReport(place, source, name, None))
            element = WatermarkStatus(value) if isinstance(value, bool) else Watermark(value)
            elements.setdefault(source, []).append((place, name, element))
    arrivals, places = {}, {}
    for source, each in elements.items():
        each.sort(key=itemgetter(0))
        arrivals[source], order = ChannelElements.from_elements((name, element) for _, name, element in each)
        places[source] = [each[number][0] for number in order]
    return StepControl(
        {source: NewestTimes.of(each) for source, each in times.items()},
        arrivals,
        places,
        sorted(reports, key=itemgetter(0)),
        frozenset(flushed),
    )
