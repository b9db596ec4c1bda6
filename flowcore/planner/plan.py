"""The plan of a flow: what runs as batch, what runs live, how, and why.

A plan is a pure function of a flow and its settings. It depends on no engine, no clock and no broker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from flowcore.api.flow import Flow
from flowcore.errors import PlanError
from flowcore.planner.model import LiveStage, Mode, PlanData
from flowcore.planner.rules.backlog import decide_backlog, decide_catch_up
from flowcore.planner.rules.checkpoints import decide_checkpoint
from flowcore.planner.rules.copies import build_chains
from flowcore.planner.rules.flush import decide_flushes
from flowcore.planner.rules.latency_markers import decide_latency
from flowcore.planner.rules.pushdown import push_filters
from flowcore.planner.rules.queries import build_live_stage
from flowcore.planner.rules.result_visibility import set_start
from flowcore.planner.rules.stages import build_bounded_stages
from flowcore.planner.rules.timestamps import (
    decide_edges,
    decide_topic_edges,
    find_untimed_sources,
    require_watermarks,
)
from flowcore.planner.views.json import render_json
from flowcore.planner.views.mermaid import render_mermaid
from flowcore.planner.views.svg import render_svg
from flowcore.planner.views.text import render_text
from flowcore.settings import Settings

__all__ = ["Plan", "plan_flow"]


@dataclass(frozen=True, slots=True)
class Plan(PlanData):
    """What runs, in which order, and why; with its renderings."""

    def explain(self, *, verbose: bool = False) -> str:
        """The plan as text; with ``verbose``, each rule's outcome for each operator and edge."""
        return render_text(self, verbose=verbose)

    def to_mermaid(self) -> str:
        """The plan as a Mermaid flowchart."""
        return render_mermaid(self)

    def to_svg(self) -> str:
        """The plan as a picture, for places that draw no Mermaid."""
        return render_svg(self)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values: every decision, its reasons, and what would change it."""
        return render_json(self)


def plan_flow(flow: Flow, mode: Mode | None = None, settings: Settings | None = None) -> Plan:
    """Plan a flow; without a mode each live query gets the fastest that it allows, and catches up in batches.

    Raises:
        PlanError: The flow writes nothing, or cannot run as asked.
        ConfigurationError: Settings contradict each other.
    """
    if not flow.sinks:
        msg = f"flow {flow.name!r} has no sink: it would compute nothing; end it with .write(name, sink)"
        raise PlanError(msg)
    settings = settings or Settings()
    reuse = settings.object_reuse
    operators, filters = push_filters(flow.operators)
    require_watermarks(operators, settings)
    bounded = build_bounded_stages(operators)
    live = build_live_stage(operators, mode, settings)
    flushed = decide_flushes(live.queries if live else (), settings)
    queries = tuple(
        replace(
            set_start(query, bounded, settings),
            chains=build_chains(query.operators, reuse, [*query.buffers]),
            edges=decide_edges(query, settings),
            untimed_sources=find_untimed_sources(query, operators),
            checkpoint=decide_checkpoint(query, settings),
            backlog=decide_backlog(query, settings),
            catch_up=decide_catch_up(query, mode, settings),
            key_groups=settings.key_groups,
            latency=decide_latency(query, settings),
        )
        for query in flushed
    )
    return Plan(
        flow=flow.name,
        bounded=tuple(
            replace(
                stage,
                chains=build_chains(stage.operators, reuse),
                edges=decide_topic_edges(stage.operators, settings),
            )
            for stage in bounded
        ),
        live=LiveStage(queries) if live else None,
        filters=filters,
    )
