"""Transcripts of watermarks and of backlog as a live flow: a topic is copied to a tagged topic."""

import json
from collections.abc import Mapping
from typing import Any

from flowcore.api.flow import Flow
from flowcore.elements import MIN_TIMESTAMP_MS, EndOfInput, Record, RecordAttributes, Watermark
from flowcore.testing.transcripts.backlog import channel_names, require_channel
from flowcore.testing.transcripts.elements import format_element
from flowcore.testing.transcripts.live_flow import Input, LiveEngine, LiveFlow
from flowcore.testing.transcripts.runner import fail_unknown
from flowcore.testing.transcripts.watermarks import watermark_strategy

__all__ = ["LiveBacklog", "LiveWatermarks"]


class _LiveCopy:
    def __init__(self, engine: LiveEngine, partitions: int, **source: Any) -> None:
        name = engine.new_name()
        flow = Flow(name)
        read = flow.read("in", engine.topic(name, "in", elements="tagged", **source))
        read.write("out", engine.topic(name, "out", elements="tagged", partitions=1))
        self._flow = LiveFlow(engine, flow, partitions=partitions)

    def close(self) -> None:
        self._flow.close()


class LiveWatermarks(_LiveCopy):
    """A strategy during one transcript."""

    def __init__(self, operator: Mapping[str, Any], engine: LiveEngine) -> None:
        strategy = watermark_strategy(operator)
        schema = "key STRING, value BIGINT"
        self._partitions = operator.get("partitions", 1)
        super().__init__(engine, self._partitions, schema=schema, watermark=strategy)

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        match action:
            case "in":
                outputs = self._flow.step(_input(*row) for row in argument)
            case "processing_time_ms":
                outputs = self._flow.step(now_ms=argument)
            case "end_of_input":
                outputs = self._flow.step(Input(EndOfInput(), number) for number in range(self._partitions))
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


class LiveBacklog(_LiveCopy):
    """Backlog statuses during one transcript; the channels are the partitions of the topic."""

    def __init__(self, operator: Mapping[str, Any], engine: LiveEngine) -> None:
        self._channels = channel_names(operator)
        super().__init__(engine, len(self._channels), schema="key STRING")

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        outputs = []
        match action:
            case "in":
                for channel, backlog in argument:  # a batch reads the channels side by side
                    outputs += self._flow.step([self._report(channel, backlog=backlog)])
            case "watermark_ms":
                self._flow.step([Input(Watermark(argument))])
            case "processing_time_ms":
                self._flow.step(now_ms=argument)
            case "end_of_input":
                self._flow.step([Input(EndOfInput(), channel) for channel in range(len(self._channels))])
            case "restart":
                outputs = self._flow.restart()
            case _:
                return fail_unknown("backlog", action)
        found = (each.element for each in outputs if each.topic == "out")
        return {"emits": [each.backlog for each in found if isinstance(each, RecordAttributes)]}

    def _report(self, channel: int, *, backlog: bool) -> Input:
        require_channel(channel, self._channels)
        return Input(RecordAttributes(backlog), channel)


def _input(key: Any, value: Any, timestamp_ms: int | None, partition: int = 0) -> Input:
    row = {"key": json.dumps(key), "value": value}
    return Input(Record(json.dumps(row).encode(), timestamp_ms), partition)
