"""Transcripts of kind ``window``: a window operator in the in-memory harness."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.errors import ConfigurationError, InvalidWindowError, NoTimestampError
from flowcore.testing.harness import WindowHarness
from flowcore.testing.transcripts.runner import Refused, TranscriptKind
from flowcore.testing.window_functions import CollectList, Sum
from flowcore.windows import (
    CountEvictor,
    DeltaEvictor,
    DynamicSessionWindows,
    EndOfStreamWindows,
    Evictor,
    GlobalWindows,
    SessionWindows,
    SlidingWindows,
    TimeEvictor,
    TumblingWindows,
    WindowAggregate,
    WindowAssigner,
    WindowConfig,
    WindowProcess,
    WindowResult,
)
from flowcore.windows.triggers import (
    ContinuousEventTime,
    ContinuousProcessingTime,
    Count,
    EndOfStreamTrigger,
    EventTimeTrigger,
    Never,
    ProcessingTimeTrigger,
    Purging,
    Trigger,
)

__all__ = ["KIND", "window_config"]

_NAMED = ("kind", "purging")
_TRIGGERS: Mapping[str, Callable[..., Trigger]] = {
    "event-time": EventTimeTrigger,
    "processing-time": ProcessingTimeTrigger,
    "count": Count,
    "continuous-event-time": ContinuousEventTime,
    "continuous-processing-time": ContinuousProcessingTime,
    "end-of-stream": EndOfStreamTrigger,
    "never": Never,
}
_WINDOWS: Mapping[str, Callable[..., WindowAssigner]] = {
    "tumbling": TumblingWindows,
    "sliding": SlidingWindows,
    "global": GlobalWindows,
    "end-of-stream": EndOfStreamWindows,
}
_FUNCTIONS: Mapping[str, WindowAggregate | WindowProcess] = {
    "sum": WindowAggregate(Sum()),
    "list": WindowProcess(CollectList()),
}


class _Windows:
    def __init__(self, operator: Mapping[str, Any]) -> None:
        try:
            self._harness = WindowHarness(window_config(operator))
        except InvalidWindowError as error:
            word = "invalid-argument"
            raise Refused(word) from error

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        match action:
            case "in":
                seen = self._feed(argument)
            case "watermark_ms":
                seen = self._harness.watermark(argument)
            case "end_of_input":
                seen = self._harness.watermark(MAX_TIMESTAMP_MS)
            case "processing_time_ms":
                seen = self._harness.move_clock(argument)
            case "restart":
                self._harness.restart()
                return {}
            case _:
                msg = f"transcripts of windows have no action {action!r}: nothing would be done; remove it"
                raise ConfigurationError(msg)
        return {
            "out": [_row(result) for result in seen.results],
            "late": [list(record) for record in seen.late],
            "dropped": seen.dropped_records,
        }

    def _feed(self, rows: Any) -> Any:
        try:
            return self._harness.feed(*rows)
        except NoTimestampError as error:
            word = "no-timestamp"
            raise Refused(word) from error
        except InvalidWindowError as error:
            word = "invalid-argument"
            raise Refused(word) from error


def window_config(operator: Mapping[str, Any]) -> WindowConfig:
    """What the ``operator`` section of a transcript asks for.

    Raises:
        InvalidWindowError: Building it has to fail.
        ConfigurationError: It asks for something that the README does not know.
    """
    return WindowConfig(
        assigner=_assigner(operator["window"]),
        function=_known("aggregate", _FUNCTIONS, operator.get("aggregate", "sum")),
        time=operator.get("time", "event"),
        trigger=_trigger(operator["trigger"]) if operator.get("trigger") else None,
        evictor=_evictor(operator["evictor"]) if operator.get("evictor") else None,
        allowed_lateness_ms=operator.get("allowed_lateness_ms", 0),
        late=operator.get("late", "drop"),
    )


def _assigner(written: Mapping[str, Any]) -> WindowAssigner:
    match written:
        case {"kind": "session", "gap_ms": gap_ms, **others} if not others:
            return SessionWindows(gap_ms)
        case {"kind": "session"}:
            return _dynamic_sessions(written)
        case _:
            assigner: WindowAssigner = _built(_known("window", _WINDOWS, written["kind"]), written)
            return assigner


def _dynamic_sessions(written: Mapping[str, Any]) -> WindowAssigner:
    by_value, by_key = written.get("gap_by_value") or {}, written.get("gap_by_key") or {}
    otherwise_ms = SessionWindows(written["gap_ms"]).gap_ms if "gap_ms" in written else None
    for gap_ms in (*by_value.values(), *by_key.values()):
        if gap_ms < 0:
            msg = (
                f"a gap of {gap_ms} ms is negative: a session would end before it starts; write zero or more"
            )
            raise InvalidWindowError(msg)
    return DynamicSessionWindows(partial(_gap_ms, by_value, by_key, otherwise_ms))


def _gap_ms(
    by_value: Mapping[Any, int], by_key: Mapping[Any, int], otherwise_ms: int | None, key: Any, value: Any
) -> int:
    gap_ms = by_value.get(value, by_key.get(key, otherwise_ms))
    if gap_ms is None:
        msg = f"there is no gap for key {key!r}, value {value!r}: its session would never end; write gap_ms"
        raise InvalidWindowError(msg)
    return gap_ms


def _trigger(written: Mapping[str, Any]) -> Trigger:
    trigger: Trigger = _built(_known("trigger", _TRIGGERS, written["kind"]), written)
    return Purging(trigger) if written.get("purging", False) else trigger


def _evictor(written: Mapping[str, Any]) -> Evictor:
    after = written.get("after", False)
    match written:
        case {"kind": "count", "keep": keep_records}:
            return CountEvictor(keep_records, after)
        case {"kind": "time", "window_ms": window_ms}:
            return TimeEvictor(window_ms, after)
        case {"kind": "delta", "threshold": threshold}:
            return DeltaEvictor(threshold, after)
        case _:
            msg = f"evictor {dict(written)!r} is none of the README's: it would not be known what stays"
            raise ConfigurationError(msg)


def _built(build: Callable[..., Any], written: Mapping[str, Any]) -> Any:
    given = {name: value for name, value in written.items() if name not in _NAMED}
    try:
        return build(**given)
    except TypeError as error:
        msg = f"{dict(written)!r} has fields that are missing or unknown ({error}): see the README"
        raise ConfigurationError(msg) from error


def _known(what: str, known: Mapping[str, Any], kind: str) -> Any:
    if kind not in known:
        msg = f"{what} {kind!r} is none of {', '.join(known)}: it would not be known what to run"
        raise ConfigurationError(msg)
    return known[kind]


def _row(result: WindowResult) -> list[Any]:
    window = [result.window_start_ms, result.window_end_ms]
    return [result.key, result.value, result.timestamp_ms, window]


KIND = TranscriptKind(name="window", build=_Windows)
