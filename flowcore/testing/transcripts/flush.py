"""Runner of transcripts of kind ``flush``: a flush buffer in memory; the clock starts at 0."""

import json
from collections.abc import Mapping
from typing import Any

from flowcore.elements import EndOfInput, Record, StreamElement, Watermark
from flowcore.errors import ConfigurationError
from flowcore.flush import BufferOutput
from flowcore.testing.record_buffer import BufferControl, RecordBuffer, Released
from flowcore.testing.transcripts.elements import format_element, parse_element
from flowcore.testing.transcripts.runner import fail_unknown, refusing

__all__ = ["FlushRunner", "flush_config"]

_Row = list[Any]
"""Key and value of a row, which are the value of its record."""


class FlushRunner:
    def __init__(self, operator: Mapping[str, Any]) -> None:
        self._buffer: RecordBuffer[str, _Row] = RecordBuffer(flush_config(operator))
        self._now_ms = 0

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        out = self._act(action, argument)
        return {"out": [_format(element) for element in out if not isinstance(element, EndOfInput)]}

    def _act(self, action: str, argument: Any) -> Released[_Row]:
        match action:
            case "in":
                return tuple(element for row in argument for element in self._record(*row))
            case "watermark_ms":
                return self._control(Watermark(argument))
            case "watermark_status" | "latency_marker":
                element = parse_element({action: argument})
                assert not isinstance(element, Record)  # noqa: S101 - neither action gives one
                return self._control(element)
            case "processing_time_ms":
                self._now_ms = argument
                return self._buffer.poll(self._now_ms)
            case "input_idle":
                return self._buffer.input_idle(self._now_ms)
            case "end_of_input":
                return self._control(EndOfInput())
            case "restart":
                self._buffer.restore(json.loads(json.dumps(self._buffer.snapshot())))
                return ()
            case _:
                return fail_unknown("flush", action)

    def _record(self, key: Any, value: Any, timestamp_ms: int | None = None) -> Released[_Row]:
        # In JSON, 1 and true are two keys, and a list is a key.
        written = json.dumps(key, sort_keys=True)
        return self._buffer.record(written, Record([key, value], timestamp_ms), self._now_ms)

    def _control(self, element: BufferControl) -> Released[_Row]:
        return self._buffer.control(element, self._now_ms)


def flush_config(operator: Mapping[str, Any]) -> BufferOutput:
    """The configuration in the ``operator`` section of a transcript.

    Raises:
        Refused: It is not valid.
    """
    with refusing(ConfigurationError):
        return BufferOutput(
            operator.get("interval_ms"),
            keyed=operator.get("keyed", True),
            memory_buffer_only=operator.get("memory_buffer_only", False),
            max_entries=operator.get("max_entries"),
        )


def _format(element: StreamElement[_Row]) -> dict[str, Any]:
    if isinstance(element, Record):
        return {"record": [*element.value, element.timestamp_ms]}
    return format_element(element)
