"""Stream elements as in transcripts: ``{record: [v, ts]}``, ``{watermark: t}``, ``{status: idle}``."""

from collections.abc import Mapping
from typing import Any, assert_never

from flowcore.elements import (
    EndOfInput,
    LatencyMarker,
    Record,
    RecordAttributes,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from flowcore.errors import ConfigurationError
from flowcore.serializers import ValueOnlyRecord

__all__ = ["format_element", "parse_element"]


def parse_element(written: Mapping[str, Any]) -> StreamElement[Any]:
    """Read an element.

    Raises:
        ConfigurationError: It is not a stream element.
    """
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
            msg = f"{written!r} is not a stream element: it could not be written; see the transcripts' README"
            raise ConfigurationError(msg)


def format_element(element: StreamElement[Any]) -> dict[str, Any]:
    """Write an element."""
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
