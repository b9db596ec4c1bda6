"""The Structured Streaming queries that the unbounded part of a flow is split into.

As few as Spark allows. Branches without state that share a source share a query. A chain of operators with
state by key group, and a DataFrame function, has a query of its own; the sinks of all operators of a chain
are in its query. The bad records of a source leave through exactly one query.

The operators of a chain run one after the other in the same batch: each is an exchange, to which records are
shuffled. Everything that one of them reads was emitted by the one before it, so that its watermark is too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from flowcore.api.decisions import Decision
from flowcore.api.operators import (
    MapBatches,
    Operator,
    PythonOperator,
    Read,
    StatefulOperator,
    Write,
)
from flowcore.errors import PlanError
from flowcore.planner.model import LiveQuery, LiveStage, Mode, find_live_sources, find_upstream
from flowcore.planner.rules.flush import find_own_buffer, select_buffered
from flowcore.planner.rules.flush_reasons import explain_interval
from flowcore.planner.rules.modes import choose_mode
from flowcore.settings import Settings

__all__ = ["build_live_stage"]


def build_live_stage(
    operators: tuple[Operator, ...], requested: Mode | None, settings: Settings
) -> LiveStage | None:
    """The live queries that write to the unbounded sinks, None if there are none.

    Raises:
        PlanError: A sink is downstream of operators with state that cannot run in one query, or cannot run in
            the requested mode.
    """
    sinks = [node for node in operators if isinstance(node, Write) and not node.bounded]
    if not sinks:
        return None
    chosen = select_buffered(operators, settings)
    buffered = {node: explain_interval(node, settings) for node in operators if node in chosen}
    queries = [_build_query(group, requested, buffered) for group in _group(sinks, buffered)]
    return LiveStage(_add_dead_letters(queries, requested))


def _group(sinks: Sequence[Write], buffered: Mapping[Operator, str]) -> list[list[Write]]:
    exclusive: dict[tuple[Operator, ...], list[Write]] = {}
    shared: list[list[Write]] = []
    for sink in sinks:
        alone = _find_exclusive(sink, buffered)
        if alone:
            exclusive.setdefault(alone, []).append(sink)
            continue
        sources = _sources([sink])
        touching = [group for group in shared if not sources.isdisjoint(_sources(group))]
        shared = [group for group in shared if group not in touching]
        shared.append([*(member for group in touching for member in group), sink])
    return [*shared, *_merge_chains(sinks, exclusive)]


def _merge_chains(
    sinks: Sequence[Write], exclusive: Mapping[tuple[Operator, ...], list[Write]]
) -> list[list[Write]]:
    """Add the sinks of the first operators of a chain to those of the whole chain."""
    merged: dict[tuple[Operator, ...], list[Write]] = {}
    for alone, members in exclusive.items():
        longer = (each for each in exclusive if _is_chain(each) and each[: len(alone)] == alone)
        whole = max(longer, key=len) if _is_chain(alone) else alone
        merged.setdefault(whole, []).extend(members)
    return [sorted(members, key=sinks.index) for members in merged.values()]


def _is_chain(alone: Sequence[Operator]) -> bool:
    return all(isinstance(node, StatefulOperator) for node in alone)


def _find_exclusive(sink: Write, buffered: Mapping[Operator, str]) -> tuple[Operator, ...]:
    """The operators with which a sink needs a query of its own."""
    own = find_own_buffer(sink.upstream, buffered)
    alone = tuple(
        node
        for node in sink.upstream
        if not node.bounded and (node.keeps_state or node.takes_whole_frame or node is own)
    )
    states = [node for node in alone if node.keeps_state]
    if len(states) > 1 and (why := _find_chain_obstacle(alone, states)):
        names = " and ".join(repr(node.name) for node in states)
        msg = (
            f"sink {sink.name!r} is downstream of the operators {names}, each with state: {why}; write the "
            "first to a topic and read that in another flow"
        )
        raise PlanError(msg)
    # Files take the records themselves; only topics can share a frame with other topics.
    return alone if sink.topic is not None else (*alone, sink)


def _find_chain_obstacle(alone: Sequence[Operator], states: Sequence[Operator]) -> str | None:
    """Why operators with state cannot run one after the other in one query; None if they can."""
    for node in alone:
        if not isinstance(node, StatefulOperator):
            kind = "is a DataFrame function" if node.takes_whole_frame else "is Spark's own aggregate"
            if node.keeps_state or node.takes_whole_frame:
                return f"{node.name} {kind}, and only windows and process functions run in a chain"
    for before, node in pairwise(states):
        if before not in node.upstream:
            return f"{before.name} and {node.name} are side by side, and a query runs a single chain of them"
        if any(isinstance(each, Read) and not each.bounded for each in _find_upstream_until(before, node)):
            return f"{node.name} also reads records that {before.name} does not emit"
        for each in node.upstream:
            if isinstance(each, MapBatches) and before in each.upstream:
                # Its outputs would have no channel, so that watermarks would overtake them.
                return (
                    f"{each.name} gets batches, so that nobody knows which key group emitted a record of it"
                )
    return None


def _find_upstream_until(before: Operator, node: Operator) -> set[Operator]:
    """The operators upstream of one of them on paths without another one."""
    found: set[Operator] = set()
    pending = [node]
    while pending:
        fresh = {*pending.pop().inputs} - {before} - found
        found |= fresh
        pending += fresh
    return found


def _sources(sinks: Sequence[Write]) -> set[Operator]:
    return {*find_live_sources(sinks)}


def _build_query(
    sinks: Sequence[Write], requested: Mode | None, buffered: Mapping[Operator, str]
) -> LiveQuery:
    live = tuple(node for node in find_upstream(sinks) if not node.bounded)
    alone = max((_find_exclusive(sink, buffered) for sink in sinks), key=len)
    sources = [node for node in live if isinstance(node, Read)]
    if alone:
        reasons = [
            f"{alone[-1].name} {_what_is_exclusive(alone[-1])}, which nothing else can share a query with"
        ]
        exchanges = [node.name for node in alone if isinstance(node, StatefulOperator)]
        if len(exchanges) > 1:
            number = {2: "two", 3: "three"}.get(len(exchanges), str(len(exchanges)))
            reasons.append(f"it has {number} exchanges: {', then '.join(exchanges)}")
        split = Decision("its own query", tuple(reasons))
    else:
        split = Decision("shared query", ("its branches keep no state, so one read serves them all",))
    return LiveQuery(
        name=sinks[0].name if alone else sources[0].name,
        operators=live,
        results=tuple(dict.fromkeys(each for node in live for each in node.inputs if each.bounded)),
        sinks=tuple(sinks),
        dead_letters=() if alone else tuple(filter(_has_dead_letters, sources)),
        mode=choose_mode(live, requested, buffered),
        split=split,
    )


def _what_is_exclusive(node: Operator) -> str:
    if node.keeps_state:
        return "keeps state"
    if isinstance(node, Write):
        return "writes files"
    return "is a DataFrame function" if node.takes_whole_frame else "has a buffer"


def _add_dead_letters(queries: list[LiveQuery], requested: Mode | None) -> tuple[LiveQuery, ...]:
    """Give the bad records of each source to one query, to one of their own if no other can carry them."""
    covered = {source for query in queries for source in query.dead_letters}
    for carries in (True, False):
        for number, query in enumerate(tuple(queries)):
            fresh = [each for each in query.sources if each not in covered and _has_dead_letters(each)]
            if not carries:
                queries += [_build_dead_letter_query(source, requested) for source in fresh]
            elif _carries_bad_records(query):
                queries[number] = replace(query, dead_letters=(*query.dead_letters, *fresh))
            else:
                continue
            covered.update(fresh)
    return tuple(queries)


def _carries_bad_records(query: LiveQuery) -> bool:
    """Key groups let bad records pass; Python functions would lose their bytes."""
    states = [node for node in query.operators if node.keeps_state]
    if not states or not all(isinstance(node, StatefulOperator) for node in states):
        return False
    if any(node.takes_whole_frame or isinstance(node, PythonOperator) for node in query.operators):
        return False
    return all(sink.topic is not None for sink in query.sinks)


def _build_dead_letter_query(source: Read, requested: Mode | None) -> LiveQuery:
    mode: Mode = "slice" if requested == "slice" else "micro-batch"
    why = f"no other query of {source.name} can carry its bad records to the sink"
    return LiveQuery(
        name=source.name,
        operators=(source,),
        results=(),
        sinks=(),
        dead_letters=(source,),
        mode=Decision(mode, ("nobody waits for a dead letter",)),
        split=Decision("its own query", (why,)),
    )


def _has_dead_letters(source: Read) -> bool:
    topic = source.topic
    return topic is not None and topic.on_error == "dead-letter"
