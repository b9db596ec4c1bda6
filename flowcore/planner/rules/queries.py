"""The Structured Streaming queries that the unbounded part of a flow is split into.

As few as Spark allows. Branches without state that share a source share a query. An operator with state, and
a DataFrame function, has a query of its own. The bad records of a source leave through exactly one query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flowcore.api.decisions import Decision
from flowcore.api.operators import (
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
        PlanError: A sink is downstream of two operators with state, or cannot run in the requested mode.
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
    return [*shared, *exclusive.values()]


def _find_exclusive(sink: Write, buffered: Mapping[Operator, str]) -> tuple[Operator, ...]:
    """The operators with which a sink needs a query of its own."""
    own = find_own_buffer(sink.upstream, buffered)
    alone = tuple(
        node
        for node in sink.upstream
        if not node.bounded and (node.keeps_state or node.takes_whole_frame or node is own)
    )
    states = [node.name for node in alone if node.keeps_state]
    if len(states) > 1:
        msg = (
            f"sink {sink.name!r} is downstream of the operators {' and '.join(map(repr, states))}, each with "
            "state: Spark keeps one such operator per live query reliably; write the first to a topic and "
            "read that in another flow"
        )
        raise PlanError(msg)
    # Files take the records themselves; only topics can share a frame with other topics.
    return alone if sink.topic is not None else (*alone, sink)


def _sources(sinks: Sequence[Write]) -> set[Operator]:
    return {*find_live_sources(sinks)}


def _build_query(
    sinks: Sequence[Write], requested: Mode | None, buffered: Mapping[Operator, str]
) -> LiveQuery:
    live = tuple(node for node in find_upstream(sinks) if not node.bounded)
    alone = _find_exclusive(sinks[0], buffered)
    sources = [node for node in live if isinstance(node, Read)]
    if alone:
        reason = (
            f"{alone[-1].name} {_what_is_exclusive(alone[-1])}, which nothing else can share a query with"
        )
        split = Decision("its own query", (reason,))
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
