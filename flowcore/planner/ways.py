"""The ways of records through a flow: what is upstream, and where channels and event time begin."""

from collections.abc import Collection, Iterable

from flowcore.api.operators import Operator, Read, WithEventTime, find_timed

__all__ = ["count_cuts", "find_live_sources", "find_origins", "find_upstream", "find_ways"]


def find_ways(node: Operator, keyed: Collection[Operator]) -> tuple[Operator, ...]:
    """The operators whose records reach an operator without another one of ``keyed`` between them.

    An operator that assigns event time is the end of a way, too.
    """
    found = [*node.inputs]
    for each in found:
        if each not in keyed and not isinstance(each, WithEventTime):
            found += (parent for parent in each.inputs if parent not in found)
    return tuple(dict.fromkeys(each for each in found if not each.bounded))


def find_upstream(ends: Iterable[Operator]) -> tuple[Operator, ...]:
    """Some operators and all operators that they depend on, inputs before readers, each once."""
    return tuple(dict.fromkeys(node for end in ends for node in end.upstream))


def find_live_sources(ends: Iterable[Operator]) -> list[Read]:
    """The unbounded sources that some operators depend on, each once."""
    return [node for node in find_upstream(ends) if isinstance(node, Read) and not node.bounded]


def find_origins(ends: Iterable[Operator]) -> tuple[Read | WithEventTime, ...]:
    """The sources and operators that the timestamps of some live operators' records are from, each once."""
    found = dict.fromkeys(node for end in ends for node in find_timed(end) if not node.bounded)
    return tuple(node for node in found if isinstance(node, Read | WithEventTime))


def count_cuts(end: Operator) -> int:
    """How many cuts are on the longest way from a source to an operator."""
    cuts = (each.written_by for each in end.upstream if isinstance(each, Read))
    return max((1 + count_cuts(cut) for cut in cuts if cut is not None), default=0)
