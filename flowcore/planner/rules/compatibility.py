"""Find out whether a live query can continue from the checkpoint of an earlier plan.

A checkpoint holds the offsets of each source, and the state of operators. Spark finds sources and the state
of its own operators by position, so a query must have the same ones in the same order. The state of operators
by key group is found by the exchange, that is by depth, and by the operator's name: such operators may be
added and removed, but not moved or renamed. An operator that stores records has the columns of them that are
read downstream, and which of several outputs of a source record each is, if there may be several. A window
keeps state of its trigger, which one of another kind would misread. A join of streams keeps rows by the
columns joined on, which may have another name on the right. Filters, projections, functions without state,
joined results and sinks may change otherwise.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product, zip_longest
from typing import TypeVar

from flowcore.api.node import KeptState
from flowcore.api.operators import Join, MapBatches, Operator, StreamJoin, WithHistory
from flowcore.api.stateful import StatefulOperator
from flowcore.planner.model import LiveQuery

__all__ = ["CheckpointNeeds", "derive_needs", "find_differences", "stores_ordinals"]

_BACKLOG = "its own backlog"
_BUFFERED = "the latest output until a flush"
_ORDINAL = "the ordinal"
_Kept = TypeVar("_Kept")
_ByName = tuple[tuple[str, _Kept], ...]


@dataclass(frozen=True, slots=True)
class CheckpointNeeds:
    """What a query needs in its checkpoint.

    Attributes:
        sources: The topics that it reads, in order, with the seams of their histories; then its backlog
            status where key groups get it.
        states: The state of its operators, in order.
        stored: ``(operator, columns)`` of those by key group that store records: what they store of each. An
            earlier version did not write it.
        triggers: ``(operator, kind)`` of windows: the kind of their trigger. An earlier version did not write
            it.
        joined: ``(operator, columns)`` of joins of streams: the right columns joined on. An earlier version
            did not write it.
    """

    sources: tuple[str, ...]
    states: tuple[KeptState, ...]
    stored: tuple[tuple[str, tuple[str, ...]], ...] = ()
    triggers: tuple[tuple[str, str], ...] = ()
    joined: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def fingerprint(self) -> str:
        """Hexadecimal text, the same for all plans of a query that can share a checkpoint."""
        states = [asdict(state) for state in self.states]
        for state in states:
            state["operator"] = state["operator"] if state["depth"] else None
        more = [each for each in (self.stored, self.triggers, self.joined) if each]
        return hashlib.sha256(json.dumps([self.sources, states, *more]).encode()).hexdigest()


def derive_needs(query: LiveQuery) -> CheckpointNeeds:
    """What a query needs in its checkpoint."""
    seams = {node.live: node.seam for node in query.operators if isinstance(node, WithHistory)}
    topics = [
        f"{topic.name} with a history until {seams[node]}" if node in seams else topic.name
        for node in query.sources
        if (topic := node.topic)
    ]
    depths = query.depths
    states = tuple(
        state for node in query.operators if (state := _state(node, query, depths[node])) is not None
    )
    backlog = [_BACKLOG] if any(state.depth for state in states) else []
    triggers = tuple(
        (node.name, kind)
        for node in query.operators
        if isinstance(node, StatefulOperator) and (kind := node.trigger_kind()) is not None
    )
    joined = tuple(
        (node.name, tuple(right for _, right in node.on))
        for node in query.operators
        if isinstance(node, StreamJoin)
    )
    return CheckpointNeeds((*topics, *backlog), states, tuple(_find_stored(query)), triggers, joined)


def stores_ordinals(query: LiveQuery) -> bool:
    """Whether operators by key group store ordinals, since one source record may become several.

    This is part of their state layout, so it must not depend on the keys of a table.
    """
    return any(
        node.repeats_records
        or isinstance(node, MapBatches)
        or (isinstance(node, Join) and node.how in ("inner", "left"))
        for node in query.operators
    )


def find_differences(before: CheckpointNeeds, now: CheckpointNeeds) -> Iterator[str]:
    """The differences because of which a query cannot continue from a checkpoint: before, and now."""
    if before.sources != now.sources:
        yield f"it was reading {_show_sources(before.sources)}, and now {_show_sources(now.sources)}"
    old, new = ([each for each in needs.states if each.depth is None] for needs in (before, now))
    for pair in zip_longest(old, new):
        yield from _compare(*pair)
    kept, keeps = ({each.operator: each for each in needs.states if each.depth} for needs in (before, now))
    # Without a common exchange, Spark has no store for the state.
    names = [name for name in kept if name in keeps] if kept and keeps else [*kept, *keeps]
    for name in names:
        yield from _compare(kept.get(name), keeps.get(name))
    for name, *both in _changed(before.stored, now.stored):
        columns = (", ".join(each) or "nothing" for each in both)
        yield f"operator {name!r} stored of each record {', and now '.join(columns)}"
    for name, *both in _changed(before.joined, now.joined):
        columns = (", ".join(each) for each in both)
        yield f"operator {name!r} joined on right columns {', and now on '.join(columns)}"
    for name, *kinds in _changed(before.triggers, now.triggers):
        yield f"operator {name!r} had the trigger {', and now '.join(kinds)}"
    for gone, added in product(kept, keeps):
        if gone not in keeps and added not in kept and replace(kept[gone], operator=added) == keeps[added]:
            yield f"operator {gone!r} is gone, and {added!r} keeps the same: its state is found by its name"


def _changed(before: _ByName[_Kept], now: _ByName[_Kept]) -> Iterator[tuple[str, _Kept, _Kept]]:
    """What differs of operators that both have, by name: before, and now."""
    found = dict(now)
    for name, old in before:
        if (new := found.get(name, old)) != old:
            yield name, old, new


def _compare(old: KeptState | None, new: KeptState | None) -> Iterator[str]:
    if new is None:
        if old is not None:
            yield f"operator {old.operator!r} kept {old}, and now nothing is kept"
    elif old is None:
        yield f"operator {new.operator!r} keeps {new}, and nothing was kept before"
    elif old.kind != new.kind:
        yield f"{old.kind} {old.operator!r} kept {old}, and now {new.kind} {new.operator!r} keeps {new}"
    elif replace(old, operator=new.operator) != new:
        yield f"operator {new.operator!r} kept {old}, and now {new}"


def _show_sources(sources: tuple[str, ...]) -> str:
    topics = [name for name in sources if name != _BACKLOG]
    backlog = f" and {_BACKLOG}" if _BACKLOG in sources else ""
    return f"topic{'s' * (len(topics) != 1)} {', '.join(topics) or 'none'}{backlog}"


def _state(node: Operator, query: LiveQuery, depth: int) -> KeptState | None:
    state = node.kept_state(query.key_groups)
    if state is not None and state.key_groups is not None:
        state = replace(state, depth=depth)
    if node not in query.buffers:
        return state
    if state is not None:
        return replace(state, values=(*state.values, _BUFFERED))
    values = (_BUFFERED, *node.columns)
    return KeptState(node.name, "buffer", query.buffers[node].key or (), values, query.key_groups, depth)


def _find_stored(query: LiveQuery) -> Iterator[tuple[str, tuple[str, ...]]]:
    ordinal = [_ORDINAL] if stores_ordinals(query) else []
    for node in query.operators:
        if isinstance(node, StatefulOperator):
            columns = node.stored_columns(query.used_columns.get(node, frozenset()))
            if columns is not None:
                yield node.name, (*columns, *ordinal)
