"""Flush: whose output is held back so that only the latest of each key leaves, and by what?

Held back is what has an interval, is idempotent, and is keyed or made in one place (`graph.flushing`). Two
things can do it, with equal results. *The trigger*: batches as far apart as the interval; Spark's own
aggregate puts out once for each key and batch, and what comes meanwhile waits in its topic. *A buffer by key
group*: where input has to be processed as it comes, because it moves watermarks and timers, or where nothing
else keeps one record for each key. It is state, and Spark keeps one operator with state in a query, so
what follows without a buffer of its own leaves with the flush in front of it: delays do not add up.

Source: FLIP-365, Introduce flush interval to adjust the interval of emitting results.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from datetime import timedelta

from flowcore.durations import MILLISECOND, show_duration
from flowcore.errors import PlanError
from flowcore.flush.config import BufferOutput
from flowcore.graph.checks import key_passed
from flowcore.graph.flushing import buffer_key, obstacle
from flowcore.graph.operators import (
    Aggregate,
    Filter,
    Join,
    KeyGroupOperator,
    Map,
    Operator,
    PythonOperator,
    Select,
    Where,
    WithColumns,
    upstream,
)
from flowcore.planner.plan import Decision, Flush, LiveQuery
from flowcore.settings import Settings

__all__ = ["MAX_INTERVAL", "flushed", "held_back", "interval_of", "own_buffer", "why_held"]

MAX_INTERVAL = "execution.flush.max-interval"
_NO_INTERVAL = "no flush interval is set"
_ONE_STATE = "Spark keeps one operator with state per query reliably"


def interval_of(node: Operator, settings: Settings) -> int:
    """How long an operator's output may be held back, in milliseconds; 0 for not at all."""
    return settings.flush_interval // MILLISECOND if node.flush_ms is None else node.flush_ms


def held_back(operators: Iterable[Operator], settings: Settings) -> frozenset[Operator]:
    """The operators that have an interval and allow it."""
    return frozenset(node for node in operators if interval_of(node, settings) and obstacle(node) is None)


def own_buffer(path: Iterable[Operator], held: Container[Operator]) -> Operator | None:
    """The Python function that needs a buffer behind it, among the operators in front of one sink.

    It is the first one that is held back, where no operator keeps state.
    """
    live = [node for node in path if not node.bounded]
    if any(isinstance(node, Aggregate | KeyGroupOperator) for node in live):
        return None
    return next((node for node in live if node in held), None)


def why_held(node: Operator, settings: Settings) -> str:
    """Where its interval comes from."""
    length = _shown(interval_of(node, settings))
    if node.flush_ms is None:
        return f"{MAX_INTERVAL} is {length}"
    return f"flush={length} is declared with {node.name}"


def flushed(query: LiveQuery, settings: Settings) -> LiveQuery:
    """The query with what is held back in it.

    Raises:
        PlanError: An operator has an interval of its own, and nothing can hold its output back there.
    """
    held = held_back(query.operators, settings)
    decided: dict[Operator, Flush] = {}
    for node in query.operators:
        if node in held:
            decided[node] = _held(node, query, decided, settings)
        else:
            decided[node] = Flush(node, "off", _off(node, query, settings))
    return replace(query, flushes=tuple(decided.values()))


def _off(node: Operator, query: LiveQuery, settings: Settings) -> Decision:
    found = obstacle(node)
    if found is not None and not found.change:
        return Decision("off", (found.why,))
    unset = "flush=0 is declared with it" if node.flush_ms == 0 else _NO_INTERVAL
    reasons = [] if interval_of(node, settings) else [unset]
    change = [] if interval_of(node, settings) else [f"set {MAX_INTERVAL}, or flush= on {node.name}"]
    if found is not None:
        reasons.append(found.why)
        change.append(found.change)
    elif isinstance(node, Aggregate) and query.mode.value != "realtime":
        reasons.append("the query's own trigger already gives one output for each key and batch")
    return Decision("off", tuple(reasons), tuple(change))


def _held(node: Operator, query: LiveQuery, decided: dict[Operator, Flush], settings: Settings) -> Flush:
    state = _state(query)
    front = _front(node, decided)
    if query.mode.value == "realtime":
        why = "real-time mode was asked for, and puts out each change at once"
        return Flush(
            node, "off", Decision("off", (why,), ("leave the mode to the plan, or ask for micro-batch",))
        )
    if front is not None:
        return _with(node, decided[front], settings)
    if state is not None and state is not node:
        return _second_state(node, state)
    config = _config(node, settings)
    if isinstance(node, Aggregate):
        return Flush(node, "trigger", _by_trigger(node, query, config, settings), buffer_key(node), config)
    return Flush(node, "key-groups", _by_key_group(node, query, config, settings), buffer_key(node), config)


