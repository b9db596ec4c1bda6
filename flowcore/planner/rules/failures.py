"""Decide about records for which a user's function raises, or that lack a required event time.

The record's message goes to the dead letters of its source and the query continues, unless the source
declares ``on_error="fail"`` or the message cannot leave the query unchanged. Records in
and downstream of key groups have no message: dead letters hold the function's input.
"""

from collections.abc import Mapping, Sequence

from flowcore.api.decisions import Decision
from flowcore.api.operators import (
    Deduplicate,
    EventTimeSort,
    MapBatches,
    Operator,
    PythonOperator,
    Read,
    StatefulOperator,
    WithEventTime,
)
from flowcore.planner.model import BoundedStage, Chain, LiveQuery
from flowcore.planner.ways import find_live_sources, find_ways

__all__ = ["decide_failures", "find_source_of_made", "select_dead_letter_sources"]


def decide_failures(runs: BoundedStage | LiveQuery) -> Mapping[Operator, Decision]:
    """What happens to a record that fails, for each operator that calls functions or assigns event time."""
    found = ((node, _decide_failure(node, runs)) for node in runs.operators)
    return {node: decision for node, decision in found if decision is not None}


def _decide_failure(node: Operator, runs: BoundedStage | LiveQuery) -> Decision | None:
    """``"dead letter"``, or what the failure stops; None for an operator for which no record can fail."""
    if isinstance(node, WithEventTime) and isinstance(runs, LiveQuery):
        return _decide_for_message(node, runs)
    if not node.calls_user_functions:
        return None
    if isinstance(runs, BoundedStage):
        return Decision("stops the stage", ("a stage commits a complete result or nothing",))
    if isinstance(node, StatefulOperator):
        return _decide_in_key_group(node, runs, "the function's input")
    chain = next((chain for chain in runs.chains if node in chain.operators), None)
    if batched := _find_apart(node, chain, runs):
        why = f"{batched[0].name} gets batches, so the failed record is not known"
        return _stops_query(why, f"use map or flat_map instead of {batched[0].name}")
    process = chain.process if chain else None
    if process is not None:
        return _decide_in_key_group(node, runs, f"what {process.name} had emitted for it")
    makers = _find_makers(node, runs)
    if makers:
        return _decide_for_made(node, runs, chain, makers)
    return _decide_for_message(node, runs)


def _find_makers(node: Operator, query: LiveQuery) -> list[Operator]:
    """The operators with state upstream whose records were made of many."""
    keyed = (each for each in query.keyed if not isinstance(each, Deduplicate | EventTimeSort))
    return [each for each in keyed if each in node.upstream and each is not node]


def find_source_of_made(chain: Chain, query: LiveQuery) -> Read | None:
    """The source to whose dead letters records go that fail in a chain and were made of many messages.

    Returns:
        None if no such records reach the chain, or if their failure stops the query.
    """
    head = chain.head
    if not _find_makers(head, query) or _find_apart(head, chain, query) or _find_native(head, query):
        return None
    sources = find_live_sources([head])
    return sources[0] if all(each in query.key_group_dead_letters for each in sources) else None


def _find_apart(node: Operator, chain: Chain | None, query: LiveQuery) -> list[Operator]:
    """The functions of batches that made its record, and do not run again on halves with it."""
    ways = find_ways(node, _find_makers(node, query))
    together = () if chain is None or chain.process is not None else chain.operators
    return [each for each in (node, *ways) if isinstance(each, MapBatches) and each not in together]


def _find_direct(node: Operator, query: LiveQuery) -> list[Read]:
    """The sources whose records reach it with their messages."""
    ways = find_ways(node, _find_makers(node, query))
    return find_live_sources(each for each in ways if isinstance(each, Read | WithEventTime))


def _find_native(node: Operator, query: LiveQuery) -> list[Operator]:
    """The operators upstream whose rows only Spark knows, so that no bad record passes them."""
    native = (each for each in node.upstream if not each.bounded and each not in query.keyed)
    return [each for each in native if each.keeps_state or each.takes_whole_frame]


