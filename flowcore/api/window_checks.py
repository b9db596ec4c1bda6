"""Checks of windows and keyed processes: can what was declared ever put something out, and be right?

Each raises `PlanError` with the operator's name.
"""

from __future__ import annotations

from typing import Any, NoReturn

from flowcore.api.expressions import Expression
from flowcore.api.functions import require_function
from flowcore.api.operators import (
    Aggregate,
    Apply,
    MapBatches,
    Operator,
    Read,
    topic_of,
    upstream,
)
from flowcore.api.window_assigners import GapColumn
from flowcore.errors import PlanError
from flowcore.process import KeyedProcessFunction
from flowcore.windows import (
    CountEvictor,
    DynamicSessionWindows,
    EndOfStreamWindows,
    ProcessFunction,
    TimeEvictor,
    WindowConfig,
    WindowProcess,
)
from flowcore.windows.functions import PlainProcess
from flowcore.windows.triggers import ContinuousEventTime, Delta, EventTimeTrigger, Never, Purging, Trigger

__all__ = [
    "process_function",
    "reads_records",
    "replaces_itself",
    "require_aggregate_function",
    "require_keyed_process",
    "require_timestamp",
    "require_windows",
]

_OWN = "flowcore.windows"


def _require_output(node: Operator, name: str, config: WindowConfig) -> None:
    """Windows that emit at some time, and whose settings have an effect."""
    if isinstance(config.assigner, EndOfStreamWindows) and not node.bounded:
        source = next(each for each in upstream(node) if isinstance(each, Read) and not each.bounded)
        _refuse(
            f"operator {name!r}: EndOfStream() over the unbounded {source.name!r}: it would wait for an "
            "end that never comes; give the topic until=, or use windows that end"
        )
    if type(config.effective_trigger) is Never:
        _refuse(
            f"operator {name!r}: Global() without a trigger never emits: nothing would come out; pass for "
            "instance trigger=Count(100), or use EndOfStream() on a bounded input"
        )
    if config.time == "processing" and node.bounded:
        _refuse(
            f"operator {name!r}: time='processing' over the bounded {node.name!r}: which records share a "
            "window would depend on how fast it is read; use time='event' with timestamp="
        )
    if not config.has_lateness and (config.allowed_lateness_ms or config.late == "side-output"):
        by_clock = config.time == "processing"
        why = "by the clock nothing is late" if by_clock else "a window that never ends is never late"
        _refuse(
            f"operator {name!r}: allowed_lateness and late='side-output' have no effect, since {why}; "
            "leave them out"
        )


def require_windows(node: Operator, name: str, config: WindowConfig, timestamp: Expression | None) -> None:
    """Windows whose settings have an effect, over an input that has the time that they need.

    Args:
        node: The input.
        name: The name of the operator.
        config: The windows.
        timestamp: The time of a row of a bounded input, if it is declared.
    """
    _require_output(node, name, config)
    require_timestamp(node, name, timestamp, needed=config.assigner.bounded)
    if _needs_event_time(config):
        _require_watermarks(node, name)


def require_timestamp(node: Operator, name: str, timestamp: Expression | None, *, needed: bool) -> None:
    """Rows of a table are given a time where one is needed; records of a stream have theirs."""
    if timestamp is not None and not node.bounded:
        _refuse(
            f"operator {name!r}: timestamp={timestamp.text!r} over the unbounded {node.name!r}: watermarks "
            "go by the timestamps of its source, and records would be late; set event_time= there"
        )
    if timestamp is None and node.bounded and needed:
        _refuse(
            f"operator {name!r}: rows of the bounded {node.name!r} have no timestamp: they would belong to "
            "no window; pass timestamp= a column or expression, BIGINT milliseconds or TIMESTAMP"
        )


