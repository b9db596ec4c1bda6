"""Transcripts of kind ``backlog``: several channels, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowcore.backlog.inputs import open_channels, receive
from flowcore.elements import RecordAttributes
from flowcore.errors import ConfigurationError
from flowcore.testing.transcripts.runner import Refused, TranscriptKind

__all__ = ["KIND"]

_WORD = "invalid-argument"


class _Backlog:
    def __init__(self, operator: Mapping[str, Any]) -> None:
        try:
            self._channels = open_channels(operator["channels"])
        except ConfigurationError as error:
            raise Refused(_WORD) from error

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        if action == "in":
            return {"emits": self._receive(argument)}
        if action in ("watermark_ms", "processing_time_ms", "restart", "end_of_input"):
            return {}  # what channels have said is plain data, and outlives all of these
        msg = f"transcripts of backlog have no action {action!r}: nothing would be done; remove it"
        raise ConfigurationError(msg)

    def _receive(self, rows: Any) -> list[bool]:
        channels, emits = self._channels, []
        for channel, backlog in rows:
            try:
                channels, emitted = receive(channels, channel, RecordAttributes(backlog))
            except ConfigurationError as error:
                raise Refused(_WORD) from error
            if emitted is not None:
                emits.append(emitted.backlog)
        self._channels = channels
        return emits


KIND = TranscriptKind(name="backlog", build=_Backlog)
