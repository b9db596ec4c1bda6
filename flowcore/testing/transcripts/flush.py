"""Transcripts of kind ``flush``: a buffer behind an operator, in memory; its clock starts at 0."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flowcore.elements import EndOfInput, Record, StreamElement, Watermark
from flowcore.errors import ConfigurationError
from flowcore.flush import Buffer, BufferOutput
from flowcore.flush.buffer import Released
from flowcore.flush.buffering import Control, control, input_idle, look, record, start
from flowcore.flush.snapshots import restore, snapshot
from flowcore.testing.transcripts.elements import format_element, parse_element
from flowcore.testing.transcripts.runner import Refused, TranscriptKind

__all__ = ["KIND", "flush_config"]

_Row = list[Any]
"""A record's value: key and value of the row."""


class _Flush:
    def __init__(self, operator: Mapping[str, Any]) -> None:
        self._config = flush_config(operator)
        self._buffer: Buffer[str, _Row] = start()
        self._now_ms = 0

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        return {"out": [_shown(element) for element in self._act(action, argument) if not _is_end(element)]}

    def _act(self, action: str, argument: Any) -> Released[_Row]:
        match action:
            case "in":
                return tuple(element for row in argument for element in self._record(*row))
            case "watermark_ms":
                return self._control(Watermark(argument))
            case "watermark_status" | "latency_marker":
                element = parse_element({action: argument})
                assert not isinstance(element, Record)  # noqa: S101 - neither action writes one
                return self._control(element)
            case "processing_time_ms":
                self._now_ms = argument
                return look(self._config, self._buffer, self._now_ms)
            case "input_idle":
                return input_idle(self._config, self._buffer, self._now_ms)
            case "end_of_input":
                return self._control(EndOfInput())
            case "restart":
                self._buffer = restore(json.loads(json.dumps(snapshot(self._buffer))))
                return ()
            case _:
                msg = f"transcripts of flush have no action {action!r}: nothing would be done; remove it"
                raise ConfigurationError(msg)

    def _record(self, key: Any, value: Any, timestamp_ms: int | None = None) -> Released[_Row]:
        # As JSON, 1 and true are two keys, and a list is one.
        written = json.dumps(key, sort_keys=True)
        return record(self._config, self._buffer, written, Record([key, value], timestamp_ms), self._now_ms)

    def _control(self, element: Control) -> Released[_Row]:
        return control(self._config, self._buffer, element, self._now_ms)


def flush_config(operator: Mapping[str, Any]) -> BufferOutput:
    """What the ``operator`` section of a transcript asks for.

    Raises:
        Refused: Building it has to fail.
    """
    try:
        return BufferOutput(
            operator.get("interval_ms"),
            keyed=operator.get("keyed", True),
            memory_buffer_only=operator.get("memory_buffer_only", False),
            max_entries=operator.get("max_entries"),
        )
    except ConfigurationError as error:
        word = "invalid-argument"
        raise Refused(word) from error


def _is_end(element: StreamElement[_Row]) -> bool:
    return isinstance(element, EndOfInput)


def _shown(element: StreamElement[_Row]) -> dict[str, Any]:
    if isinstance(element, Record):
        return {"record": [*element.value, element.timestamp_ms]}
    return format_element(element)


KIND = TranscriptKind(
    name="flush",
    build=_Flush,
    actions=frozenset({"input_idle", "latency_marker", "watermark_status"}),
    in_order=True,
)
