"""Describe: what do windows and keyed processes do, in one line?"""

from __future__ import annotations

from dataclasses import fields, is_dataclass

from flowcore.api.functions import name_of
from flowcore.api.stateful import KeyedProcess, SideOutput, Window
from flowcore.api.window_assigners import GAP_COLUMN, GapColumn
from flowcore.durations import MILLISECOND, show_duration
from flowcore.windows import (
    DynamicSessionWindows,
    EndOfStreamWindows,
    GlobalWindows,
    PlainProcess,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    WindowProcess,
    WindowReduce,
)

__all__ = ["kept_by_key", "what_by_key"]


def what_by_key(node: Window | KeyedProcess | SideOutput) -> str:
    """What an operator does that keeps state by key group, and what leaves it beside its results."""
    match node:
        case Window():
            return _window(node)
        case KeyedProcess():
            return _process(node)
        case SideOutput():
            return f"side output {node.output}"


def kept_by_key(node: Window | KeyedProcess) -> str:
    """What of an operator's declaration says what it keeps."""
    match node:
        case Window():
            return f"{_windows(node)}, {_function(node)}"
        case KeyedProcess():
            return f"process {name_of(node.function)}"


def _window(node: Window) -> str:
    """The windows, what they emit, when, and what becomes of late records."""
    config = node.config
    named = (("trigger", config.trigger), ("evictor", config.evictor))
    extra = [f"{what} {_shown(each)}" for what, each in named if each is not None]
    if config.allowed_lateness_ms:
        extra.append(f"late by up to {_length(config.allowed_lateness_ms)}")
    if config.late == "side-output":
        extra.append("later records to the side output")
    by = ", ".join(node.by) or "nothing"
    of_time = f" of {config.time} time" if config.assigner.bounded else ""
    return ", ".join([f"{_windows(node)}{of_time}, {_function(node)} by {by}", *extra])


def _process(node: KeyedProcess) -> str:
    """The function, its key and its side outputs."""
    sides = f", side outputs {', '.join(name for name, _ in node.side_outputs)}" if node.side_outputs else ""
    return f"process {name_of(node.function)} by {', '.join(node.by) or 'nothing'}{sides}"


def _windows(node: Window) -> str:
    match node.config.assigner:
        case TumblingWindows(size_ms=size_ms, offset_ms=offset_ms):
            return f"tumbling windows of {_length(size_ms)}{_offset(offset_ms)}"
        case SlidingWindows(size_ms=size_ms, slide_ms=slide_ms, offset_ms=offset_ms):
            return f"windows of {_length(size_ms)} every {_length(slide_ms)}{_offset(offset_ms)}"
        case SessionWindows(gap_ms=gap_ms):
            return f"sessions with a gap of {_length(gap_ms)}"
        case DynamicSessionWindows(gap=GapColumn()):
            return f"sessions with a gap of {dict(node.computed)[GAP_COLUMN].text} ms"
        case DynamicSessionWindows(gap=gap):
            return f"sessions with a gap by {name_of(gap)}"
        case EndOfStreamWindows():
            return "one window up to the end of input"
        case GlobalWindows():
            return "one window without end"
        case other:
            return f"windows of {_shown(other)}"


def _function(node: Window) -> str:
    function = node.config.function
    then = "" if function.then is None else name_of(_plain(function.then))
    if isinstance(function, WindowProcess):
        return f"process {then}"
    if node.sql:
        what = f"aggregate {', '.join(f'{text} as {name}' for name, text in node.sql)}"
    else:
        verb = "reduce" if isinstance(function, WindowReduce) else "aggregate with"
        what = f"{verb} {name_of(function.function)}"
    return f"{what}, then {then}" if then else what


def _shown(value: object) -> str:
    """A trigger or an evictor with what it was given; the same in every process."""
    if is_dataclass(value):
        inside = (_shown(getattr(value, each.name)) for each in fields(value))
        return f"{type(value).__name__}({', '.join(inside)})"
    return repr(value) if isinstance(value, (bool, int, float, str)) else name_of(value)


def _plain(function: object) -> object:
    return function.function if isinstance(function, PlainProcess) else function


def _length(length_ms: int) -> str:
    return show_duration(length_ms * MILLISECOND)


def _offset(offset_ms: int) -> str:
    return f" from {'-' * (offset_ms < 0)}{_length(abs(offset_ms))}" if offset_ms else ""
