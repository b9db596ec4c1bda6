"""Check that an operator with state can emit results, and correct ones.

Each function raises `PlanError` with the operator's name.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from flowcore.api.checks import refuse
from flowcore.api.expressions import Expression, resolve
from flowcore.api.functions import name_of, require_arguments, require_function
from flowcore.api.missing_watermarks import find_missing_watermarks
from flowcore.api.operators import Operator
from flowcore.api.type_checks import require_ordered
from flowcore.api.updating_rows import find_origin, find_replacing
from flowcore.api.window_assigners import GapColumn
from flowcore.api.window_operator import Window
from flowcore.durations import MILLISECOND, show_given
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
from flowcore.windows.config import WindowTime
from flowcore.windows.functions import PlainProcess
from flowcore.windows.triggers import ContinuousEventTime, Delta, EventTimeTrigger, Never, Purging, Trigger

__all__ = [
    "deduplication_ms",
    "deduplication_time",
    "process_function",
    "rank_order",
    "reads_records",
    "replaces_itself",
    "require_aggregate_function",
    "require_first",
    "require_keyed_process",
    "require_one_firing",
    "require_order_in_time",
    "require_rank_name",
    "require_rankable",
    "require_reducible",
    "require_timestamp",
    "require_unbounded_for_ttl",
    "require_used",
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
    if config.ttl_ms is not None:
        require_unbounded_for_ttl(node, name)
    require_timestamp(node, name, timestamp, needed=config.assigner.bounded)
    if config.has_lateness or isinstance(_inner_trigger(config), (EventTimeTrigger, ContinuousEventTime)):
        missing = find_missing_watermarks(node, name)
        if missing is not None:
            refuse(missing)


def require_unbounded_for_ttl(node: Operator, name: str) -> None:
    """Check that a time to live has an effect."""
    if node.bounded:
        refuse(
            f"operator {name!r}: ttl= over the bounded {node.name!r}: which records it forgets would depend "
            "on how fast they are read; leave ttl out"
        )


def require_timestamp(node: Operator, name: str, timestamp: Expression | None, *, needed: bool) -> None:
    """Check that rows of a bounded input have a declared time if needed, and no others have one."""
    if timestamp is not None and not node.bounded:
        refuse(
            f"operator {name!r}: timestamp={timestamp.text!r} over the unbounded {node.name!r}: watermarks "
            "follow the timestamps of its source, and records would be late; set event_time= there, or use "
            "with_event_time(...)"
        )
    if timestamp is None and node.bounded and needed:
        refuse(
            f"operator {name!r}: rows of the bounded {node.name!r} have no timestamp: they would belong to "
            "no window; pass timestamp= a column or expression, BIGINT milliseconds or TIMESTAMP"
        )


def require_first(node: Operator, name: str, keep: str) -> None:
    """Check that dropping the later records of a key loses nothing."""
    if keep != "first":
        refuse(
            f"operator {name!r}: keep={keep!r}: which record is the last one of its key is known only when "
            "no more can come, so it would leave late, or replace what has left; use latest(by=...), whose "
            "output replaces earlier output"
        )
    if node.updating or find_replacing(node) is not None:
        refuse(
            f"operator {name!r}: records of {node.name!r} replace earlier ones: the first of a key would "
            f"pass, and no later value of it; deduplicate {find_origin(node)}"
        )


def require_rankable(node: Operator, name: str) -> None:
    """Check that no row of a rank is taken back."""
    if node.updating or find_replacing(node) is not None:
        refuse(
            f"operator {name!r}: records of {node.name!r} replace earlier ones: what was replaced would keep "
            f"its rank; rank {find_origin(node)}"
        )


def require_sortable(node: Operator, name: str) -> None:
    """Check that records have timestamps and watermarks, and that none takes an earlier one back."""
    if node.bounded:
        refuse(
            f"operator {name!r}: sort of the bounded {node.name!r}: readers of a table do not see its order; "
            "leave it out, or use apply(lambda frame: frame.orderBy('bid_time')) right before a sink"
        )
    if node.updating or find_replacing(node) is not None:
        refuse(
            f"operator {name!r}: records of {node.name!r} replace earlier ones: one that comes late would "
            f"leave after one that it must not replace; sort {find_origin(node)}"
        )
    missing = find_missing_watermarks(node, name, only_event_time=True)
    if missing is not None:
        refuse(missing)


def require_order_in_time(node: Operator, name: str, timestamp: Expression | None) -> None:
    """Check that rows of a bounded input have times by which the newest is known."""
    if node.bounded and timestamp is None:
        refuse(
            f"operator {name!r}: rows of the bounded {node.name!r} are in no order: it is not known which "
            "one of a key is the latest; pass timestamp= a column or expression, BIGINT milliseconds or "
            "TIMESTAMP"
        )
    require_timestamp(node, name, timestamp, needed=False)


def rank_order(
    node: Operator, name: str, n: object, order: str | Sequence[str]
) -> tuple[tuple[str, bool], ...]:
    """Check an order, and parse it to columns, each with whether larger values come first."""
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        refuse(f"operator {name!r}: n={n!r} is not a number of ranks; pass for instance top_n(3, ...)")
    texts = (order,) if isinstance(order, str) else tuple(order or ())
    if not texts:
        refuse(f"operator {name!r}: order={order!r} orders nothing; pass for instance order='price desc'")
    found = []
    for text in texts:
        column, direction = text.strip(), "asc"
        words = column.rsplit(None, 1)
        if len(words) > 1 and words[1].lower() in ("asc", "desc"):
            column, direction = words[0], words[1].lower()
        (known,) = resolve((column.strip("`"),), node.columns, name, f"order={text!r}")
        found.append((known, direction == "desc"))
    require_ordered(node, name, [column for column, _ in found])
    return tuple(found)


def require_used(column: str, windows: Window, name: str) -> None:
    """Check that the records of windows have a column by which they are ranked."""
    if column in windows.by:
        refuse(
            f"operator {name!r}: order by {column!r}, which is in by=: all records of a window are equal in "
            "it, and it would order nothing; leave it out of the order"
        )
    if column not in windows.uses:
        refuse(
            f"operator {name!r}: order by {column!r}, which is not in uses={list(windows.uses)}: the records "
            "of a window would not have it; add it to uses"
        )


def require_rank_name(rank: object, others: Sequence[str], name: str) -> None:
    """Check the name of the column of ranks."""
    if not isinstance(rank, str) or not rank:
        refuse(
            f"operator {name!r}: rank={rank!r} is not the name of a column; pass for instance rank='place'"
        )
    if rank.lower() in map(str.lower, others):
        refuse(
            f"operator {name!r}: rank={rank!r} is also another column of its output: downstream operators "
            "could not say which one they mean; pass another name, for instance rank='place'"
        )


def require_one_firing(config: WindowConfig, name: str) -> None:
    """Check that windows emit once: ranks of an earlier firing would be counted again downstream."""
    given = {
        "trigger": config.trigger,
        "evictor": config.evictor,
        "allowed_lateness": config.allowed_lateness_ms or None,
    }
    found = [each for each, value in given.items() if value is not None]
    if not (config.assigner.bounded or isinstance(config.assigner, EndOfStreamWindows)):
        found.append("windows without end")
    if found:
        refuse(
            f"operator {name!r}: top_n with {' and '.join(found)}: a window may emit several times then, and "
            "a record that keeps its rank would be counted again downstream; use windows that end, without "
            "these, or process(...) with a function that ranks"
        )


def deduplication_ms(name: str, within: timedelta | None) -> int | None:
    """Check the length of a deduplication, and convert it to milliseconds."""
    if within is not None and (
        not isinstance(within, timedelta) or within <= timedelta(0) or within % MILLISECOND
    ):
        refuse(
            f"operator {name!r}: within={show_given(within)} is not a whole number of milliseconds above 0: "
            "it would not be known what repeats what; pass for instance timedelta(hours=1), or None to keep "
            "every key for ever"
        )
    return None if within is None else within // MILLISECOND


def deduplication_time(node: Operator, name: str, within_ms: int | None) -> WindowTime:
    """The time in which repeats are found: event time if there are timestamps and watermarks."""
    timed = node.bounded or find_missing_watermarks(node, name) is None
    return "event" if timed and within_ms is not None else "processing"


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
    if isinstance(function, type):
        refuse(
            f"operator {name!r}: {function.__name__} is a class: each window would make an object of it "
            f"and call none of its methods; pass an object, for instance {function.__name__}(), or a function"
        )
    process = getattr(function, "process", None)
    if not callable(process):
        require_function(function, name, ("context", "records"))
        return PlainProcess(function)
    require_arguments(process, name, ("context", "records"), f"process of {name_of(function)}")
    if not callable(getattr(function, "clear", None)):
        refuse(
            f"operator {name!r}: {function!r} has process and no clear, which is called when a window "
            "ends: the run would stop there; add clear(context)"
        )
    found: ProcessFunction = function
    return found


def require_aggregate_function(function: Any, name: str) -> None:
    """Check for an object with the four methods of an aggregate."""
    methods = {
        "create": (),
        "add": ("accumulator", "record"),
        "merge": ("first", "second"),
        "result": ("accumulator",),
    }
    missing = [method for method in methods if not callable(getattr(function, method, None))]
    if missing or isinstance(function, type):
        what = f"has no {', '.join(missing)}" if missing else "is a class; pass an object of it"
        refuse(
            f"operator {name!r}: {function!r} is not an aggregate function: it {what}; it needs create(), "
            "add(accumulator, record), merge(first, second) and result(accumulator)"
        )
    for method, arguments in methods.items():
        require_arguments(getattr(function, method), name, arguments, f"{method} of {name_of(function)}")


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
    what = name_of(function)
    if function.by_batch():
        require_arguments(
            function.process_batch, name, ("keys", "batch", "context"), f"process_batch of {what}"
        )
        return
    process = function.process
    if getattr(process, "__func__", process) is KeyedProcessFunction.process:
        refuse(
            f"operator {name!r}: {what} has neither process nor process_batch: the first record would fail; "
            "define process(self, record, context)"
        )
    require_arguments(process, name, ("record", "context"), f"process of {what}")


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


def _inner_trigger(config: WindowConfig) -> Trigger:
    trigger: Trigger = config.effective_trigger
    while isinstance(trigger, Purging):
        trigger = trigger.inside
    return trigger
