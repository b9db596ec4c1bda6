"""Decide whose output is buffered, and how, so that only the latest output of each key is emitted.

Output is buffered if its operator has an interval, is idempotent, and has a key or one place where it is made
(`Operator.flush_obstacle`). There are two ways, with equal results:

- *The trigger*: batches as far apart as the interval. Spark's own aggregate emits once for each key and
  batch, and its input waits in its topic.
- *A buffer by key group*: where input must be processed at once, because it moves watermarks and timers, or
  where nothing else keeps one record for each key. The buffer of windows and process functions is in their
  own key groups. The buffer of any other function is an operator by key group.

Delays do not add up: a downstream operator emits with the upstream flush, or soon after it.

Source: FLIP-365, Introduce flush interval to adjust the interval of emitting results.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.operators import Operator, StatefulOperator, WithEventTime
from flowcore.durations import MILLISECOND, show_ms
from flowcore.errors import PlanError
from flowcore.flush.config import BufferOutput
from flowcore.planner.model import Flush, LiveQuery
from flowcore.planner.rules.channels import find_channel_obstacles
from flowcore.planner.rules.flush_chains import (
    Arrival,
    TopicAddress,
    find_arrival,
    find_flushed_topics,
    find_upstream_buffer,
    gathered_ms,
    interval_between,
    order_by_topics,
)
from flowcore.planner.rules.flush_reasons import (
    explain_arrival,
    explain_key_groups,
    explain_off,
    explain_trigger,
    explain_upstream,
    interval_of,
)
from flowcore.planner.ways import find_ways
from flowcore.settings import Settings

__all__ = ["decide_flushes", "select_buffered"]


def select_buffered(operators: Iterable[Operator], settings: Settings) -> frozenset[Operator]:
    """The operators that have an interval and allow it."""
    return frozenset(
        node for node in operators if interval_of(node, settings) and node.flush_obstacle() is None
    )


def decide_flushes(queries: tuple[LiveQuery, ...], settings: Settings) -> tuple[LiveQuery, ...]:
    """The queries with the flush of each of their operators.

    Raises:
        PlanError: An operator has an interval of its own, and nothing can buffer its output there.
    """
    arrivals: dict[TopicAddress, Arrival] = {}
    done: dict[str, LiveQuery] = {}
    for query in order_by_topics(queries):
        arriving = find_arrival(query, arrivals)
        buffered = select_buffered(query.operators, settings)
        flushes: dict[Operator, Flush] = {}
        for node in query.operators:
            if node in buffered:
                flushes[node] = _decide_flush(node, query, flushes, settings, arriving)
            else:
                flushes[node] = Flush(node, "off", explain_off(node, query, settings))
        done[query.name] = replace(query, flushes=tuple(flushes.values()))
        arrivals |= find_flushed_topics(done[query.name], arriving)
    return tuple(done[query.name] for query in queries)


def _decide_flush(
    node: Operator,
    query: LiveQuery,
    decided: Mapping[Operator, Flush],
    settings: Settings,
    arriving: Arrival | None,
) -> Flush:
    if query.mode.value == "realtime":
        why = "real-time mode was asked for, and emits each change at once"
        change = "leave the mode to the plan, or ask for micro-batch"
        return Flush(node, "off", Decision("off", (why,), (change,)))
    first = _find_upstream_flush(node, decided)
    obstacle = next(_find_buffer_obstacles(node, query, decided), None)
    if first is not None and (obstacle or interval_between(first, decided) >= interval_of(node, settings)):
        decision = explain_upstream(node, first, settings, obstacle)
        return Flush(node, "with", decision, node.buffer_key, first.config, first.operator)
    if obstacle is not None:
        return _refuse_buffer(node, obstacle)
    config = _buffer_config(node, settings)
    if not node.emits_once_a_batch:
        return _buffer_by_key_group(node, query, config, decided, settings)
    in_time = arriving is not None and arriving.interval_ms >= interval_of(node, settings)
    if arriving and in_time and query.mode.value != "slice":
        config = replace(config, interval_ms=arriving.gathered_ms)
        decision = explain_arrival(node, arriving, settings)
        return Flush(node, "trigger", decision, node.buffer_key, config, arriving.after)
    return Flush(node, "trigger", explain_trigger(node, query, config, settings), node.buffer_key, config)


def _buffer_by_key_group(
    node: Operator,
    query: LiveQuery,
    config: BufferOutput,
    decided: Mapping[Operator, Flush],
    settings: Settings,
) -> Flush:
    """A buffer of its own, which is flushed soon after the upstream one if that is flushed no more often."""
    first = find_upstream_buffer(node, decided)
    if first is not None and (arriving_ms := interval_between(first, decided)) >= (config.interval_ms or 0):
        config = replace(config, gather_ms=min(gathered_ms(arriving_ms), config.interval_ms or 1))
    else:
        first = None
    decision = explain_key_groups(node, query, config, settings, first)
    return Flush(node, "key-groups", decision, node.buffer_key, config, first.operator if first else None)


def _find_upstream_flush(node: Operator, decided: Mapping[Operator, Flush]) -> Flush | None:
    """The upstream flush, if each of its records gives at most one record, of the same key."""
    while node.inputs and node.keeps_keys_apart:
        node = node.inputs[0]
        if node in decided and decided[node].way != "off":
            return decided[node]
    return None


def _find_buffer_obstacles(
    node: Operator, query: LiveQuery, decided: Mapping[Operator, Flush]
) -> Iterator[Obstacle]:
    """The operators with which a buffer of its own, as an operator by key group, cannot share a query."""
    if node.emits_once_a_batch or isinstance(node, StatefulOperator):
        return
    for each in query.operators:
        if each in node.upstream and each.needs_own_query:
            kind = "is a DataFrame function" if each.takes_whole_frame else "is Spark's own aggregate"
            found = _obstacle(node, f"{each.name} upstream {kind}", before=True)
            own = "" if each.takes_whole_frame else f"give {node.name} a flush= of its own, or "
            yield found._replace(change=f"{own}{found.change}")
        if isinstance(each, WithEventTime) and node in each.upstream:
            # The channels of a buffer's output are key groups, not partitions.
            yield _obstacle(node, f"{each.name} downstream makes watermarks of partitions", before=False)
    known = {each for each, flush in decided.items() if flush.way == "key-groups"}
    keyed = [each for each in query.operators if each in known or isinstance(each, StatefulOperator)]
    for reader in (node, *keyed):
        if reader is node or node in find_ways(reader, [*keyed, node]):
            for why in find_channel_obstacles(reader, [*keyed, node]):
                yield _obstacle(node, why, before=reader is node)


def _obstacle(node: Operator, why: str, *, before: bool) -> Obstacle:
    place = "upstream" if before else "downstream"
    return Obstacle(
        f"a buffer would be state by key group, and {why}",
        f"cut the flow {place} of {node.name} with .through('topic')",
    )


def _refuse_buffer(node: Operator, obstacle: Obstacle) -> Flush:
    if node.flush_ms:
        interval = show_ms(node.flush_ms)
        msg = (
            f"operator {node.name!r}: flush={interval}, and {obstacle.why}; {obstacle.change}, or leave "
            "flush out"
        )
        raise PlanError(msg)
    return Flush(node, "off", Decision("off", (obstacle.why,), (obstacle.change,)))


def _buffer_config(node: Operator, settings: Settings) -> BufferOutput:
    interval_ms = interval_of(node, settings)
    backlog_ms = settings.backlog_flush_interval // MILLISECOND
    return BufferOutput(
        interval_ms=interval_ms,
        keyed=bool(node.buffer_key),
        memory_buffer_only=settings.flush_memory_only,
        max_entries=settings.cache_entries,
        backlog_interval_ms=max(backlog_ms, interval_ms) if backlog_ms else None,
        at_checkpoint=node.attributes().output_on_checkpoint,
    )
