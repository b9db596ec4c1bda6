"""Runner of transcripts of kind ``watermarks``: a strategy over the partitions of one source, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowcore.errors import ConfigurationError
from flowcore.testing.transcripts.elements import format_element
from flowcore.testing.transcripts.runner import fail_unknown, refusing
from flowcore.watermarks.strategies import BoundedOutOfOrderness, Punctuated, WatermarkStrategy
from flowcore.watermarks.tracking import Emitted, add_record, end_of_input, poll, start_tracking

__all__ = ["WatermarkRunner"]

_EXPRESSION = "value = marker_value"


class WatermarkRunner:
    def __init__(self, operator: Mapping[str, Any]) -> None:
        self._operator = operator
        self._strategy = _build_strategy(operator)
        self._state = start_tracking(range(operator.get("partitions", 1)))

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        emitted: Emitted = ()
        match action:
            case "in":
                for row in argument:
                    emitted += self._record(*row)
            case "processing_time_ms":
                self._state, emitted = poll(self._strategy, self._state, argument)
            case "end_of_input":
                self._state, emitted = end_of_input(self._state)
            case "restart":  # the state is plain data, all else is made of the configuration
                self._strategy = _build_strategy(self._operator)
            case _:
                fail_unknown("watermarks", action)
        return {
            "emits": [format_element(element) for element in emitted],
            "current_ms": self._state.merged.watermark_ms,
        }

    def _record(self, _key: Any, value: Any, timestamp_ms: int | None, partition: int = 0) -> Emitted:
        marker = "marker_value" in self._operator["strategy"] and (
            value == self._operator["strategy"]["marker_value"]
        )
        self._state, emitted = add_record(self._strategy, self._state, partition, timestamp_ms, marker=marker)
        return emitted


def _build_strategy(operator: Mapping[str, Any]) -> WatermarkStrategy:
    generator: BoundedOutOfOrderness | Punctuated
    with refusing(ConfigurationError):
        match operator["strategy"]:
            case {"kind": "bounded-out-of-orderness", "delay_ms": delay_ms}:
                generator = BoundedOutOfOrderness(delay_ms)
            case {"kind": "monotonous"}:
                generator = BoundedOutOfOrderness(0)
            case {"kind": "punctuated", "marker_value": _}:
                generator = Punctuated(_EXPRESSION)
            case other:
                msg = f"strategy {other!r} is not in the README: nothing could be run; use one that is"
                raise ValueError(msg)
        return WatermarkStrategy(generator, operator.get("idle_after_ms"))
