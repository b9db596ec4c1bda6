"""Runner of transcripts of kind ``serializer``: elements through the Python serializers, values as JSON."""

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from flowcore import errors
from flowcore.elements import LatencyMarker, LatencyMarkerEvent, Record, StreamElement
from flowcore.planner.rules.timestamps import uses_timestamps
from flowcore.serializers import LatencyMarkerEventSerializer, TaggedSerializer, ValueOnlySerializer
from flowcore.settings import Settings
from flowcore.testing.transcripts.elements import format_element, parse_element
from flowcore.testing.transcripts.runner import Refused
from flowcore.watermarks import WatermarkStrategy, monotonous

__all__ = ["SerializerRunner", "choose_serialization"]

_OPERATOR = "transcript"


class _AnyJson:
    """A format for all values of YAML."""

    name = "any-json"

    def encode(self, value: Any, /) -> bytes:
        return json.dumps(value, ensure_ascii=False).encode()

    def decode(self, data: bytes, /) -> Any:
        return json.loads(data)


_SERIALIZERS: Mapping[str, Callable[..., TaggedSerializer[Any] | ValueOnlySerializer[Any]]] = {
    "tagged": TaggedSerializer,
    "value-only": ValueOnlySerializer,
}
_NO_STRATEGY = (None, False, "none", "no_watermarks", "no-watermarks")
_WORDS: Mapping[type[errors.FlowcoreError], str] = {
    errors.ElementError: "invalid-argument",
    errors.NoTimestampError: "no-timestamp",
    errors.OnlyRecordsError: "only-records",
}


class SerializerRunner:
    def __init__(self, operator: Mapping[str, Any]) -> None:
        mode = operator.get("mode", "tagged")
        if mode not in _SERIALIZERS:
            msg = f"mode {mode!r} is none of {', '.join(_SERIALIZERS)}: nothing could be written; use one"
            raise errors.ConfigurationError(msg)
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
                return self._write(parse_element(argument))
            case "read_timestamp_of":
                return {"read": self._timestamp_of(Record(*argument))}
            case "through_event":
                return {"read": _send_event(*argument)}
            case "restart":  # a serializer has no state
                return {}
            case "settings":
                return {"mode": choose_serialization(argument)}
            case _:
                msg = f"a transcript of a serializer has no action {action!r}: it reads and writes; remove it"
                raise errors.ConfigurationError(msg)

    def _write(self, element: StreamElement[Any]) -> Mapping[str, Any]:
        data = self._serializer.encode(element)
        own = len(self._values.encode(element.value)) if isinstance(element, Record) else 0
        return {"overhead_bytes": len(data) - own, "read": format_element(self._serializer.decode(data))}

    def _timestamp_of(self, record: Record[Any]) -> int | None:
        read: Any = self._serializer.decode(self._serializer.encode(record))
        timestamp_ms: int | None = read.timestamp_ms
        return timestamp_ms


def choose_serialization(written: Mapping[str, Any]) -> str:
    """The mode of a job with these settings and watermark strategies; times are in milliseconds."""
    settings: dict[str, Any] = {}
    strategies: list[WatermarkStrategy | None] = []
    for key, value in written.items():
        if "strateg" in key:
            kind = value.get("kind") if isinstance(value, Mapping) else value
            strategies.append(None if kind in _NO_STRATEGY else monotonous())
        else:
            is_ms = isinstance(value, int) and not isinstance(value, bool)
            settings[key] = timedelta(milliseconds=value) if is_ms else value
    return "tagged" if uses_timestamps(Settings.of(settings, environment={}), strategies) else "value-only"


def _send_event(operator_id: str, subtask: int, marked_ms: int) -> list[Any]:
    events = LatencyMarkerEventSerializer()
    event = LatencyMarkerEvent.from_marker(LatencyMarker(marked_ms, operator_id, subtask))
    marker = events.decode(events.encode(event)).to_marker()
    return [marker.operator_id, marker.subtask, marker.marked_ms]
