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

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from flowcore.api.decisions import Decision
from flowcore.api.operators import Operator, upstream
from flowcore.durations import MILLISECOND
from flowcore.errors import PlanError
from flowcore.flush.config import BufferOutput
from flowcore.planner.model import Flush, LiveQuery
from flowcore.planner.rules.flush_chains import Arrival, Place, arrival, find_flushed_topics, order_by_topics
from flowcore.planner.rules.flush_reasons import (
    ONE_STATE,
    after_arrival,
    by_key_group,
    by_trigger,
    interval_of,
    off,
    show_ms,
    with_front,
)
from flowcore.settings import Settings

__all__ = ["decide_flushes", "own_buffer", "select_buffered"]


def select_buffered(operators: Iterable[Operator], settings: Settings) -> frozenset[Operator]:
    """The operators that have an interval and allow it."""
    return frozenset(
        node for node in operators if interval_of(node, settings) and node.flush_obstacle() is None
    )


def own_buffer(path: Iterable[Operator], held: Container[Operator]) -> Operator | None:
    """The Python function that needs a buffer behind it, among the operators in front of one sink.

    It is the first one that is held back, where no operator keeps state.
    """
    live = [node for node in path if not node.bounded]
    if any(node.keeps_state for node in live):
        return None
    return next((node for node in live if node in held), None)


def decide_flushes(queries: tuple[LiveQuery, ...], settings: Settings) -> tuple[LiveQuery, ...]:
    """The queries with what is held back in them.

    Raises:
        PlanError: An operator has an interval of its own, and nothing can hold its output back there.
    """
    arrivals: dict[Place, Arrival] = {}
    done: dict[str, LiveQuery] = {}
    for query in order_by_topics(queries):
        arriving = arrival(query, arrivals)
        done[query.name] = _flushed(query, settings, arriving)
        arrivals |= find_flushed_topics(done[query.name], arriving)
    return tuple(done[query.name] for query in queries)


def _flushed(query: LiveQuery, settings: Settings, arriving: Arrival | None) -> LiveQuery:
    held = select_buffered(query.operators, settings)
    decided: dict[Operator, Flush] = {}
    for node in query.operators:
        if node in held:
            decided[node] = _held(node, query, decided, settings, arriving)
        else:
            decided[node] = Flush(node, "off", off(node, query, settings))
    return replace(query, flushes=tuple(decided.values()))


def _held(
    node: Operator,
    query: LiveQuery,
    decided: Mapping[Operator, Flush],
    settings: Settings,
    arriving: Arrival | None,
) -> Flush:
    state = _state(query)
    front = _front(node, decided)
    if query.mode.value == "realtime":
        why = "real-time mode was asked for, and puts out each change at once"
        return Flush(
            node, "off", Decision("off", (why,), ("leave the mode to the plan, or ask for micro-batch",))
        )
    if front is not None:
        first = decided[front]
        return Flush(node, "with", with_front(node, first, settings), node.buffer_key, first.config, front)
    if state is not None and state is not node:
        return _second_state(node, state)
    config = _config(node, settings)
    in_time = arriving is not None and arriving.interval_ms >= interval_of(node, settings)
    if node.emits_once_a_batch and arriving and in_time and query.mode.value != "slice":
        config = replace(config, interval_ms=arriving.gathered_ms)
        decision = after_arrival(node, arriving, settings)
        return Flush(node, "trigger", decision, node.buffer_key, config, arriving.after)
    if node.emits_once_a_batch:
        return Flush(node, "trigger", by_trigger(node, query, config, settings), node.buffer_key, config)
    return Flush(node, "key-groups", by_key_group(node, query, config, settings), node.buffer_key, config)


def _state(query: LiveQuery) -> Operator | None:
    return next((n for n in query.operators if n.keeps_state), None)


def _front(node: Operator, decided: Mapping[Operator, Flush]) -> Operator | None:
    """What is flushed in front of it, if from there on one record gives at most one, of the same key."""
    while node.inputs and node.keeps_keys_apart:
        node = node.inputs[0]
        if node in decided and decided[node].way != "off":
            return node
    return None


def _second_state(node: Operator, state: Operator) -> Flush:
    behind = "behind it" if node in upstream(state) else "in front of it"
    why = f"a buffer would be state, and {state.name} {behind} keeps some: {ONE_STATE}"
    change = f"write what {node.name} reads to a topic, and go on from that in another flow"
    if node.flush_ms:
        msg = (
            f"operator {node.name!r}: flush={show_ms(node.flush_ms)}, and {why}; {change}, or leave flush out"
        )
        raise PlanError(msg)
    return Flush(node, "off", Decision("off", (why,), (change,)))


def _config(node: Operator, settings: Settings) -> BufferOutput:
    interval_ms = interval_of(node, settings)
    backlog_ms = settings.backlog_flush_interval // MILLISECOND
    return BufferOutput(
        interval_ms=interval_ms,
        keyed=bool(node.buffer_key),
        memory_buffer_only=settings.flush_memory_only,
        max_entries=settings.cache_entries,
        backlog_interval_ms=max(backlog_ms, interval_ms) if backlog_ms else None,
    )
