"""Transcripts of kind ``checkpoint-interval``: a schedule of checkpoints over a clock that starts at 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flowcore.backlog import CheckpointInterval
from flowcore.backlog.checkpoints import due, start, switch
from flowcore.errors import ConfigurationError
from flowcore.testing.transcripts.runner import Kind, Refused

__all__ = ["KIND"]

_UNNAMED = ""
"""The source of a job that "is in backlog at the start", until a source says something itself."""


class _CheckpointInterval:
    def __init__(self, operator: Mapping[str, Any]) -> None:
        try:
            self._config = CheckpointInterval(operator["interval_ms"], operator.get("backlog_interval_ms"))
        except ConfigurationError as error:
            word = "invalid-argument"
            raise Refused(word) from error
        self._now_ms = 0
        self._schedule = start(self._config, self._now_ms, _sources(operator.get("backlog_at_start")))

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        match action:
            case "processing_time_ms":
                self._now_ms = argument
                self._schedule, triggers = due(self._config, self._schedule, self._now_ms)
                return {"triggers": list(triggers)}
            case "backlog":
                self._switch(argument)
            case "end_of_data":
                self._switch(dict.fromkeys(_sources(argument), False))
            case "in" | "watermark_ms" | "restart" | "end_of_input":
                pass  # a schedule is plain data, and records do not change it
            case _:
                msg = (
                    f"transcripts of checkpoints have no action {action!r}: nothing would be done; remove it"
                )
                raise ConfigurationError(msg)
        return {}

    def _switch(self, said: Mapping[str, bool]) -> None:
        for source, backlog in said.items():
            self._schedule = switch(self._config, self._schedule, source, self._now_ms, backlog=backlog)
        if said:
            self._schedule = switch(self._config, self._schedule, _UNNAMED, self._now_ms, backlog=False)


def _sources(written: Any) -> Iterable[str]:
    """The sources that are meant by a name, a list of names, ``{name: true}``, or just ``true``."""
    match written:
        case None | False:
            return ()
        case True:
            return (_UNNAMED,)
        case str():
            return (written,)
        case Mapping():
            return tuple(source for source, backlog in written.items() if backlog)
        case _:
            return tuple(written)


KIND = Kind(
    name="checkpoint-interval",
    build=_CheckpointInterval,
    actions=frozenset({"backlog", "end_of_data"}),
)
