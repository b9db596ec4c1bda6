"""Runner of transcripts of kind ``backlog``: the backlog status of several channels, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowcore.backlog.inputs import open_channels, receive
from flowcore.elements import RecordAttributes
from flowcore.errors import ConfigurationError
from flowcore.testing.transcripts.runner import fail_unknown, refusing

__all__ = ["BacklogRunner"]


class BacklogRunner:
    def __init__(self, operator: Mapping[str, Any]) -> None:
        with refusing(ConfigurationError):
            self._channels = open_channels(operator["channels"])

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        match action:
            case "in":
                return {"emits": self._receive(argument)}
            case "watermark_ms" | "processing_time_ms" | "restart" | "end_of_input":
                return {}  # none of these changes the status of a channel
            case _:
                return fail_unknown("backlog", action)

    def _receive(self, rows: Any) -> list[bool]:
        channels, emits = self._channels, []
        for channel, backlog in rows:
            with refusing(ConfigurationError):
                channels, emitted = receive(channels, channel, RecordAttributes(backlog))
            if emitted is not None:
                emits.append(emitted.backlog)
        self._channels = channels
        return emits
