"""Waiting: which live queries wait for bounded stages, and what do they wait for?"""

from __future__ import annotations

from collections.abc import Collection

from flowcore.api.operators import Operator
from flowcore.backlog.inputs import QueryInputs
from flowcore.metrics.progress import QueryProgress
from flowcore.planner.model import LiveQuery
from flowcore.planner.plan import Plan

__all__ = ["WAITING", "inputs_of", "waiting_queries"]

WAITING = "waiting"
"""The mode of a query that is not started yet."""


def waiting_queries(plan: Plan, committed: Collection[str]) -> tuple[QueryProgress, ...]:
    """The live queries of a plan that wait for bounded stages, and hold nothing.

    Args:
        plan: What runs.
        committed: Names of the bounded stages that are committed.
    """
    pending = {r.operator for stage in plan.bounded if stage.name not in committed for r in stage.results}
    return tuple(
        QueryProgress(name=query.name, mode=WAITING, active=True, backlog=inputs_of(query, pending).backlog)
        for query in (plan.live.queries if plan.live else ())
        if not set(query.after) <= {*committed}
    )


def inputs_of(query: LiveQuery, pending: Collection[Operator] = ()) -> QueryInputs:
    """What a query reads, with those of its bounded results that are pending; the others are no backlog."""
    inputs = QueryInputs((node.name for node in query.results), (node.name for node in query.sources))
    for node in query.results:
        if node not in pending:
            inputs.update(node.name, backlog=False)
    return inputs
