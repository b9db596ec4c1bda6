"""Live queries: into how many Structured Streaming queries does the unbounded part split?

As few as Spark allows. Branches without state that share a source share a query. An operator with
state, and a DataFrame function (through which nothing else can be carried), has a query of its own.
Bad records of a source leave through exactly one query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flowcore.api.decisions import Decision
from flowcore.api.operators import Operator, PythonOperator, Read, StatefulOperator, Write, upstream
from flowcore.errors import PlanError
from flowcore.planner.model import LiveQuery, LiveStage, Mode
from flowcore.planner.rules.flush import own_buffer, select_buffered
from flowcore.planner.rules.flush_reasons import why_held
from flowcore.planner.rules.modes import choose_mode
from flowcore.settings import Settings

__all__ = ["build_live_stage"]


def build_live_stage(
    operators: tuple[Operator, ...], requested: Mode | None, settings: Settings
) -> LiveStage | None:
    """The live queries behind the unbounded sinks, None if there are none.

    Raises:
        PlanError: A sink is behind two operators with state, or cannot run in the requested mode.
    """
    sinks = [node for node in operators if isinstance(node, Write) and not node.bounded]
    if not sinks:
        return None
    held = {
        node: why_held(node, settings) for node in operators if node in select_buffered(operators, settings)
    }
    groups = [_query(group, requested, held) for group in _groups(sinks, held)]
    return LiveStage(_with_dead_letters(groups, requested))


def _groups(sinks: Sequence[Write], held: Mapping[Operator, str]) -> list[list[Write]]:
    exclusive: dict[tuple[Operator, ...], list[Write]] = {}
    shared: list[list[Write]] = []
    for sink in sinks:
        alone = _exclusive(sink, held)
        if alone:
            exclusive.setdefault(alone, []).append(sink)
            continue
        sources = _sources([sink])
        touching = [group for group in shared if not sources.isdisjoint(_sources(group))]
        shared = [group for group in shared if group not in touching]
        shared.append([*(member for group in touching for member in group), sink])
    return [*shared, *exclusive.values()]


def _exclusive(sink: Write, held: Mapping[Operator, str]) -> tuple[Operator, ...]:
    buffered = own_buffer(upstream(sink), held)
    alone = tuple(
        n for n in upstream(sink)
        if not n.bounded and (n.keeps_state or n.takes_whole_frame or n is buffered)
    )  # fmt: skip
    states = [node.name for node in alone if node.keeps_state]
    if len(states) > 1:
        msg = (
            f"sink {sink.name!r} is behind the operators {' and '.join(map(repr, states))}, each with state: "
            "Spark keeps one such operator per live query reliably; write the first to a topic and "
            "read that in another flow"
        )
        raise PlanError(msg)
    # Files take the records themselves; only topics can share a frame with other topics.
    return alone if sink.topic is not None else (*alone, sink)


def _sources(sinks: Sequence[Write]) -> set[Operator]:
    return {node for node in upstream(*sinks) if isinstance(node, Read) and not node.bounded}


def _query(sinks: Sequence[Write], requested: Mode | None, held: Mapping[Operator, str]) -> LiveQuery:
    live = tuple(node for node in upstream(*sinks) if not node.bounded)
    alone = _exclusive(sinks[0], held)
    results = tuple(dict.fromkeys(parent for node in live for parent in node.inputs if parent.bounded))
    sources = [node for node in live if isinstance(node, Read)]
    if alone:
        reason = f"{alone[-1].name} {_kind(alone[-1])}, which nothing else can share a query with"
        split = Decision("its own query", (reason,))
    else:
        split = Decision("shared query", ("its branches keep no state, so one read serves them all",))
    dead_letters = () if alone else tuple(filter(_routes_bad_records, sources))
    return LiveQuery(
        name=sinks[0].name if alone else sources[0].name,
        operators=live,
        results=results,
        sinks=tuple(sinks),
        dead_letters=dead_letters,
        mode=choose_mode(live, requested, held),
        split=split,
    )


def _kind(node: Operator) -> str:
    if node.keeps_state:
        return "keeps state"
    if isinstance(node, Write):
        return "writes files"
    return "is a DataFrame function" if node.takes_whole_frame else "has a buffer behind it"


def _with_dead_letters(queries: list[LiveQuery], requested: Mode | None) -> tuple[LiveQuery, ...]:
    covered = {source for query in queries for source in query.dead_letters}
    for carries in (True, False):
        for number, query in enumerate(tuple(queries)):
            fresh = [each for each in query.sources if each not in covered and _routes_bad_records(each)]
            if not carries:
                queries += [_dead_letter_query(source, requested) for source in fresh]
            elif _lets_pass(query):
                queries[number] = replace(query, dead_letters=(*query.dead_letters, *fresh))
            else:
                continue
            covered.update(fresh)
    return tuple(queries)


def _lets_pass(query: LiveQuery) -> bool:
    """Bad records can pass by what keeps state; past Python functions their bytes would be lost."""
    states = [node for node in query.operators if node.keeps_state]
    if not states or not all(isinstance(node, StatefulOperator) for node in states):
        return False
    if any(node.takes_whole_frame or isinstance(node, PythonOperator) for node in query.operators):
        return False
    return all(sink.topic is not None for sink in query.sinks)


def _dead_letter_query(source: Read, requested: Mode | None) -> LiveQuery:
    mode: Mode = "slice" if requested == "slice" else "micro-batch"
    return LiveQuery(
        name=source.name,
        operators=(source,),
        results=(),
        sinks=(),
        dead_letters=(source,),
        mode=Decision(mode, ("nobody waits for a dead letter",)),
        split=Decision(
            "its own query", (f"no other query of {source.name} can carry its bad records to the sink",)
        ),
    )


def _routes_bad_records(node: Operator) -> bool:
    topic = node.topic
    return isinstance(node, Read) and topic is not None and topic.on_error == "dead-letter"
