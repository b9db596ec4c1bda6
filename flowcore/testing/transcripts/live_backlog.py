"""Transcripts of backlog as a live flow: the channels are the partitions of a topic that is copied."""

from collections.abc import Mapping
from typing import Any

from flowcore.api.flow import Flow
from flowcore.backlog import open_channels
from flowcore.elements import EndOfInput, RecordAttributes, Watermark
from flowcore.errors import ConfigurationError
from flowcore.testing.transcripts.live_flow import Input, LiveEngine, LiveFlow
from flowcore.testing.transcripts.runner import Refused, fail_unknown, refusing

__all__ = ["LiveBacklog"]


class LiveBacklog:
    """Backlog statuses during one transcript."""

    def __init__(self, operator: Mapping[str, Any], engine: LiveEngine) -> None:
        with refusing(ConfigurationError):
            self._channels = len(open_channels(operator["channels"]).backlog)
        name = engine.new_name()
        flow = Flow(name)
        source = engine.topic(name, "in", schema="key STRING", elements="tagged")
        flow.read("in", source).write("out", engine.topic(name, "out", elements="tagged", partitions=1))
        self._flow = LiveFlow(engine, flow, partitions=self._channels)

    def close(self) -> None:
        self._flow.close()

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
                self._flow.step([Input(EndOfInput(), channel) for channel in range(self._channels)])
            case "restart":
                outputs = self._flow.restart()
            case _:
                return fail_unknown("backlog", action)
        found = (each.element for each in outputs if each.topic == "out")
        return {"emits": [each.backlog for each in found if isinstance(each, RecordAttributes)]}

    def _report(self, channel: int, *, backlog: bool) -> Input:
        if not 0 <= channel < self._channels:
            word = "invalid-argument"
            raise Refused(word)
        return Input(RecordAttributes(backlog), channel)
