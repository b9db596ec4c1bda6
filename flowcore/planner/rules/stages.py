"""The bounded stages of a flow: the parts that must end before the live queries that read them start.

Rule (FLIP-331): a live query reads bounded data only as a committed result, so each edge from a bounded
operator to an unbounded one is blocking. The bounded operators upstream of such an edge, or of a bounded
sink, run as batch. Connected operators are one stage; the others run side by side, unless one writes a folder
or topic that another reads or writes too: those run one after another, as they were declared.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath

from flowcore.api.connectors import Frame, KafkaTopic
from flowcore.api.decisions import Decision
from flowcore.api.operators import Operator, Read, Write
from flowcore.planner.model import BoundedStage, Result
from flowcore.planner.ways import find_upstream

__all__ = ["build_bounded_stages"]


def build_bounded_stages(operators: tuple[Operator, ...]) -> tuple[BoundedStage, ...]:
    """The bounded stages of a flow, in the order in which their first operator was declared."""
    # A live operator that nothing writes does not run, and may read what a moved filter has replaced.
    running = set(find_upstream(node for node in operators if isinstance(node, Write)))
    readers: dict[Operator, list[str]] = {}
    for node in operators:
        for parent in node.inputs if node in running and not node.bounded else ():
            if parent.bounded:
                readers.setdefault(parent, []).append(node.name)
    results = [Result(operator, tuple(names)) for operator, names in readers.items()]
    sinks = [node for node in operators if isinstance(node, Write) and node.bounded]
    ends: list[Operator] = [*(result.operator for result in results), *sinks]
    stages = []
    for part in _connect(ends):
        members = set(part)
        mine = tuple(result for result in results if result.operator in members)
        written = tuple(sink for sink in sinks if sink in members)
        name = "+".join([*(result.name for result in mine), *(sink.name for sink in written)])
        reasons = [
            f"the edge {result.name} -> {', '.join(result.consumers)} is blocking: a live query reads "
            "bounded data only as a committed result"
            for result in mine
        ]
        reasons += [f"{sink.name} is a sink of bounded data" for sink in written]
        stages.append(BoundedStage(name, part, mine, written, Decision("batch", tuple(reasons))))
    position = {node: index for index, node in enumerate(operators)}
    stages.sort(key=lambda stage: position[stage.operators[0]])
    return tuple(_set_order(stage, stages[:number]) for number, stage in enumerate(stages))


def _connect(ends: list[Operator]) -> list[tuple[Operator, ...]]:
    parts: list[list[Operator]] = []
    for end in ends:
        needed = set(end.upstream)
        touching = [part for part in parts if not needed.isdisjoint(find_upstream(part))]
        parts = [part for part in parts if part not in touching]
        parts.append([*(node for part in touching for node in part), end])
    return [find_upstream(part) for part in parts]


def _set_order(stage: BoundedStage, earlier: list[BoundedStage]) -> BoundedStage:
    met = {other.name: reasons for other in earlier if (reasons := tuple(_find_conflicts(stage, other)))}
    if not met:
        return stage
    reasons = tuple(dict.fromkeys(reason for each in met.values() for reason in each))
    return replace(stage, after=tuple(met), start=Decision(f"after {', '.join(met)}", reasons))


def _find_conflicts(stage: BoundedStage, earlier: BoundedStage) -> Iterator[str]:
    """The places that one stage writes and the other reads or writes."""
    verbs = {Read: "reads", Write: "writes"}
    here: tuple[Read | Write, ...] = (*stage.sources, *stage.sinks)
    there: tuple[Read | Write, ...] = (*earlier.sources, *earlier.sinks)
    for mine in here:
        for theirs in there:
            if (isinstance(mine, Write) or isinstance(theirs, Write)) and _overlap(mine, theirs):
                yield f"{mine.name} {verbs[type(mine)]} what {theirs.name} {verbs[type(theirs)]}"


def _overlap(one: Read | Write, other: Read | Write) -> bool:
    mine, theirs = one.connector, other.connector
    if isinstance(mine, KafkaTopic) and isinstance(theirs, KafkaTopic):
        return mine.name == theirs.name  # one broker may have several addresses
    if isinstance(mine, (KafkaTopic, Frame)) or isinstance(theirs, (KafkaTopic, Frame)):
        return False
    here, there = PurePath(mine.path), PurePath(theirs.path)
    return here.is_relative_to(there) or there.is_relative_to(here)
