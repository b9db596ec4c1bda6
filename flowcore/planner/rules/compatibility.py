"""Compatibility: can a live query go on from the checkpoint that an earlier plan of it left?

A checkpoint holds how far each source was read, and what operators keep. Both are found again by
their place alone, so a query must read the same topics in the same order, and keep the same. Filters,
projections, functions without state, joined results and sinks may change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import assert_never

from flowcore.api.operators import (
    Aggregate,
    Apply,
    CoGroup,
    Filter,
    FlatMap,
    Join,
    KeyedProcess,
    Map,
    MapBatches,
    Operator,
    Read,
    Select,
    SideOutput,
    Union,
    Where,
    Window,
    WithColumns,
    Write,
    topic_of,
)
from flowcore.planner.describe_windows import kept_by_key
from flowcore.planner.model import LiveQuery

__all__ = ["CheckpointNeeds", "KeptState", "derive_needs", "differences"]


@dataclass(frozen=True, slots=True)
class KeptState:
    """What an operator keeps from one batch to the next.

    Attributes:
        operator: Its name, for a reader; another name is not another state.
        kind: What keeps it, and so in which format.
        keys: The columns that it is kept by.
        values: What is kept of each key.
        key_groups: Into how many groups keys are hashed, None where Spark keeps it by key.
    """

    operator: str
    kind: str
    keys: tuple[str, ...]
    values: tuple[str, ...]
    key_groups: int | None = None

    def __str__(self) -> str:
        groups = f" in {self.key_groups} key groups" if self.key_groups is not None else ""
        return f"{', '.join(self.values) or 'its keys'} by {', '.join(self.keys) or 'nothing'}{groups}"


@dataclass(frozen=True, slots=True)
class CheckpointNeeds:
    """What a query needs its checkpoint to be of.

    Attributes:
        sources: The topics that it reads, in order; then `BACKLOG` where key groups hear of it.
        states: What its operators keep, in order.
    """

    sources: tuple[str, ...]
    states: tuple[KeptState, ...]

    @property
    def fingerprint(self) -> str:
        """The same for all plans of a query that can go on from one checkpoint: hexadecimal text."""
        states = [{**asdict(state), "operator": None} for state in self.states]
        return hashlib.sha256(json.dumps([self.sources, states]).encode()).hexdigest()


BACKLOG = "its own backlog"
_HELD_BACK = "the latest output until a flush"


def derive_needs(query: LiveQuery) -> CheckpointNeeds:
    """What a query needs its checkpoint to be of."""
    topics = (topic_of(source) for source in query.sources)
    states = tuple(state for node in query.operators if (state := _state(node, query)) is not None)
    told = [BACKLOG] if any(state.key_groups is not None for state in states) else []
    return CheckpointNeeds((*(topic.name for topic in topics if topic is not None), *told), states)


def differences(before: CheckpointNeeds, now: CheckpointNeeds) -> Iterator[str]:
    """Why a query cannot go on from a checkpoint: each thing as it was, and as it is now."""
    if before.sources != now.sources:
        yield f"it was reading {_names(before.sources)}, and now {_names(now.sources)}"
    for old, new in zip_longest(before.states, now.states):
        if new is None:
            yield f"operator {old.operator!r} kept {old}, and now nothing is kept"
        elif old is None:
            yield f"operator {new.operator!r} keeps {new}, and nothing was kept before"
        elif old.kind != new.kind:
            yield f"{old.kind} {old.operator!r} kept {old}, and now {new.kind} {new.operator!r} keeps {new}"
        elif (old.keys, old.values, old.key_groups) != (new.keys, new.values, new.key_groups):
            yield f"operator {new.operator!r} kept {old}, and now {new}"


def _names(sources: tuple[str, ...]) -> str:
    topics = [name for name in sources if name != BACKLOG]
    told = f" and {BACKLOG}" if BACKLOG in sources else ""
    return f"topic{'s' * (len(topics) != 1)} {', '.join(topics) or 'none'}{told}"


def _state(node: Operator, query: LiveQuery) -> KeptState | None:
    held_back = query.buffer is not None and query.buffer.operator is node
    match node:
        case _ if held_back and not isinstance(node, Window | KeyedProcess):
            key = (query.buffer.key if query.buffer else None) or ()
            return KeptState(node.name, "buffer", key, (_HELD_BACK, *node.columns), query.key_groups)
        case Aggregate():
            values = tuple(expression.text for _, expression in node.aggregates)
            return KeptState(node.name, "aggregate", node.by, values)
        case Window() | KeyedProcess():
            kind = "window" if isinstance(node, Window) else "process"
            values = (kept_by_key(node), *([_HELD_BACK] if held_back else []))
            return KeptState(node.name, kind, node.by, values, query.key_groups)
        case Apply():
            return None  # only Spark can tell; see flowcore.spark.checkpoint.state_types
        case (
            Read() | Select() | WithColumns() | Where() | Join() | Union() | Write()
            | Map() | Filter() | FlatMap() | MapBatches() | CoGroup() | SideOutput()
        ):  # fmt: skip
            return None
        case _:
            assert_never(node)
