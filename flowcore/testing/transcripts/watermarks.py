"""Transcripts of kind ``watermarks``: a strategy over the partitions of one source, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from flowcore.elements import Watermark, WatermarkStatus
from flowcore.errors import ConfigurationError
from flowcore.testing.transcripts.runner import Refused, TranscriptKind
from flowcore.watermarks.strategies import BoundedOutOfOrderness, Punctuated, WatermarkStrategy
from flowcore.watermarks.tracking import Told, end_of_input, poll, record, start

__all__ = ["KIND"]

_EXPRESSION = "value = marker_value"


class _Watermarks:
    def __init__(self, operator: Mapping[str, Any]) -> None:
        self._operator = operator
        self._strategy = _strategy(operator)
        self._state = start(range(operator.get("partitions", 1)))

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        told: Told = ()
        match action:
            case "in":
                for row in argument:
                    told += self._record(*row)
            case "processing_time_ms":
                self._state, told = poll(self._strategy, self._state, argument)
            case "end_of_input":
                self._state, told = end_of_input(self._state)
            case "restart":  # state is plain data and the rest is made from the configuration
                self._strategy = _strategy(self._operator)
            case _:
                msg = f"transcripts of watermarks have no action {action!r}: nothing would be done; remove it"
                raise ConfigurationError(msg)
        return {"emits": [_shown(element) for element in told], "current_ms": self._state.merged.watermark_ms}

    def _record(self, _key: Any, value: Any, timestamp_ms: int | None, partition: int = 0) -> Told:
        marker = "marker_value" in self._operator["strategy"] and (
            value == self._operator["strategy"]["marker_value"]
        )
        self._state, told = record(self._strategy, self._state, partition, timestamp_ms, marker=marker)
        return told


def _strategy(operator: Mapping[str, Any]) -> WatermarkStrategy:
    generator: BoundedOutOfOrderness | Punctuated
    try:
        match operator["strategy"]:
            case {"kind": "bounded-out-of-orderness", "delay_ms": delay_ms}:
                generator = BoundedOutOfOrderness(delay_ms)
            case {"kind": "monotonous"}:
                generator = BoundedOutOfOrderness(0)
            case {"kind": "punctuated", "marker_value": _}:
                generator = Punctuated(_EXPRESSION)
            case other:
                msg = f"strategy {other!r} is none of the README's: it would not be known what to run"
                raise ValueError(msg)
        return WatermarkStrategy(generator, operator.get("idle_after_ms"))
    except ConfigurationError as error:
        word = "invalid-argument"
        raise Refused(word) from error


def _shown(element: Watermark | WatermarkStatus) -> dict[str, Any]:
    match element:
        case Watermark(timestamp_ms=timestamp_ms):
            return {"watermark": timestamp_ms}
        case WatermarkStatus(idle=idle):
            return {"status": "idle" if idle else "active"}
        case _:
            assert_never(element)


KIND = TranscriptKind(name="watermarks", build=_Watermarks)
