"""The Structured Streaming queries that the unbounded part of a flow is split into.

Branches that share a source share a query, so that the source is read and parsed once: those that can run
in real time share one query, and those that need micro-batches another. The split does not depend on the
requested mode, because each query has a checkpoint. Spark's own aggregate, a DataFrame function and a sink of
files have a query of their own. A cut (`Stream.through`) ends a query, and begins the next one. The bad
records of a source leave through exactly one query.

In a query, all operators with state of the same depth are one exchange: records are shuffled to their key
groups once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flowcore.api.decisions import Decision
from flowcore.api.operators import (
    Operator,
    PythonOperator,
    Read,
    StatefulOperator,
    WithEventTime,
    WithHistory,
    Write,
)
from flowcore.errors import PlanError
from flowcore.planner.model import LiveQuery, LiveStage, Mode
from flowcore.planner.rules.channels import find_channel_obstacles
from flowcore.planner.rules.execution import choose_mode
from flowcore.planner.rules.flush import select_buffered
from flowcore.planner.rules.flush_reasons import explain_interval
from flowcore.planner.rules.histories import find_histories
from flowcore.planner.rules.timestamps import find_timed_sources
from flowcore.planner.ways import count_cuts, find_live_sources, find_upstream
from flowcore.settings import Settings

__all__ = ["build_live_stage", "explain_exchanges"]


def explain_exchanges(query: LiveQuery) -> Decision:
    """Why a query is separate, with its exchanges if operators share one or follow each other."""
    exchanges = [" and ".join(node.name for node in each) for each in query.exchanges]
    if len(query.keyed) in (0, 1):
        return query.split
    count = {1: "one exchange", 2: "two exchanges"}.get(len(exchanges), f"{len(exchanges)} exchanges")
    why = f"it has {count}: {', then '.join(exchanges)}"
    return replace(query.split, reasons=(*query.split.reasons, why))


def build_live_stage(
    operators: tuple[Operator, ...], requested: Mode | None, settings: Settings
) -> LiveStage | None:
    """The live queries that write to the unbounded sinks, None if there are none.

    Raises:
        PlanError: A sink is downstream of operators with state that cannot run in one query, or cannot run in
            the requested mode, or two queries have one name.
    """
    sinks = [node for node in operators if isinstance(node, Write) and not node.bounded]
    if not sinks:
        return None
    chosen = select_buffered(operators, settings)
    buffered = {node: explain_interval(node, settings) for node in operators if node in chosen}
    queries = {group: _build_query(group, requested, buffered) for group in _group(sinks)}
    found = _add_dead_letters(queries, requested)
    _require_distinct_names(found)
    return LiveStage(tuple(_order_by_cuts(found)))


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
        # The first of those downstream of most cuts: a source may also be read upstream of them.
        source = max(find_live_sources(self.sinks), key=count_cuts).name
        return source if self.realtime else f"{source}-batches"

    @property
    def cuts(self) -> int:
        """How many cuts are upstream of it."""
        return count_cuts(self.sinks[0])


def _group(sinks: Sequence[Write]) -> Iterator[_Group]:
    exclusive: dict[tuple[int, tuple[Operator, ...]], list[Write]] = {}
    shared: list[_Group] = []
    for sink in sinks:
        cuts = count_cuts(sink)
        if alone := _find_exclusive(sink):
            exclusive.setdefault((cuts, alone), []).append(sink)
            continue
        live = tuple(node for node in sink.upstream if not node.bounded)
        realtime = choose_mode(live, None).value == "realtime"
        sources = {*find_live_sources([sink])}
        touching = [
            each
            for each in shared
            # A query must not read what it writes itself.
            if (each.realtime, each.cuts) == (realtime, cuts)
            and not sources.isdisjoint(find_live_sources(each.sinks))
        ]
        members = {*(member for each in touching for member in each.sinks), sink}
        shared = [each for each in shared if each not in touching]
        shared.append(_Group(tuple(each for each in sinks if each in members), realtime=realtime))
    yield from sorted(shared, key=lambda group: not group.realtime)
    yield from (_Group(tuple(members), alone) for (_, alone), members in exclusive.items())


def _find_exclusive(sink: Write) -> tuple[Operator, ...]:
    """The operators with which a sink needs a query of its own; none if it can share one."""
    live = [node for node in sink.upstream if not node.bounded]
    alone = tuple(node for node in live if node.needs_own_query)
    states = [node for node in live if node.keeps_state]
    if len(states) > 1 and (why := next(_find_obstacles(alone, states), None)):
        names = " and ".join(repr(node.name) for node in states)
        msg = (
            f"sink {sink.name!r} is downstream of the operators {names}, each with state: {why}; cut the "
            "flow between them with .through('topic')"
        )
        raise PlanError(msg)
    _require_channels(sink, alone, states)
    if alone:
        # The query is that of all operators with state upstream, so that one of them runs once.
        alone = tuple(node for node in live if node in alone or node.keeps_state)
    # Files take the records themselves; only topics can share a frame with other topics.
    return alone if sink.topic is not None else (*alone, sink)


def _require_channels(sink: Write, alone: Sequence[Operator], states: Sequence[Operator]) -> None:
    """Check that no operator by key group reads the output of a DataFrame function, which has no channels."""
    for node in states:
        function = next((each for each in alone if each.takes_whole_frame and each in node.upstream), None)
        if function is not None and isinstance(node, StatefulOperator):
            msg = (
                f"sink {sink.name!r} is downstream of {node.name!r}, which keeps its state by key group, and "
                f"reads the DataFrame function {function.name!r}: it would not know from which partition a "
                "record is; cut the flow between them with .through('topic')"
            )
            raise PlanError(msg)


def _find_obstacles(alone: Sequence[Operator], states: Sequence[Operator]) -> Iterator[str]:
    """Why operators with state cannot run in one query."""
    for node in alone:
        kind = "is a DataFrame function" if node.takes_whole_frame else "is Spark's own aggregate"
        yield f"{node.name} {kind}, and only operators with state by key group read each other in a query"
    for node in states:
        yield from find_channel_obstacles(node, states)


def _build_query(group: _Group, requested: Mode | None, buffered: Mapping[Operator, str]) -> LiveQuery:
    live = tuple(node for node in find_upstream(group.sinks) if not node.bounded)
    return LiveQuery(
        name=group.name,
        operators=live,
        results=tuple(dict.fromkeys(each for node in live for each in node.inputs if each.bounded)),
        sinks=group.sinks,
        dead_letters=(),
        mode=choose_mode(live, requested, buffered),
        split=_explain_split(group),
    )


def _explain_split(group: _Group) -> Decision:
    if group.alone:
        last = group.alone[-1]
        why = f"{last.name} {_what_is_exclusive(last)}, which nothing else can share a query with"
        return Decision("its own query", (why,))
    if group.realtime:
        return Decision("shared query", ("its branches keep no state, so one read serves them all",))
    return Decision("shared query", ("one read serves all branches that need micro-batches",))


def _what_is_exclusive(node: Operator) -> str:
    if isinstance(node, Write):
        return "writes files"
    if node.keeps_state:
        return "is Spark's own aggregate" if node.needs_own_query else "keeps state"
    return "is a DataFrame function"


def _add_dead_letters(queries: Mapping[_Group, LiveQuery], requested: Mode | None) -> tuple[LiveQuery, ...]:
    """Give the bad records of each source to one query, to one of their own if no shared query reads it.

    A query with Python functions takes precedence: their failing records become bad there, as do those that
    get no event time. So does a query that delivers exactly once, so that the dead letters are in its
    transactions; both are one query.
    """
    found = dict(queries)
    shared = (group for group in queries if not group.alone)
    covered: set[Read] = set()
    for group in sorted(shared, key=lambda group: not _is_preferred(queries[group])):
        query = queries[group]
        fresh = [each for each in query.sources if each not in covered and _has_dead_letters(each)]
        found[group] = replace(query, dead_letters=tuple(fresh))
        covered.update(fresh)
    sources = dict.fromkeys(source for query in queries.values() for source in query.sources)
    others = [each for each in sources if each not in covered and _has_dead_letters(each)]
    histories = {node.live: node for query in queries.values() for node in find_histories(query.operators)}
    own = []
    for source in others:
        query = _build_dead_letter_query(source, histories.get(source), requested)
        if source not in histories and (counting := _find_counting(source, found)) is not None:
            before = found[counting]
            found[counting] = replace(before, counts_bad=(*before.counts_bad, source))
            why = f"in micro-batches it skips a batch in which query {before.name} counted no bad record"
            query = replace(query, split=replace(query.split, reasons=(*query.split.reasons, why)))
        own.append(query)
    return (*found.values(), *own)


def _require_distinct_names(queries: Iterable[LiveQuery]) -> None:
    """Check that no two queries have one checkpoint, as a source named like another's shared query has."""
    known: dict[str, LiveQuery] = {}
    for query in queries:
        other = known.setdefault(query.name.lower(), query)
        if other is not query:
            ends = [repr((each.sinks or each.dead_letters)[0].name) for each in (other, query)]
            msg = (
                f"the queries that write {' and '.join(ends)} would both be called {query.name!r}, and have "
                f"one checkpoint: one would continue from the state of the other; give the operator that is "
                f"called {query.name!r} another name"
            )
            raise PlanError(msg)


