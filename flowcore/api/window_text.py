"""Windows as text, for plans and for the plan file of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass

from flowcore.api.expressions import Expression
from flowcore.api.functions import name_of
from flowcore.api.window_assigners import GAP_COLUMN, GapColumn
from flowcore.durations import MILLISECOND, show_duration
from flowcore.windows import (
    DynamicSessionWindows,
    EndOfStreamWindows,
    GlobalWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
)
from flowcore.windows.assigners import WindowAssigner
from flowcore.windows.config import WindowConfig
from flowcore.windows.functions import PlainProcess, WindowFunction, WindowProcess, WindowReduce

__all__ = ["describe_declared", "describe_function", "describe_windows"]


def describe_windows(assigner: WindowAssigner, computed: Iterable[tuple[str, Expression]]) -> str:
    """The kind of windows and their lengths.

    Args:
        assigner: The windows.
        computed: The columns that are computed for them, the gap of a session among them.
    """
    match assigner:
        case TumblingWindows(size_ms=size_ms, offset_ms=offset_ms):
            return f"tumbling windows of {_length(size_ms)}{_offset(offset_ms)}"
        case SlidingWindows(size_ms=size_ms, slide_ms=slide_ms, offset_ms=offset_ms):
            return f"windows of {_length(size_ms)} every {_length(slide_ms)}{_offset(offset_ms)}"
        case SessionWindows(gap_ms=gap_ms):
            return f"sessions with a gap of {_length(gap_ms)}"
        case DynamicSessionWindows(gap=GapColumn()):
            return f"sessions with a gap of {dict(computed)[GAP_COLUMN].text} ms"
        case DynamicSessionWindows(gap=gap):
            return f"sessions with a gap by {name_of(gap)}"
        case EndOfStreamWindows():
            return "one window up to the end of input"
        case GlobalWindows():
            return "one window without end"
        case other:
            return f"windows of {_shown(other)}"


def describe_function(function: WindowFunction, sql: Iterable[tuple[str, str]]) -> str:
    """What the windows compute.

    Args:
        function: Their function.
        sql: ``(column, text)`` of built-in aggregates.
    """
    then = function.then.function if isinstance(function.then, PlainProcess) else function.then
    named = "" if then is None else name_of(then)
    if isinstance(function, WindowProcess):
        return f"process {named}"
    aggregates = ", ".join(f"{text} as {name}" for name, text in sql)
    if aggregates:
        what = f"aggregate {aggregates}"
    else:
        verb = "reduce" if isinstance(function, WindowReduce) else "aggregate with"
        what = f"{verb} {name_of(function.function)}"
    return f"{what}, then {named}" if named else what


def describe_declared(config: WindowConfig) -> list[str]:
    """The trigger, the evictor and what becomes of late records, where they were declared."""
    named = (("trigger", config.trigger), ("evictor", config.evictor))
    found = [f"{what} {_shown(each)}" for what, each in named if each is not None]
    if config.allowed_lateness_ms:
        found.append(f"late by up to {_length(config.allowed_lateness_ms)}")
    if config.late == "side-output":
        found.append("later records to the side output")
    return found


def _shown(value: object) -> str:
    """A trigger or an evictor with what it was given; the same in every process."""
    if is_dataclass(value):
        inside = (_shown(getattr(value, each.name)) for each in fields(value))
        return f"{type(value).__name__}({', '.join(inside)})"
    return repr(value) if isinstance(value, (bool, int, float, str)) else name_of(value)


def _length(length_ms: int) -> str:
    return show_duration(length_ms * MILLISECOND)


def _offset(offset_ms: int) -> str:
    return f" from {'-' * (offset_ms < 0)}{_length(abs(offset_ms))}" if offset_ms else ""
