"""Reasons: what does a plan say of results that are held back, or are not?"""

from __future__ import annotations

from datetime import timedelta

from flowcore.api.decisions import Decision
from flowcore.api.operators import Operator, PythonOperator
from flowcore.durations import MILLISECOND, show_duration
from flowcore.flush.config import BufferOutput
from flowcore.planner.model import Flush, LiveQuery
from flowcore.planner.rules.flush_chains import Arrival
from flowcore.settings import Settings

__all__ = [
    "ONE_STATE", "after_arrival", "by_key_group", "by_trigger", "interval_of", "off", "show_ms", "why_held",
    "with_front",
]  # fmt: skip

ONE_STATE = "Spark keeps one operator with state per query reliably"
_MAX_INTERVAL = "execution.flush.max-interval"


def interval_of(node: Operator, settings: Settings) -> int:
    """How long an operator's output may be held back, in milliseconds; 0 for not at all."""
    return settings.flush_interval // MILLISECOND if node.flush_ms is None else node.flush_ms


def why_held(node: Operator, settings: Settings) -> str:
    """Where its interval comes from."""
    length = show_ms(interval_of(node, settings))
    if node.flush_ms is None:
        return f"{_MAX_INTERVAL} is {length}"
    return f"flush={length} is declared with {node.name}"


def off(node: Operator, query: LiveQuery, settings: Settings) -> Decision:
    """Why nothing is held back, and what would change that."""
    found = node.flush_obstacle()
    if found is not None and not found.change:
        return Decision("off", (found.why,))
    unset = "flush=0 is declared with it" if node.flush_ms == 0 else "no flush interval is set"
    reasons = [] if interval_of(node, settings) else [unset]
    change = [] if interval_of(node, settings) else [f"set {_MAX_INTERVAL}, or flush= on {node.name}"]
    if found is not None:
        reasons.append(found.why)
        change.append(found.change)
    elif node.emits_once_a_batch and query.mode.value != "realtime":
        reasons.append("the query's own trigger already gives one output for each key and batch")
    return Decision("off", tuple(reasons), tuple(change))


def with_front(node: Operator, front: Flush, settings: Settings) -> Decision:
    """It leaves with what is flushed in front of it."""
    name, wanted_ms = front.operator.name, interval_of(node, settings)
    reasons = [
        why_held(node, settings),
        f"what it reads leaves {name} {front.decision.value}",
        "one record gives at most one of the same key, so it puts out once an interval too",
    ]
    if front.config is None or (front.config.interval_ms or 0) >= wanted_ms:
        return Decision(f"with {name}", tuple(reasons))
    reasons.append(f"a longer interval would need a buffer of its own, and {ONE_STATE}")
    return Decision(f"with {name}", tuple(reasons), (f"give {name} flush={show_ms(wanted_ms)}",))


def by_trigger(node: Operator, query: LiveQuery, config: BufferOutput, settings: Settings) -> Decision:
    """Batches as far apart as the interval are enough."""
    reasons = [why_held(node, settings), _replaces(node)]
    once = f"{node.name} is Spark's own aggregate, which puts out once for each key and batch"
    if query.mode.value == "slice":
        return Decision("once, with the slice", (*reasons, once, "a slice is one batch"))
    trigger_ms = settings.trigger_interval // MILLISECOND
    if trigger_ms >= (config.interval_ms or 0):
        own = f"execution.trigger-interval is {show_ms(trigger_ms)}, so batches are that far apart anyway"
        return Decision(f"every {show_ms(trigger_ms)}, by the trigger", (*reasons, once, own))
    reasons += [f"{once}: batches as far apart as the interval are enough"]
    reasons += ["what comes meanwhile waits in its topic, and a backlog is one batch"]
    return Decision(f"every {show_ms(config.interval_ms)}, by the trigger", tuple(reasons))


def after_arrival(node: Operator, arriving: Arrival, settings: Settings) -> Decision:
    """What it reads has been held back already."""
    name = arriving.after.name if arriving.after else f"topic {arriving.topic}"
    reasons = (
        why_held(node, settings),
        f"topic {arriving.topic} fills once in {show_ms(arriving.interval_ms)}: results leave no more often",
        "another interval would only delay them; what belongs to one flush is gathered for a tenth of it",
    )
    return Decision(f"{show_ms(arriving.gathered_ms)} after {name}, by the trigger", reasons)


def by_key_group(node: Operator, query: LiveQuery, config: BufferOutput, settings: Settings) -> Decision:
    """A buffer keeps what batches have put out."""
    reasons = [why_held(node, settings), _replaces(node), _why_buffer(node)]
    reasons.append(_in_backlog(config))
    if settings.flush_memory_only:
        reasons.append(
            f"execution.flush.memory-buffer-only is true: also when {settings.cache_entries:,} records wait "
            "(state.backend.cache.max-entries-num)"
        )
    if query.mode.value == "slice":
        reasons.append("all that a slice reads is backlog")
        return Decision(_of_slice(config), tuple(reasons))
    return Decision(f"every {show_ms(config.interval_ms)}, by key group", tuple(reasons))


def _in_backlog(config: BufferOutput) -> str:
    setting = f"{_MAX_INTERVAL}-during-backlog is {show_ms(config.backlog_interval_ms)}"
    if config.backlog_interval_ms is None:
        return f"in backlog when that is gone, and not before ({setting})"
    return f"in backlog every {show_ms(config.backlog_interval_ms)}, and when that is gone ({setting})"


def _of_slice(config: BufferOutput) -> str:
    if config.backlog_interval_ms is None:
        return "once, at the slice's end, by key group"
    return f"every {show_ms(config.backlog_interval_ms)} and at the slice's end, by key group"


def _replaces(node: Operator) -> str:
    key = node.buffer_key
    place = f"of the same {', '.join(key)}" if key else "as it is made in one place"
    return f"its later output replaces the earlier one {place}"


def _why_buffer(node: Operator) -> str:
    if isinstance(node, PythonOperator):
        return "nothing in the query keeps one record for each key"
    return "its input is processed as it comes, as that moves its watermarks and timers"


def show_ms(length_ms: int | None) -> str:
    """A length as settings write it."""
    return show_duration(timedelta(milliseconds=length_ms or 0))
