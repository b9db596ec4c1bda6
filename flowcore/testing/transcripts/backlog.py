"""Runners of transcripts about backlog: ``backlog`` and ``checkpoint-interval``.

`BacklogRunner` combines the backlog status of several channels. `CheckpointIntervalRunner` is a schedule of
checkpoints, whose clock starts at 0.

One source in backlog is enough for the longer interval. A switch may bring the next checkpoint forward, and
never delays it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flowcore.backlog import CheckpointInterval, MergedBacklog
from flowcore.errors import ConfigurationError
from flowcore.testing.transcripts.runner import Refused, fail_unknown, refusing

__all__ = [
    "BacklogRunner",
    "CheckpointIntervalRunner",
    "CheckpointSchedule",
    "channel_names",
    "due_times",
    "require_channel",
    "schedule_first",
    "switch_source",
]

_INVALID = "invalid-argument"
_UNNAMED = ""
"""The source of a job that "is in backlog at the start", until a source reports a status itself."""


def channel_names(operator: Mapping[str, Any]) -> list[str]:
    """The names of the channels, which are their numbers.

    Raises:
        Refused: There are none.
    """
    if operator["channels"] < 1:
        raise Refused(_INVALID)
    return [*map(str, range(operator["channels"]))]


def require_channel(channel: int, names: Sequence[str]) -> None:
    """Check that there is such a channel.

    Raises:
        Refused: There is none.
    """
    if not 0 <= channel < len(names):
        raise Refused(_INVALID)


class BacklogRunner:
    def __init__(self, operator: Mapping[str, Any]) -> None:
        self._names = channel_names(operator)
        self._merged = MergedBacklog(self._names)

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        match action:
            case "in":
                for channel, _ in argument:
                    require_channel(channel, self._names)
                found = [
                    self._merged.receive(self._names[each], backlog=backlog) for each, backlog in argument
                ]
                return {"emits": [each.backlog for each in found if each is not None]}
            case "watermark_ms" | "processing_time_ms" | "restart" | "end_of_input":
                return {}  # none of these changes the status of a channel
            case _:
                return fail_unknown("backlog", action)


@dataclass(frozen=True, slots=True)
class CheckpointSchedule:
    """State of the schedule.

    Attributes:
        next_ms: When the next checkpoint is due, None if none is.
        in_backlog: The sources that are in backlog.
    """

    next_ms: int | None
    in_backlog: frozenset[str] = frozenset()


def schedule_first(
    config: CheckpointInterval, now_ms: int = 0, in_backlog: Iterable[str] = ()
) -> CheckpointSchedule:
    """The first checkpoint, due one interval from now: that of backlog, if a source begins in backlog."""
    sources = frozenset(in_backlog)
    interval_ms = config.interval_ms_in(backlog=bool(sources))
    return CheckpointSchedule(None if interval_ms is None else now_ms + interval_ms, sources)


def switch_source(
    config: CheckpointInterval, schedule: CheckpointSchedule, source: str, now_ms: int, *, backlog: bool
) -> CheckpointSchedule:
    """The schedule after a source has reported its status; a source that has ended is not in backlog.

    >>> config = CheckpointInterval(10, backlog_interval_ms=60)
    >>> schedule = schedule_first(config, in_backlog=["bids"])
    >>> switch_source(config, schedule, "bids", 20, backlog=False).next_ms
    30
    """
    others = schedule.in_backlog - {source}
    after = replace(schedule, in_backlog=others | {source} if backlog else others)
    interval_ms = config.interval_ms_in(backlog=bool(after.in_backlog))
    if interval_ms is None or (after.next_ms is not None and after.next_ms <= now_ms + interval_ms):
        return after
    return replace(after, next_ms=now_ms + interval_ms)


def due_times(
    config: CheckpointInterval, schedule: CheckpointSchedule, now_ms: int
) -> tuple[CheckpointSchedule, tuple[int, ...]]:
    """The schedule at a time, and the times at which checkpoints were due until then, in order."""
    times: list[int] = []
    interval_ms = config.interval_ms_in(backlog=bool(schedule.in_backlog))
    next_ms = schedule.next_ms
    while next_ms is not None and next_ms <= now_ms:
        times.append(next_ms)
        next_ms = None if interval_ms is None else next_ms + interval_ms
    return replace(schedule, next_ms=next_ms), tuple(times)


class CheckpointIntervalRunner:
    def __init__(self, operator: Mapping[str, Any]) -> None:
        with refusing(ConfigurationError):
            self._config = CheckpointInterval(operator["interval_ms"], operator.get("backlog_interval_ms"))
        self._now_ms = 0
        self._schedule = schedule_first(
            self._config, self._now_ms, _sources(operator.get("backlog_at_start"))
        )

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        match action:
            case "processing_time_ms":
                self._now_ms = argument
                self._schedule, triggers = due_times(self._config, self._schedule, self._now_ms)
                return {"triggers": list(triggers)}
            case "backlog":
                self._switch(argument)
            case "end_of_data":
                self._switch(dict.fromkeys(_sources(argument), False))
            case "in" | "watermark_ms" | "restart" | "end_of_input":
                pass  # none of these changes a schedule
            case _:
                fail_unknown("checkpoints", action)
        return {}

    def _switch(self, reports: Mapping[str, bool]) -> None:
        if reports:
            reports = {**reports, _UNNAMED: False}
        for source, backlog in reports.items():
            schedule = switch_source(self._config, self._schedule, source, self._now_ms, backlog=backlog)
            self._schedule = schedule


def _sources(written: Any) -> Iterable[str]:
    """The sources given as a name, a list of names, ``{name: true}``, or just ``true``."""
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
