"""Backlog: when does a live query take what it reads for history?

A blocking edge with records that are pending counts as a source in backlog. Any input in backlog makes the
query's records backlog; they are news when all inputs have said so (`flowcore.backlog.channels`).
"""

from __future__ import annotations

from flowcore.backlog.inputs import CATCH_UP_S
from flowcore.planner.plan import Decision, LiveQuery

__all__ = ["backlog_of"]


def backlog_of(query: LiveQuery) -> Decision:
    """When a live query is in backlog."""
    pending = ", ".join(node.name for node in query.results)
    lagging = ", ".join(node.name for node in query.sources)
    reasons = [
        *(
            f"the edge from {node.name} is blocking: what is pending there is backlog"
            for node in query.results
        ),
        f"{lagging} would take over {CATCH_UP_S:g} s to read to its end",
    ]
    until = f"until {pending} is committed, and " if pending else ""
    return Decision(f"{until}while {lagging} lags", tuple(reasons))
