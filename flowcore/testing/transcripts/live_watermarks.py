"""Transcripts of watermarks as a live flow: a topic with a strategy is copied to a tagged topic."""

import json
from collections.abc import Mapping
from typing import Any

from flowcore.api.flow import Flow
from flowcore.elements import MIN_TIMESTAMP_MS, EndOfInput, Record
from flowcore.testing.transcripts.elements import format_element
from flowcore.testing.transcripts.live_flow import Input, LiveEngine, LiveFlow
from flowcore.testing.transcripts.runner import fail_unknown
from flowcore.testing.transcripts.watermarks import watermark_strategy

__all__ = ["LiveWatermarks"]


class LiveWatermarks:
    """A strategy during one transcript."""

    def __init__(self, operator: Mapping[str, Any], engine: LiveEngine) -> None:
        strategy = watermark_strategy(operator)
        name = engine.new_name()
        flow = Flow(name)
        schema = "key STRING, value BIGINT"
        source = engine.topic(name, "in", schema=schema, elements="tagged", watermark=strategy)
        flow.read("in", source).write("out", engine.topic(name, "out", elements="tagged", partitions=1))
        self._flow = LiveFlow(engine, flow, partitions=operator.get("partitions", 1))

    def close(self) -> None:
        self._flow.close()

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        match action:
            case "in":
                outputs = self._flow.step(_input(*row) for row in argument)
            case "processing_time_ms":
                outputs = self._flow.step(now_ms=argument)
            case "end_of_input":
                outputs = self._flow.step([Input(EndOfInput())])
            case "restart":
                outputs = self._flow.restart()
            case _:
                return fail_unknown("watermarks", action)
        emitted = [each.element for each in outputs if each.topic == "out"]
        current_ms = self._flow.progress.watermark_ms
        return {
            "emits": [format_element(element) for element in emitted if not isinstance(element, Record)],
            "current_ms": MIN_TIMESTAMP_MS if current_ms is None else current_ms,
        }


def _input(key: Any, value: Any, timestamp_ms: int | None, partition: int = 0) -> Input:
    row = {"key": json.dumps(key), "value": value}
    return Input(Record(json.dumps(row).encode(), timestamp_ms), partition)
