"""How a live query joins the results of bounded stages.

A table that fits in memory is *broadcast*: each process has all of it, and records stay where they are. A
larger table is *shuffled*: records and table are distributed by the columns joined on, and each task sorts
its part, on disk if it must. Spark can do that in micro-batches only.

The size of a table is that of its committed files. It is known when its stage has run once, so each start of
a query decides anew, with the version that it joins.
"""

from collections.abc import Mapping
from dataclasses import replace

from flowcore.api.decisions import Decision
from flowcore.api.operators import Join, Operator
from flowcore.errors import PlanError
from flowcore.planner.model import LiveQuery
from flowcore.settings import Settings

__all__ = ["decide_joins", "is_shuffled"]

_KEY = "execution.join.max-broadcast-bytes"


def is_shuffled(table_bytes: int, settings: Settings) -> bool:
    """Whether a table of this size is shuffled."""
    return table_bytes > settings.max_broadcast_bytes


def decide_joins(query: LiveQuery, table_bytes: Mapping[str, int], settings: Settings) -> LiveQuery:
    """The query with its `LiveQuery.joins`, and in a mode that allows them.

    Args:
        table_bytes: The sizes of the results that it joins, by name, as far as they are known.

    Raises:
        PlanError: A table must be shuffled, and real-time mode was asked for.
    """
    joins: dict[Operator, Decision] = {
        node: _decide(node, table_bytes.get(node.inputs[1].name), settings)
        for node in query.operators
        if isinstance(node, Join)
    }
    query = replace(query, joins=joins)
    shuffled = [joins[node] for node in query.shuffled_joins]
    if query.mode.value != "realtime" or not shuffled:
        return query
    reasons = tuple(f"{each.reasons[0]}, so it is joined by a shuffle" for each in shuffled)
    change = tuple(dict.fromkeys(each.change[0] for each in shuffled))
    if query.catch_up.value == "no":
        msg = (
            f"mode 'realtime' is not possible: {'; '.join(reasons)}: Spark shuffles tables in micro-batches "
            f"only; {change[0]}, or run it with --mode auto"
        )
        raise PlanError(msg)
    return replace(query, mode=Decision("micro-batch", reasons, change))


def _decide(node: Join, table_bytes: int | None, settings: Settings) -> Decision:
    table, limit = node.inputs[1].name, f"{settings.max_broadcast_bytes:,} bytes ({_KEY})"
    if table_bytes is None:
        return Decision(
            "broadcast, if it fits", (f"the size of {table} is not known yet, up to {limit} fit",)
        )
    if not is_shuffled(table_bytes, settings):
        return Decision("broadcast", (f"{table} has {table_bytes:,} bytes, not more than {limit}",))
    change = f"set {_KEY} to {table_bytes} or more, if each process has memory for several times as much"
    return Decision("shuffle", (f"{table} has {table_bytes:,} bytes, more than {limit}",), (change,))
