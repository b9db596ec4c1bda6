"""The Structured Streaming queries that the unbounded part of a flow is split into.

Branches that share a source share a query, so that the source is read and parsed once: those that can run
in real time share one query, and those that need micro-batches another. The split does not depend on the
mode that was asked for, because a checkpoint is of a query. Spark's own aggregate, a DataFrame function, the
buffer of a Python function and a sink of files have a query of their own. The bad records of a source leave
through exactly one query.

In a query, all operators with state of the same depth are one exchange: records are shuffled to their key
groups once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flowcore.api.decisions import Decision
from flowcore.api.operators import MapBatches, Operator, PythonOperator, Read, StatefulOperator, Write
from flowcore.errors import PlanError
from flowcore.planner.model import LiveQuery, LiveStage, Mode, find_live_sources, find_upstream, find_ways
from flowcore.planner.rules.flush import find_own_buffer, select_buffered
from flowcore.planner.rules.flush_reasons import explain_interval
from flowcore.planner.rules.modes import choose_mode
from flowcore.settings import Settings
from flowcore.watermarks.strategies import PeriodicFunction

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
    queries = {group: _build_query(group, requested, buffered) for group in _group(sinks, buffered)}
    return LiveStage(_add_dead_letters(queries, requested))


@dataclass(frozen=True, slots=True)
class _Group:
    """The sinks of one query.

    Attributes:
        alone: The operators for which the query is their own; none if it is shared.
        realtime: The query can run in real time.
    """

    sinks: tuple[Write, ...]
    alone: tuple[Operator, ...] = ()
    realtime: bool = False

    @property
    def name(self) -> str:
        """The name of the query; of a shared one it stays when sinks come and go."""
        if self.alone:
            return self.sinks[0].name
        source = find_live_sources(self.sinks)[0].name
        return source if self.realtime else f"{source}-batches"


def _group(sinks: Sequence[Write], buffered: Mapping[Operator, str]) -> Iterator[_Group]:
    exclusive: dict[tuple[Operator, ...], list[Write]] = {}
    shared: list[_Group] = []
    for sink in sinks:
        if alone := _find_exclusive(sink, buffered):
            exclusive.setdefault(alone, []).append(sink)
            continue
        live = tuple(node for node in sink.upstream if not node.bounded)
        realtime = choose_mode(live, None).value == "realtime"
        sources = {*find_live_sources([sink])}
        touching = [
            each
            for each in shared
            if each.realtime == realtime and not sources.isdisjoint(find_live_sources(each.sinks))
        ]
        members = {*(member for each in touching for member in each.sinks), sink}
        shared = [each for each in shared if each not in touching]
        shared.append(_Group(tuple(each for each in sinks if each in members), realtime=realtime))
    yield from sorted(shared, key=lambda group: not group.realtime)
    yield from (_Group(tuple(members), alone) for alone, members in exclusive.items())


def _find_exclusive(sink: Write, buffered: Mapping[Operator, str]) -> tuple[Operator, ...]:
    """The operators with which a sink needs a query of its own; none if it can share one."""
    live = [node for node in sink.upstream if not node.bounded]
    own = find_own_buffer(sink.upstream, buffered)
    native = {node for node in live if node.keeps_state and not isinstance(node, StatefulOperator)}
    alone = tuple(node for node in live if node in native or node.takes_whole_frame or node is own)
    states = [node for node in live if node.keeps_state]
    if len(states) > 1 and (why := next(_find_obstacles(alone, states), None)):
        names = " and ".join(repr(node.name) for node in states)
        msg = (
            f"sink {sink.name!r} is downstream of the operators {names}, each with state: {why}; write the "
            "first to a topic and read that in another flow"
        )
        raise PlanError(msg)
    if alone:
        # The query is that of all operators with state upstream, so that one of them runs once.
        alone = tuple(node for node in live if node in alone or node.keeps_state)
    # Files take the records themselves; only topics can share a frame with other topics.
    return alone if sink.topic is not None else (*alone, sink)


def _find_obstacles(alone: Sequence[Operator], states: Sequence[Operator]) -> Iterator[str]:
    """Why operators with state cannot run in one query."""
    for node in alone:
        kind = "is a DataFrame function" if node.takes_whole_frame else "is Spark's own aggregate"
        yield f"{node.name} {kind}, and only windows and process functions read each other in a query"
    for node in states:
        ways = find_ways(node)
        if not any(each.keeps_state for each in ways):
            continue
        for each in ways:
            if isinstance(each, MapBatches):
                # Its outputs would have no channel, so that watermarks would overtake them.
                yield f"{each.name} gets batches, so that nobody knows which key group emitted a record of it"
            watermark = each.topic.watermark if each.topic else None
            if watermark is not None and isinstance(watermark.generator, PeriodicFunction):
                yield (
                    f"{node.name} also reads {each.name}, whose watermarks a Python function makes, and only "
                    "the first exchange calls it"
                )


def _build_query(group: _Group, requested: Mode | None, buffered: Mapping[Operator, str]) -> LiveQuery:
    live = tuple(node for node in find_upstream(group.sinks) if not node.bounded)
    query = LiveQuery(
        name=group.name,
        operators=live,
        results=tuple(dict.fromkeys(each for node in live for each in node.inputs if each.bounded)),
        sinks=group.sinks,
        dead_letters=(),
        mode=choose_mode(live, requested, buffered),
        split=Decision("shared query", ()),
    )
    return replace(query, split=_explain_split(group, query))


def _explain_split(group: _Group, query: LiveQuery) -> Decision:
    exchanges = [" and ".join(node.name for node in each) for each in query.exchanges]
    reasons = []
    if len(exchanges) > 1 or any(len(each) > 1 for each in query.exchanges):
        count = {1: "one exchange", 2: "two exchanges"}.get(len(exchanges), f"{len(exchanges)} exchanges")
        reasons.append(f"it has {count}: {', then '.join(exchanges)}")
    if group.alone:
        last = group.alone[-1]
        why = f"{last.name} {_what_is_exclusive(last)}, which nothing else can share a query with"
        return Decision("its own query", (why, *reasons))
    if group.realtime:
        return Decision("shared query", ("its branches keep no state, so one read serves them all",))
    return Decision("shared query", ("one read serves all branches that need micro-batches", *reasons))


def _what_is_exclusive(node: Operator) -> str:
    if isinstance(node, Write):
        return "writes files"
    if node.keeps_state:
        return "is Spark's own aggregate" if not isinstance(node, StatefulOperator) else "keeps state"
    return "is a DataFrame function" if node.takes_whole_frame else "has a buffer"


def _add_dead_letters(queries: Mapping[_Group, LiveQuery], requested: Mode | None) -> tuple[LiveQuery, ...]:
    """Give the bad records of each source to one query, to one of their own if no shared query reads it.

    A query with Python functions takes precedence: their failing records become bad there.
    """
    found = dict(queries)
    shared = (group for group in queries if not group.alone)
    covered: set[Read] = set()
    for group in sorted(shared, key=lambda group: not _calls_python(queries[group])):
        query = queries[group]
        fresh = [each for each in query.sources if each not in covered and _has_dead_letters(each)]
        found[group] = replace(query, dead_letters=tuple(fresh))
        covered.update(fresh)
    sources = dict.fromkeys(source for query in queries.values() for source in query.sources)
    others = [each for each in sources if each not in covered and _has_dead_letters(each)]
    return (*found.values(), *(_build_dead_letter_query(source, requested) for source in others))


def _calls_python(query: LiveQuery) -> bool:
    return any(isinstance(node, PythonOperator) for node in query.operators)


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
