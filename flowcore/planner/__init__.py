"""From a flow to a plan: what runs as batch, what runs live, how, and why. No engine."""

from __future__ import annotations

from dataclasses import replace

from flowcore.api.flow import Flow
from flowcore.api.operators import Write
from flowcore.errors import PlanError
from flowcore.planner.backlog import backlog_of, catch_up_of
from flowcore.planner.checkpoints import checkpoint_of
from flowcore.planner.copies import chains_of
from flowcore.planner.flush import with_flushes
from flowcore.planner.hand_over import handed_over
from flowcore.planner.plan import LiveStage, Mode, Plan
from flowcore.planner.pushdown import pushed
from flowcore.planner.queries import live_stage
from flowcore.planner.stages import bounded_stages
from flowcore.planner.timestamps import element_edges
from flowcore.planner.tracking import tracking_of
from flowcore.settings import Settings

__all__ = ["plan_flow"]


def plan_flow(flow: Flow, mode: Mode | None = None, settings: Settings | None = None) -> Plan:
    """Plan a flow.

    Args:
        flow: What was declared.
        mode: How live queries shall run; None for the fastest mode that each allows, in micro-batches while
            it catches up.
        settings: What decides beside the flow; None for the defaults.

    Raises:
        PlanError: The flow writes nothing, or cannot run as asked.
        ConfigurationError: Settings contradict each other.
    """
    if not flow.sinks:
        msg = f"flow {flow.name!r} has no sink: it would compute nothing; end it with .write(name, sink)"
        raise PlanError(msg)
    settings = settings or Settings()
    reuse = settings.object_reuse
    operators, filters = pushed(flow.operators)
    bounded = bounded_stages(operators)
    live = live_stage(operators, mode, settings)
    held = with_flushes(live.queries if live else (), settings)
    queries = tuple(
        replace(
            handed_over(query, bounded, settings),
            chains=chains_of(query.operators, reuse, [query.buffer.operator] if query.buffer else []),
            checkpoint=checkpoint_of(query, settings),
            backlog=backlog_of(query, settings),
            catch_up=catch_up_of(query, mode, settings),
            key_groups=settings.key_groups,
            latency=tracking_of(query, settings),
        )
        for query in held
    )
    return Plan(
        flow=flow.name,
        bounded=tuple(replace(stage, chains=chains_of(stage.operators, reuse)) for stage in bounded),
        live=LiveStage(queries) if live else None,
        edges=element_edges(tuple(node for node in operators if isinstance(node, Write)), settings),
        filters=filters,
    )
