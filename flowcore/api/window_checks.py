"""Checks of windows and keyed process functions: can the declared operator emit results, and correct ones?

Each raises `PlanError` with the operator's name.
"""

from collections.abc import Sequence
from typing import Any

from flowcore.api.checks import refuse
from flowcore.api.expressions import Expression
from flowcore.api.functions import require_function
from flowcore.api.operators import Operator, Read
from flowcore.api.window_assigners import GapColumn
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
    "require_reducible",
    "require_timestamp",
    "require_windows",
]

_OWN = "flowcore.windows"


def require_windows(node: Operator, name: str, config: WindowConfig, timestamp: Expression | None) -> None:
    """Check that windows emit at some time, that their settings have effects, and that records have times."""
    if isinstance(config.assigner, EndOfStreamWindows) and not node.bounded:
        source = node.live_sources[0]
        refuse(
            f"operator {name!r}: EndOfStream() over the unbounded {source.name!r}: it would wait for an "
            "end that never comes; give the topic until=, or use windows that end"
        )
    if type(config.effective_trigger) is Never:
        refuse(
            f"operator {name!r}: Global() without a trigger never emits: there would be no output; pass for "
            "instance trigger=Count(100), or use EndOfStream() on a bounded input"
        )
    if config.time == "processing" and node.bounded:
        refuse(
            f"operator {name!r}: time='processing' over the bounded {node.name!r}: which records share a "
            "window would depend on how fast it is read; use time='event' with timestamp="
        )
    if not config.has_lateness and (config.allowed_lateness_ms or config.late == "side-output"):
        processing = config.time == "processing"
        why = "nothing is late in processing time" if processing else "a window that never ends is never late"
        refuse(
            f"operator {name!r}: allowed_lateness and late='side-output' have no effect, since {why}; "
            "leave them out"
        )
    require_timestamp(node, name, timestamp, needed=config.assigner.bounded)
    if config.has_lateness or isinstance(_inner_trigger(config), (EventTimeTrigger, ContinuousEventTime)):
        _require_watermarks(node, name)


def require_timestamp(node: Operator, name: str, timestamp: Expression | None, *, needed: bool) -> None:
    """Check that rows of a bounded input have a declared time if needed, and no others have one."""
    if timestamp is not None and not node.bounded:
        refuse(
            f"operator {name!r}: timestamp={timestamp.text!r} over the unbounded {node.name!r}: watermarks "
            "follow the timestamps of its source, and records would be late; set event_time= there"
        )
    if timestamp is None and node.bounded and needed:
        refuse(
            f"operator {name!r}: rows of the bounded {node.name!r} have no timestamp: they would belong to "
            "no window; pass timestamp= a column or expression, BIGINT milliseconds or TIMESTAMP"
        )


def replaces_itself(config: WindowConfig) -> bool:
    """True if a later emission of a window covers all records of the earlier one."""
    known = type(config.effective_trigger).__module__.startswith(_OWN)
    whole = config.evictor is None and not isinstance(config.effective_trigger, Purging)
    return known and whole and not isinstance(config.function, WindowProcess) and config.function.then is None


def reads_records(config: WindowConfig) -> bool:
    """True if a trigger, assigner or evictor reads the columns of records."""
    trigger, assigner = _inner_trigger(config), config.assigner
    own = all(type(each).__module__.startswith(_OWN) for each in (trigger, assigner))
    gap = isinstance(assigner, DynamicSessionWindows) and not isinstance(assigner.gap, GapColumn)
    evicts = config.evictor is None or isinstance(config.evictor, (CountEvictor, TimeEvictor))
    return gap or not own or not evicts or isinstance(trigger, Delta)


def process_function(function: Any, name: str) -> ProcessFunction:
    """Check a process function of windows, or make one of a plain function."""
    if isinstance(function, type) or not callable(getattr(function, "process", None)):
        require_function(function, name)
        return PlainProcess(function)
    if not callable(getattr(function, "clear", None)):
        refuse(
            f"operator {name!r}: {function!r} has process and no clear, which is called when a window "
            "ends: the run would stop there; add clear(context)"
        )
    found: ProcessFunction = function
    return found


def require_aggregate_function(function: Any, name: str) -> None:
    """Check for an object with the four methods of an aggregate."""
    methods = ("create", "add", "merge", "result")
    missing = [method for method in methods if not callable(getattr(function, method, None))]
    if missing or isinstance(function, type):
        what = f"has no {', '.join(missing)}" if missing else "is a class; pass an object of it"
        refuse(
            f"operator {name!r}: {function!r} is not an aggregate function: it {what}; it needs create(), "
            "add(accumulator, record), merge(first, second) and result(accumulator)"
        )


def require_keyed_process(function: Any, name: str) -> None:
    """Check for an object of the class that `Stream.process` accepts."""
    if isinstance(function, type) and issubclass(function, KeyedProcessFunction):
        refuse(
            f"operator {name!r}: {function.__name__} is a class: it would have no object to keep states in; "
            f"pass {function.__name__}()"
        )
    if not isinstance(function, KeyedProcessFunction):
        refuse(
            f"operator {name!r}: {function!r} is not a KeyedProcessFunction: it could have neither state nor "
            "timers; inherit from it, or use map"
        )


def require_reducible(node: Operator, name: str, columns: Sequence[str], keys: Sequence[str]) -> None:
    """Check that the records of each key can be folded into one of these columns."""
    if node.bounded:
        refuse(
            f"operator {name!r}: reduce over the bounded {node.name!r}: each record would give an output; "
            "use window(EndOfStream(), by=...).reduce(...), which gives one for each key"
        )
    missing = [each for each in keys if each not in columns]
    unknown = [each for each in columns if each not in node.columns]
    if missing or unknown:
        what = f"does not have {', '.join(missing)} of its key" if missing else f"has {', '.join(unknown)}"
        refuse(
            f"operator {name!r}: its schema {what}, and it folds records of {', '.join(node.columns)}: an "
            "output would not be a record like its input; name the columns as the input does, key included"
        )


def _require_watermarks(node: Operator, name: str) -> None:
    """Check that records have timestamps and, if the input is unbounded, that watermarks advance."""
    for each in node.upstream:
        if each.bounded:
            continue
        if not each.keeps_timestamps:
            refuse(
                f"operator {name!r} uses event time, and downstream of {each.name!r} a record has no "
                f"timestamp of its own: it would belong to no window; put {name!r} before {each.name!r}, or "
                "use time='processing'"
            )
        topic = each.topic
        if not isinstance(each, Read) or topic is None:
            continue
        strategy = topic.watermark
        if not (strategy.generates if strategy is not None else topic.elements == "tagged"):
            refuse(
                f"operator {name!r} uses event time, and the source {each.name!r} sets no watermarks: "
                "its windows would never be complete; pass watermark= to its topic, for instance "
                f"KafkaTopic({topic.name!r}, ..., event_time='bid_time', "
                "watermark=bounded_out_of_orderness(timedelta(seconds=4))), or use time='processing'"
            )


def _inner_trigger(config: WindowConfig) -> Trigger:
    trigger: Trigger = config.effective_trigger
    while isinstance(trigger, Purging):
        trigger = trigger.inside
    return trigger