def _find_counting(source: Read, queries: Mapping[_Group, LiveQuery]) -> _Group | None:
    """The first query that can count all bad records of a source."""
    timed = find_timed_sources(node for query in queries.values() for node in query.operators)
    for group, query in sorted(queries.items(), key=lambda item: item[1].mode.value == "realtime"):
        topics = [each.topic for each in query.sources]
        is_timed = source in find_timed_sources(query.operators) or source not in timed
        if source in query.sources and topics.count(source.topic) == 1 and is_timed:
            return group
    return None


def _order_by_cuts(queries: Sequence[LiveQuery]) -> Iterator[LiveQuery]:
    """The queries with their `follows`, writers of a cut before its readers."""
    writers = {sink.name: query.name for query in queries for sink in query.sinks}
    for query in sorted(queries, key=lambda query: max(map(count_cuts, query.operators))):
        cuts = [source.written_by.name for source in query.sources if source.written_by is not None]
        yield replace(query, follows=tuple(dict.fromkeys(writers[name] for name in cuts)))


def _is_preferred(query: LiveQuery) -> bool:
    exactly_once = any(sink.exactly_once for sink in query.sinks)
    return exactly_once or any(isinstance(node, PythonOperator | WithEventTime) for node in query.operators)


def _build_dead_letter_query(source: Read, history: WithHistory | None, requested: Mode | None) -> LiveQuery:
    mode: Mode = "slice" if requested == "slice" else "micro-batch"
    why = f"it writes the dead letters of {source.name}, which no other query of it can carry"
    return LiveQuery(
        name=source.name,
        operators=(source,) if history is None else (source, history),
        results=() if history is None else (history.history,),
        sinks=(),
        dead_letters=(source,),
        mode=Decision(mode, ("dead letters need no low latency",)),
        split=Decision("its own query", (why,)),
    )


def _has_dead_letters(source: Read) -> bool:
    topic = source.topic
    return topic is not None and topic.on_error == "dead-letter"
