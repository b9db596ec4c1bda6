"""Find out whether an operator by key group can read another one in the same query.

The records of an operator by key group arrive in channels: the partitions of its topics, and the key groups
of the operators upstream. The channel of each record must be known.
"""

from collections.abc import Collection, Iterator

from flowcore.api.operators import MapBatches, Operator
from flowcore.planner.ways import find_ways
from flowcore.watermarks.strategies import PeriodicFunction

__all__ = ["find_channel_obstacles"]


def find_channel_obstacles(node: Operator, keyed: Collection[Operator]) -> Iterator[str]:
    """Why an operator cannot read others of ``keyed``, the operators by key group of its query."""
    ways = find_ways(node, keyed)
    if not any(each in keyed for each in ways):
        return
    for each in ways:
        if isinstance(each, MapBatches):
            # Its outputs would have no channel, so that watermarks would overtake them.
            yield f"{each.name} gets batches, so the key group that emitted a record of it is unknown"
        if each.watermark is not None and isinstance(each.watermark.generator, PeriodicFunction):
            yield (
                f"{node.name} also reads {each.name}, whose watermarks a Python function makes, and only "
                "the first exchange calls it"
            )
