"""Stream elements: records, and the control elements that travel between operators with them.

They are plain values for ``match``; `flowcore.serializers` converts them to bytes. Times are integer
milliseconds since the epoch, UTC, in signed 64 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from flowcore.errors import ElementError

__all__ = [
    "MAX_OPERATOR_ID_BYTES",
    "MAX_SUBTASK",
    "MAX_TIMESTAMP_MS",
    "MIN_TIMESTAMP_MS",
    "EndOfInput",
    "LatencyMarker",
    "LatencyMarkerEvent",
    "Record",
    "RecordAttributes",
    "StreamElement",
    "Watermark",
    "WatermarkStatus",
]

MIN_TIMESTAMP_MS = -(2**63)
MAX_TIMESTAMP_MS = 2**63 - 1
MAX_SUBTASK = 2**31 - 1
MAX_OPERATOR_ID_BYTES = 255

_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Record(Generic[_V]):
    """A value and, if it has one, its event time.

    Raises:
        ElementError: The timestamp does not fit 64 bits.
    """

    value: _V
    timestamp_ms: int | None = None

    def __post_init__(self) -> None:
        if self.timestamp_ms is not None:
            _check_time("Record", "timestamp_ms", self.timestamp_ms)


@dataclass(frozen=True, slots=True)
class Watermark:
    """No more records with a timestamp up to this one are expected.

    Raises:
        ElementError: The timestamp does not fit 64 bits.
    """

    timestamp_ms: int

    def __post_init__(self) -> None:
        _check_time("Watermark", "timestamp_ms", self.timestamp_ms)


@dataclass(frozen=True, slots=True)
class WatermarkStatus:
    """Whether the combined watermark waits for a channel (active) or not (idle).

    Raises:
        ElementError: ``idle`` is not a bool.
    """

    idle: bool

    def __post_init__(self) -> None:
        _check_flag("WatermarkStatus", "idle", self.idle)


@dataclass(frozen=True, slots=True)
class LatencyMarker:
    """A marker that travels with the records, with which a sink measures their latency.

    Args:
        marked_ms: When it was created, by the clock of that machine.
        operator_id: The source that created it, at most 255 bytes of UTF-8.
        subtask: The source's partition, 0 or more.

    Raises:
        ElementError: A value is out of range.
    """

    marked_ms: int
    operator_id: str
    subtask: int

    def __post_init__(self) -> None:
        _check_marker("LatencyMarker", self.marked_ms, self.operator_id, self.subtask)


@dataclass(frozen=True, slots=True)
class RecordAttributes:
    """Attributes of the records that follow: ``backlog`` says that they are backlog, not live.

    Raises:
        ElementError: ``backlog`` is not a bool.
    """

    backlog: bool

    def __post_init__(self) -> None:
        _check_flag("RecordAttributes", "backlog", self.backlog)


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """No element follows."""


StreamElement = Record[_V] | Watermark | WatermarkStatus | LatencyMarker | RecordAttributes | EndOfInput
"""Every element that travels between two operators."""


@dataclass(frozen=True, slots=True)
class LatencyMarkerEvent:
    """A `LatencyMarker` in a companion topic, apart from the records.

    Raises:
        ElementError: A value is out of range.

    >>> LatencyMarkerEvent.from_marker(LatencyMarker(1500, "bids", 0)).to_marker()
    LatencyMarker(marked_ms=1500, operator_id='bids', subtask=0)
    """

    marked_ms: int
    operator_id: str
    subtask: int

    def __post_init__(self) -> None:
        _check_marker("LatencyMarkerEvent", self.marked_ms, self.operator_id, self.subtask)

    @classmethod
    def from_marker(cls, marker: LatencyMarker) -> LatencyMarkerEvent:
        return cls(marker.marked_ms, marker.operator_id, marker.subtask)

    def to_marker(self) -> LatencyMarker:
        return LatencyMarker(self.marked_ms, self.operator_id, self.subtask)


def _check_marker(element: str, marked_ms: int, operator_id: str, subtask: int) -> None:
    _check_time(element, "marked_ms", marked_ms)
    _check_whole(element, "subtask", subtask, 0, MAX_SUBTASK)
    try:
        size = len(operator_id.encode())
    except (UnicodeEncodeError, AttributeError) as error:
        msg = f"{element} operator_id={operator_id!r} cannot be encoded as UTF-8: pass a plain name"
        raise ElementError(msg) from error
    if not size:
        msg = f"{element} operator_id='' is empty: its latency could not be reported; pass a name"
        raise ElementError(msg)
    if size > MAX_OPERATOR_ID_BYTES:
        msg = (
            f"{element} operator_id={operator_id[:40] + '…'!r} has {size} bytes: a marker takes at most "
            f"{MAX_OPERATOR_ID_BYTES}; pass a shorter name"
        )
        raise ElementError(msg)


def _check_time(element: str, name: str, value: object) -> None:
    _check_whole(element, name, value, MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS)


def _check_whole(element: str, name: str, value: object, least: int, most: int) -> None:
    # In Python, a bool is an int.
    if not isinstance(value, int) or isinstance(value, bool):
        msg = f"{element} {name}={value!r} is {type(value).__name__}, not int: pass a whole number"
        raise ElementError(msg)
    if not least <= value <= most:
        msg = f"{element} {name}={value} is out of range: it cannot be written; pass {least} to {most}"
        raise ElementError(msg)


def _check_flag(element: str, name: str, value: object) -> None:
    if not isinstance(value, bool):
        msg = f"{element} {name}={value!r} is {type(value).__name__}, not bool: pass True or False"
        raise ElementError(msg)