def select_dead_letter_sources(query: LiveQuery) -> tuple[Read, ...]:
    """The sources to whose dead letters failures in and downstream of key groups go, with a function's input.

    There are none if such a failure stops the query.
    """
    if not query.keyed or _find_ends(query):
        return ()
    return tuple(each for each in query.sources if (topic := each.topic) and topic.on_error != "fail")


def _decide_for_message(node: Operator, query: LiveQuery) -> Decision:
    sources = find_live_sources([node])
    strict = [each.name for each in sources if (topic := each.topic) and topic.on_error == "fail"]
    if len(strict) == len(sources):
        return _stopped_by_topic(strict)
    if not query.dead_letters:
        why = f"no bad record can leave it, as {' and '.join(query.split.reasons)}"
        before = [each for each in node.inputs[0].upstream if not each.bounded]
        alone = any(each.keeps_state or each.takes_whole_frame for each in before)
        return _stops_query(why, _cut("upstream of" if alone else "downstream of", node))
    topics = ", ".join(each.dead_letter for each in sources if each in query.dead_letters)
    but = (f"records of {', '.join(strict)} stop it, as on_error='fail' says",) if strict else ()
    return Decision("dead letter", (f"the message goes to {topics} unchanged", *but))


def _decide_for_made(
    node: Operator, query: LiveQuery, chain: Chain | None, makers: Sequence[Operator]
) -> Decision:
    source = find_source_of_made(chain, query) if chain else None
    if chain and source:
        received = f"{makers[-1].name} made its record, so what {chain.head.name} received"
        direct = [
            f"messages go to {each.dead_letter} unchanged"
            for each in _find_direct(chain.head, query)
            if each in query.dead_letters
        ]
        return Decision("dead letter", (f"{received} goes to {source.dead_letter}", *direct))
    strict, native = _find_strict(node, query), _find_native(node, query)
    if strict and not native:
        return _stopped_in_key_group(node, query, strict)
    why = f"{[*makers, *native][-1].name} made its record, so that no message is bad"
    return _stops_query(why, _cut("upstream of", node))


def _decide_in_key_group(node: Operator, query: LiveQuery, content: str) -> Decision:
    strict, sources = _find_strict(node, query), find_live_sources([node])
    if len(strict) == len(sources):
        return _stopped_in_key_group(node, query, strict)
    topics = ", ".join(each.dead_letter for each in sources if each in query.key_group_dead_letters)
    which = f"records of {', '.join(strict)}, timers and windows stop it, as on_error='fail' says"
    undone = "" if isinstance(node, PythonOperator) else ", and what the call changed is undone"
    return Decision("dead letter", (f"{content} goes to {topics}{undone}", *([which] if strict else [])))


def _find_strict(node: Operator, query: LiveQuery) -> list[str]:
    with_dead_letters = query.key_group_dead_letters
    return [each.name for each in find_live_sources([node]) if each not in with_dead_letters]


def _stopped_in_key_group(node: Operator, query: LiveQuery, strict: list[str]) -> Decision:
    if ends := _find_ends(query):
        why = f"{ends[0]}, so nothing but its records can leave the query"
        return _stops_query(why, _cut("downstream of", node))
    return _stopped_by_topic(strict)


def _find_ends(query: LiveQuery) -> list[str]:
    """What lets only its own records leave the query, downstream of key groups."""
    files = [f"{sink.name} writes files" for sink in query.sinks if sink.topic is None]
    frames = [each for each in query.operators if each.takes_whole_frame and not each.bounded]
    keyed = query.keyed
    return files + [
        f"{each.name} takes a whole frame" for each in frames if any(one in keyed for one in each.upstream)
    ]


def _stops_query(why: str, change: str) -> Decision:
    return Decision("stops the query", (why,), (change,))


def _stopped_by_topic(strict: list[str]) -> Decision:
    return _stops_query(
        f"{', '.join(strict)} says on_error='fail'", "declare on_error='dead-letter' on the topic"
    )


def _cut(place: str, node: Operator) -> str:
    return f"cut the flow {place} {node.name} with .through('topic')"