def _require_watermarks(node: Operator, name: str) -> None:
    """An input whose records have timestamps and, if it has no end, move event time."""
    for each in upstream(node):
        if each.bounded:
            continue
        if isinstance(each, (Aggregate, Apply, MapBatches)):
            _refuse(
                f"operator {name!r} goes by event time, and behind {each.name!r} a record has no timestamp "
                f"of its own: it would belong to no window; put {name!r} before {each.name!r}, or use "
                "time='processing'"
            )
        topic = topic_of(each)
        if not isinstance(each, Read) or topic is None:
            continue
        strategy = topic.watermark
        if not (strategy.generates if strategy is not None else topic.elements == "tagged"):
            _refuse(
                f"operator {name!r} goes by event time, and the source {each.name!r} sets no watermarks: "
                "its windows would never be complete; pass watermark= to its topic, for instance "
                f"KafkaTopic({topic.name!r}, ..., event_time='bid_time', "
                "watermark=bounded_out_of_orderness(timedelta(seconds=4))), or use time='processing'"
            )


def _needs_event_time(config: WindowConfig) -> bool:
    """Records need timestamps, or the watermark makes it emit."""
    return config.has_lateness or isinstance(_inside(config), (EventTimeTrigger, ContinuousEventTime))


def replaces_itself(config: WindowConfig) -> bool:
    """A later emission of a window is made of all that the earlier one was, and more."""
    known = type(config.effective_trigger).__module__.startswith(_OWN)
    whole = config.evictor is None and not isinstance(config.effective_trigger, Purging)
    return known and whole and not isinstance(config.function, WindowProcess) and config.function.then is None


def reads_records(config: WindowConfig) -> bool:
    """Something beside the function is handed records: the user's own, or one that compares them."""
    trigger, assigner = _inside(config), config.assigner
    own = all(type(each).__module__.startswith(_OWN) for each in (trigger, assigner))
    gap = isinstance(assigner, DynamicSessionWindows) and not isinstance(assigner.gap, GapColumn)
    evicts = config.evictor is None or isinstance(config.evictor, (CountEvictor, TimeEvictor))
    return gap or not own or not evicts or isinstance(trigger, Delta)


def process_function(function: Any, name: str) -> ProcessFunction:
    """A process function, also of a plain function."""
    if isinstance(function, type) or not callable(getattr(function, "process", None)):
        require_function(function, name)
        return PlainProcess(function)
    if not callable(getattr(function, "clear", None)):
        _refuse(
            f"operator {name!r}: {function!r} has process and no clear, which is called when a window "
            "ends: the run would stop there; add clear(context)"
        )
    found: ProcessFunction = function
    return found


def require_aggregate_function(function: Any, name: str) -> None:
    """An object with the four methods of an aggregate."""
    methods = ("create", "add", "merge", "result")
    missing = [method for method in methods if not callable(getattr(function, method, None))]
    if missing or isinstance(function, type):
        what = f"has no {', '.join(missing)}" if missing else "is a class; pass an object of it"
        _refuse(
            f"operator {name!r}: {function!r} is no aggregate function: it {what}; it needs create(), "
            "add(accumulator, record), merge(first, second) and result(accumulator)"
        )


def require_keyed_process(function: Any, name: str) -> None:
    """A function of the kind that `Stream.process` takes, and no class of it."""
    if isinstance(function, type) and issubclass(function, KeyedProcessFunction):
        _refuse(
            f"operator {name!r}: {function.__name__} is a class: it would have no object to keep states in; "
            f"pass {function.__name__}()"
        )
    if not isinstance(function, KeyedProcessFunction):
        _refuse(
            f"operator {name!r}: {function!r} is no KeyedProcessFunction: it could have neither state nor "
            "timers; inherit from it, or use map"
        )


def _inside(config: WindowConfig) -> Trigger:
    trigger: Trigger = config.effective_trigger
    while isinstance(trigger, Purging):
        trigger = trigger.inside
    return trigger


def _refuse(msg: str) -> NoReturn:
    raise PlanError(msg)
