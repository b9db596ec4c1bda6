"""Runner of transcripts of kind ``window``: a window operator in the in-memory harness."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flowcore import windows
from flowcore.elements import MAX_TIMESTAMP_MS
from flowcore.errors import ConfigurationError, InvalidWindowError, NoTimestampError
from flowcore.testing.harness import WindowHarness
from flowcore.testing.transcripts.runner import fail_unknown, refusing
from flowcore.testing.window_functions import CollectList, Sum
from flowcore.windows import triggers

__all__ = ["WindowRunner", "window_config"]

_NAMED = ("kind", "purging")
_TRIGGERS: Mapping[str, Callable[..., triggers.Trigger]] = {
    "event-time": triggers.EventTimeTrigger,
    "processing-time": triggers.ProcessingTimeTrigger,
    "count": triggers.Count,
    "continuous-event-time": triggers.ContinuousEventTime,
    "continuous-processing-time": triggers.ContinuousProcessingTime,
    "end-of-stream": triggers.EndOfStreamTrigger,
    "never": triggers.Never,
}
_WINDOWS: Mapping[str, Callable[..., windows.WindowAssigner]] = {
    "tumbling": windows.TumblingWindows,
    "sliding": windows.SlidingWindows,
    "global": windows.GlobalWindows,
    "end-of-stream": windows.EndOfStreamWindows,
}
_FUNCTIONS: Mapping[str, windows.WindowAggregate | windows.WindowProcess] = {
    "sum": windows.WindowAggregate(Sum()),
    "list": windows.WindowProcess(CollectList()),
}


class WindowRunner:
    def __init__(self, operator: Mapping[str, Any]) -> None:
        with refusing(InvalidWindowError):
            self._harness = WindowHarness(window_config(operator))

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        match action:
            case "in":
                with refusing(InvalidWindowError), refusing(NoTimestampError, "no-timestamp"):
                    seen = self._harness.feed(*argument)
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
                fail_unknown("windows", action)
        return {
            "out": [
                [each.key, each.value, each.timestamp_ms, [each.window_start_ms, each.window_end_ms]]
                for each in seen.results
            ],
            "late": [list(record) for record in seen.late],
            "dropped": seen.dropped_records,
        }


def window_config(operator: Mapping[str, Any]) -> windows.WindowConfig:
    """The configuration in the ``operator`` section of a transcript.

    Raises:
        InvalidWindowError: The operator is not valid.
        ConfigurationError: The operator names something that is not in the README.
    """
    return windows.WindowConfig(
        assigner=_build_assigner(operator["window"]),
        function=_look_up("aggregate", _FUNCTIONS, operator.get("aggregate", "sum")),
        time=operator.get("time", "event"),
        trigger=_build_trigger(operator["trigger"]) if operator.get("trigger") else None,
        evictor=_build_evictor(operator["evictor"]) if operator.get("evictor") else None,
        allowed_lateness_ms=operator.get("allowed_lateness_ms", 0),
        late=operator.get("late", "drop"),
    )


def _build_assigner(written: Mapping[str, Any]) -> windows.WindowAssigner:
    match written:
        case {"kind": "session", "gap_ms": gap_ms, **others} if not others:
            return windows.SessionWindows(gap_ms)
        case {"kind": "session"}:
            return _build_dynamic_sessions(written)
        case _:
            assigner: windows.WindowAssigner = _build(_look_up("window", _WINDOWS, written["kind"]), written)
            return assigner


def _build_dynamic_sessions(written: Mapping[str, Any]) -> windows.WindowAssigner:
    by_value, by_key = written.get("gap_by_value") or {}, written.get("gap_by_key") or {}
    otherwise_ms = windows.SessionWindows(written["gap_ms"]).gap_ms if "gap_ms" in written else None
    for gap_ms in (*by_value.values(), *by_key.values()):
        if gap_ms < 0:
            msg = (
                f"a gap of {gap_ms} ms is negative: a session would end before it starts; write zero or more"
            )
            raise InvalidWindowError(msg)
    return windows.DynamicSessionWindows(partial(_gap_ms, by_value, by_key, otherwise_ms))


def _gap_ms(
    by_value: Mapping[Any, int], by_key: Mapping[Any, int], otherwise_ms: int | None, key: Any, value: Any
) -> int:
    gap_ms = by_value.get(value, by_key.get(key, otherwise_ms))
    if gap_ms is None:
        msg = f"there is no gap for key {key!r}, value {value!r}: its session would never end; write gap_ms"
        raise InvalidWindowError(msg)
    return gap_ms


def _build_trigger(written: Mapping[str, Any]) -> triggers.Trigger:
    trigger: triggers.Trigger = _build(_look_up("trigger", _TRIGGERS, written["kind"]), written)
    return triggers.Purging(trigger) if written.get("purging", False) else trigger


def _build_evictor(written: Mapping[str, Any]) -> windows.Evictor:
    after = written.get("after", False)
    match written:
        case {"kind": "count", "keep": keep_records}:
            return windows.CountEvictor(keep_records, after)
        case {"kind": "time", "window_ms": window_ms}:
            return windows.TimeEvictor(window_ms, after)
        case {"kind": "delta", "threshold": threshold}:
            return windows.DeltaEvictor(threshold, after)
        case _:
            msg = f"evictor {dict(written)!r} is not in the README: nothing could be run; use one that is"
            raise ConfigurationError(msg)


def _build(build: Callable[..., Any], written: Mapping[str, Any]) -> Any:
    try:
        return build(**{name: value for name, value in written.items() if name not in _NAMED})
    except TypeError as error:
        msg = f"{dict(written)!r} has fields that are missing or unknown ({error}): see the README"
        raise ConfigurationError(msg) from error


def _look_up(what: str, known: Mapping[str, Any], kind: str) -> Any:
    if kind not in known:
        msg = f"{what} {kind!r} is none of {', '.join(known)}: nothing could be run; use one of these"
        raise ConfigurationError(msg)
    return known[kind]
