"""Runner of transcripts of kind ``watermarks``: a strategy over the partitions of one source, in memory."""

import json
from collections.abc import Mapping
from typing import Any

from flowcore.elements import MAX_TIMESTAMP_MS, Watermark
from flowcore.errors import ConfigurationError
from flowcore.testing.transcripts.elements import format_element
from flowcore.testing.transcripts.runner import fail_unknown, refusing
from flowcore.watermarks.generated import NewestTimes
from flowcore.watermarks.merge import ChannelElements, Emitted
from flowcore.watermarks.progress import WatermarkProgress, WatermarkSource
from flowcore.watermarks.strategies import BoundedOutOfOrderness, Punctuated, WatermarkStrategy

__all__ = ["WatermarkRunner", "watermark_strategy"]

_SOURCE = "in"


class WatermarkRunner:
    def __init__(self, operator: Mapping[str, Any]) -> None:
        self._operator = operator
        self._progress = self._build()

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        emitted: Emitted = ()
        match action:
            case "in":
                for row in argument:
                    emitted += self._record(*row)
            case "processing_time_ms":
                emitted = self._progress.poll(argument)
            case "end_of_input":
                ends = ((name, Watermark(MAX_TIMESTAMP_MS)) for name in self._progress.partitions()[_SOURCE])
                self._progress.arrive(_SOURCE, ChannelElements.from_elements(ends)[0])
                emitted = self._progress.emit()
            case "restart":  # the state is plain data, all else is made of the configuration
                kept = self._progress.snapshot()
                self._progress = self._build()
                self._progress.restore(json.loads(json.dumps(kept)))
            case _:
                fail_unknown("watermarks", action)
        return {
            "emits": [format_element(element) for element in emitted],
            "current_ms": self._progress.watermark_ms,
        }

    def _build(self) -> WatermarkProgress:
        partitions = tuple(map(str, range(self._operator.get("partitions", 1))))
        return WatermarkProgress({_SOURCE: WatermarkSource(watermark_strategy(self._operator), partitions)})

    def _record(self, _key: Any, value: Any, timestamp_ms: int | None, partition: int = 0) -> Emitted:
        strategy = self._operator["strategy"]
        punctuated = "marker_value" in strategy
        marker = punctuated and value == strategy["marker_value"]
        newest_ms = timestamp_ms if marker or not punctuated else None
        self._progress.take(_SOURCE, NewestTimes.of({str(partition): newest_ms}))
        return self._progress.emit()


def watermark_strategy(operator: Mapping[str, Any]) -> WatermarkStrategy:
    """The strategy in the ``operator`` section of a transcript.

    Raises:
        Refused: It is not valid.
    """
    generator: BoundedOutOfOrderness | Punctuated
    with refusing(ConfigurationError):
        match operator["strategy"]:
            case {"kind": "bounded-out-of-orderness", "delay_ms": delay_ms}:
                generator = BoundedOutOfOrderness(delay_ms)
            case {"kind": "monotonous"}:
                generator = BoundedOutOfOrderness(0)
            case {"kind": "punctuated", "marker_value": marker}:
                generator = Punctuated(f"value = {marker!r}")
            case other:
                msg = f"strategy {other!r} is not in the README: nothing could be run; use one that is"
                raise ValueError(msg)
        return WatermarkStrategy(generator, operator.get("idle_after_ms"))
