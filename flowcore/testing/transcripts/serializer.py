"""Transcripts of kind ``serializer``: elements through the Python codecs, values as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, assert_never

from flowcore.elements import (
    EndOfInput,
    LatencyMarker,
    LatencyMarkerEvent,
    Record,
    RecordAttributes,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from flowcore.errors import (
    ConfigurationError,
    ElementError,
    FlowcoreError,
    NoTimestampError,
    OnlyRecordsError,
)
from flowcore.serializers import (
    LatencyMarkerEventSerializer,
    TaggedSerializer,
    ValueOnlyRecord,
    ValueOnlySerializer,
)
from flowcore.testing.transcripts.runner import Kind, Refused

__all__ = ["KIND"]

_OPERATOR = "transcript"


class _AnyJson:
    """Whatever YAML can hold."""

    name = "any-json"
    version = 1
    fingerprint = ""

    def encode(self, value: Any, /) -> bytes:
        return json.dumps(value, ensure_ascii=False).encode()

    def decode(self, data: bytes, /) -> Any:
        return json.loads(data)


_SERIALIZERS: Mapping[str, Callable[..., TaggedSerializer[Any] | ValueOnlySerializer[Any]]] = {
    "tagged": TaggedSerializer,
    "value-only": ValueOnlySerializer,
}


_WORDS: Mapping[type[FlowcoreError], str] = {
    ElementError: "invalid-argument",
    NoTimestampError: "no-timestamp",
    OnlyRecordsError: "only-records",
}


class _Serializer:
    def __init__(self, operator: Mapping[str, Any]) -> None:
        mode = operator.get("mode", "tagged")
        if mode not in _SERIALIZERS:
            msg = f"mode {mode!r} is none of {', '.join(_SERIALIZERS)}: it would not be known what to write"
            raise ConfigurationError(msg)
        self._values = _AnyJson()
        self._serializer = _SERIALIZERS[mode](self._values, _OPERATOR)

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        try:
            return self._act(action, argument)
        except tuple(_WORDS) as error:
            raise Refused(_WORDS[type(error)]) from error

    def _act(self, action: str, argument: Any) -> Mapping[str, Any]:
        match action:
            case "write":
                return self._write(_element(argument))
            case "read_timestamp_of":
                return {"read": self._timestamp_of(Record(*argument))}
            case "through_event":
                return {"read": _through_event(*argument)}
            case "restart":  # a serializer has no state
                return {}
            case _:
                msg = f"a transcript of a serializer has no action {action!r}: it reads and writes; remove it"
                raise ConfigurationError(msg)

    def _write(self, element: StreamElement[Any]) -> Mapping[str, Any]:
        data = self._serializer.encode(element)
        own = len(self._values.encode(element.value)) if isinstance(element, Record) else 0
        return {"overhead_bytes": len(data) - own, "read": _shown(self._serializer.decode(data))}

    def _timestamp_of(self, record: Record[Any]) -> int | None:
        read: Any = self._serializer.decode(self._serializer.encode(record))
        timestamp_ms: int | None = read.timestamp_ms
        return timestamp_ms


def _element(written: Mapping[str, Any]) -> StreamElement[Any]:
    match written:
        case {"record": [value, timestamp_ms]}:
            return Record(value, timestamp_ms)
        case {"watermark": int(timestamp_ms)}:
            return Watermark(timestamp_ms)
        case {"status": ("idle" | "active") as status} | {"watermark_status": ("idle" | "active") as status}:
            return WatermarkStatus(status == "idle")
        case {"latency_marker": [operator_id, subtask, marked_ms]}:
            return LatencyMarker(marked_ms, operator_id, subtask)
        case {"backlog": bool(backlog)}:
            return RecordAttributes(backlog)
        case {"end_of_input": True}:
            return EndOfInput()
        case _:
            msg = f"{written!r} is no stream element: it could not be written; see the transcripts' README"
            raise ConfigurationError(msg)


def _shown(element: StreamElement[Any]) -> dict[str, Any]:
    match element:
        case ValueOnlyRecord():
            return {"record": [element.value, None]}
        case Record():
            return {"record": [element.value, element.timestamp_ms]}
        case Watermark():
            return {"watermark": element.timestamp_ms}
        case WatermarkStatus():
            return {"status": "idle" if element.idle else "active"}
        case LatencyMarker():
            return {"latency_marker": [element.operator_id, element.subtask, element.marked_ms]}
        case RecordAttributes():
            return {"backlog": element.backlog}
        case EndOfInput():
            return {"end_of_input": True}
        case _:
            assert_never(element)


def _through_event(operator_id: str, subtask: int, marked_ms: int) -> list[Any]:
    events = LatencyMarkerEventSerializer()
    event = LatencyMarkerEvent.from_marker(LatencyMarker(marked_ms, operator_id, subtask))
    marker = events.decode(events.encode(event)).to_marker()
    return [marker.operator_id, marker.subtask, marker.marked_ms]


KIND = Kind(
    name="serializer",
    build=_Serializer,
    actions=frozenset({"write", "read_timestamp_of", "through_event", "settings"}),
)
