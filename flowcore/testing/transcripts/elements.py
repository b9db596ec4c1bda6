"""Stream elements as in transcripts: ``{record: [v, ts]}``, ``{watermark: t}``, ``{status: idle}``."""

from collections.abc import Mapping
from typing import Any, assert_never

from flowcore import elements
from flowcore.errors import ConfigurationError
from flowcore.serializers import ValueOnlyRecord

__all__ = ["format_element", "parse_element"]


def parse_element(written: Mapping[str, Any]) -> elements.StreamElement[Any]:
    """Read an element.

    Raises:
        ConfigurationError: ``written`` is not a stream element.
    """
    match written:
        case {"record": [value, timestamp_ms]}:
            return elements.Record(value, timestamp_ms)
        case {"watermark": int(timestamp_ms)}:
            return elements.Watermark(timestamp_ms)
        case {"status": ("idle" | "active") as status} | {"watermark_status": ("idle" | "active") as status}:
            return elements.WatermarkStatus(status == "idle")
        case {"latency_marker": [operator_id, subtask, marked_ms]}:
            return elements.LatencyMarker(marked_ms, operator_id, subtask)
        case {"backlog": bool(backlog)}:
            return elements.RecordAttributes(backlog)
        case {"end_of_input": True}:
            return elements.EndOfInput()
        case _:
            msg = f"{written!r} is not a stream element: it could not be written; see the transcripts' README"
            raise ConfigurationError(msg)


def format_element(element: elements.StreamElement[Any]) -> dict[str, Any]:
    """Write an element."""
    match element:
        case ValueOnlyRecord():
            return {"record": [element.value, None]}
        case elements.Record():
            return {"record": [element.value, element.timestamp_ms]}
        case elements.Watermark():
            return {"watermark": element.timestamp_ms}
        case elements.WatermarkStatus():
            return {"status": "idle" if element.idle else "active"}
        case elements.LatencyMarker():
            return {"latency_marker": [element.operator_id, element.subtask, element.marked_ms]}
        case elements.RecordAttributes():
            return {"backlog": element.backlog}
        case elements.EndOfInput():
            return {"end_of_input": True}
        case _:
            assert_never(element)