def _state(query: LiveQuery) -> Operator | None:
    return next((n for n in query.operators if isinstance(n, Aggregate | KeyGroupOperator)), None)


def _front(node: Operator, decided: dict[Operator, Flush]) -> Operator | None:
    """What is flushed in front of it, if from there on one record gives at most one, of the same key."""
    while node.inputs and _one_to_one(node):
        node = node.inputs[0]
        if node in decided and decided[node].way != "off":
            return node
    return None


def _one_to_one(node: Operator) -> bool:
    match node:
        case Select() | WithColumns() | Where() | Filter():
            return node.key is not None
        case Join():
            return node.how in ("semi", "anti")
        case Map():
            return node.key is not None and node.key == key_passed(node.inputs[0], node.passes)
        case _:
            return False


def _second_state(node: Operator, state: Operator) -> Flush:
    behind = "behind it" if node in upstream(state) else "in front of it"
    why = f"a buffer would be state, and {state.name} {behind} keeps some: {_ONE_STATE}"
    change = f"write what {node.name} reads to a topic, and go on from that in another flow"
    if node.flush_ms:
        msg = (
            f"operator {node.name!r}: flush={_shown(node.flush_ms)}, and {why}; {change}, or leave flush out"
        )
        raise PlanError(msg)
    return Flush(node, "off", Decision("off", (why,), (change,)))


def _with(node: Operator, front: Flush, settings: Settings) -> Flush:
    name = front.operator.name
    reasons = [why_held(node, settings), f"what it reads leaves {name} {front.decision.value}"]
    reasons.append("one record gives at most one of the same key, so it puts out once an interval too")
    shorter = front.config is not None and (front.config.interval_ms or 0) < interval_of(node, settings)
    change = (f"give {name} flush={_shown(interval_of(node, settings))}",) if shorter else ()
    if shorter:
        reasons.append(f"a longer interval would need a buffer of its own, and {_ONE_STATE}")
    decision = Decision(f"with {name}", tuple(reasons), change)
    return Flush(node, "with", decision, buffer_key(node), front.config, front.operator)


def _config(node: Operator, settings: Settings) -> BufferOutput:
    interval_ms = interval_of(node, settings)
    backlog_ms = settings.backlog_flush_interval // MILLISECOND
    return BufferOutput(
        interval_ms=interval_ms,
        keyed=bool(buffer_key(node)),
        memory_buffer_only=settings.flush_memory_only,
        max_entries=settings.cache_entries,
        backlog_interval_ms=max(backlog_ms, interval_ms) if backlog_ms else None,
    )


def _by_trigger(node: Aggregate, query: LiveQuery, config: BufferOutput, settings: Settings) -> Decision:
    reasons = [why_held(node, settings), _replaces(node)]
    once = f"{node.name} is Spark's own aggregate, which puts out once for each key and batch"
    if query.mode.value == "slice":
        return Decision("once, with the slice", (*reasons, once, "a slice is one batch"))
    trigger_ms = settings.trigger_interval // MILLISECOND
    if trigger_ms >= (config.interval_ms or 0):
        own = f"execution.trigger-interval is {_shown(trigger_ms)}, so batches are that far apart anyway"
        return Decision(f"every {_shown(trigger_ms)}, by the trigger", (*reasons, once, own))
    reasons += [f"{once}: batches as far apart as the interval are enough"]
    reasons += ["what comes meanwhile waits in its topic, and a backlog is one batch"]
    return Decision(f"every {_shown(config.interval_ms)}, by the trigger", tuple(reasons))


def _by_key_group(node: Operator, query: LiveQuery, config: BufferOutput, settings: Settings) -> Decision:
    reasons = [why_held(node, settings), _replaces(node), _why_buffer(node)]
    backlog = config.backlog_interval_ms
    reasons.append(
        f"in backlog {f'every {_shown(backlog)}' if backlog else 'when that is gone'}, as "
        f"{MAX_INTERVAL}-during-backlog is {_shown(backlog)}"
    )
    if settings.flush_memory_only:
        reasons.append(
            f"execution.flush.memory-buffer-only is true: also when {settings.cache_entries:,} records wait "
            "(state.backend.cache.max-entries-num)"
        )
    if query.mode.value == "slice":
        return Decision("with the slice, by key group", tuple(reasons))
    return Decision(f"every {_shown(config.interval_ms)}, by key group", tuple(reasons))


def _replaces(node: Operator) -> str:
    key = buffer_key(node)
    place = f"of the same {', '.join(key)}" if key else "as it is made in one place"
    return f"its later output replaces the earlier one {place}"


def _why_buffer(node: Operator) -> str:
    if isinstance(node, PythonOperator):
        return "nothing in the query keeps one record for each key"
    return "its input is processed as it comes, as that moves its watermarks and timers"


def _shown(length_ms: int | None) -> str:
    return show_duration(timedelta(milliseconds=length_ms or 0))
