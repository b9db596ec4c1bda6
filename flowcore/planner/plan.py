"""The plan of a flow: what runs as batch, what runs live, how, and why.

A plan is a pure function of a flow and its settings. It depends on no engine, no clock and no broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from flowcore.api.flow import Flow
from flowcore.api.operators import Operator
from flowcore.errors import PlanError
from flowcore.planner.model import BoundedStage, LiveQuery, LiveStage, Mode, PlanData
from flowcore.planner.rules import execution, timestamps
from flowcore.planner.rules.aggregates import move_to_key_groups
from flowcore.planner.rules.columns import find_used_columns
from flowcore.planner.rules.copies import build_chains
from flowcore.planner.rules.failures import decide_failures, select_dead_letter_sources
from flowcore.planner.rules.flush import decide_flushes
from flowcore.planner.rules.folders import require_folders
from flowcore.planner.rules.histories import require_histories
from flowcore.planner.rules.joins import decide_joins
from flowcore.planner.rules.pushdown import push_filters
from flowcore.planner.rules.queries import build_live_stage, explain_exchanges
from flowcore.planner.rules.stages import build_bounded_stages
from flowcore.planner.views.text import render_text
from flowcore.settings import Settings

__all__ = ["Plan", "plan_flow"]

_Runs = TypeVar("_Runs", BoundedStage, LiveQuery)


@dataclass(frozen=True, slots=True)
class Plan(PlanData):
    """What runs, in which order, and why; with its renderings."""

    def explain(self, *, verbose: bool = False) -> str:
        """The plan as text; with ``verbose``, each rule's outcome for each operator and edge."""
        return render_text(self, verbose=verbose)

    def to_mermaid(self) -> str:
        """The plan as a Mermaid flowchart."""
        from flowcore.planner.views.mermaid import render_mermaid  # noqa: PLC0415 - most plans are text

        return render_mermaid(self)

    def to_svg(self) -> str:
        """The plan as a picture, for places that draw no Mermaid."""
        from flowcore.planner.views.svg import render_svg  # noqa: PLC0415 - most plans are text

        return render_svg(self)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values: every decision, its reasons, and what would change it."""
        from flowcore.planner.views.json import render_json  # noqa: PLC0415 - most plans are text

        return render_json(self)


def plan_flow(
    flow: Flow,
    mode: Mode | None = None,
    settings: Settings | None = None,
    table_bytes: Mapping[str, int] | None = None,
) -> Plan:
    """Plan a flow; without a mode each live query gets the fastest that it allows, and catches up in batches.

    Args:
        table_bytes: The known sizes of committed results of its bounded stages, by name of the operator.

    Raises:
        PlanError: The flow writes nothing, or cannot run as asked.
        ConfigurationError: Settings contradict each other.
    """
    if not flow.sinks:
        msg = f"flow {flow.name!r} has no sink: it would compute nothing; end it with .write(name, sink)"
        raise PlanError(msg)
    settings = settings or Settings()
    require_folders(flow.operators, settings)
    operators, filters = push_filters(move_to_key_groups(flow.operators))
    timestamps.require_watermarks(operators, settings)
    require_histories(operators)
    bounded = build_bounded_stages(operators)
    execution.require_live_delivery(bounded)
    live = build_live_stage(operators, mode, settings)
    flushed = decide_flushes(live.queries if live else (), settings)
    joining = tuple(
        decide_joins(
            replace(query, catch_up=execution.decide_catch_up(query, mode, settings)),
            table_bytes or {},
            settings,
        )
        for query in flushed
    )
    queries = tuple(_decide_query(query, operators, bounded, mode, settings) for query in joining)
    return Plan(
        flow=flow.name,
        bounded=tuple(_decide_bounded_stage(stage, settings) for stage in bounded),
        live=LiveStage(queries) if live else None,
        filters=filters,
    )


def _decide_bounded_stage(stage: BoundedStage, settings: Settings) -> BoundedStage:
    """The stage with the decisions about its chains, edges, columns and failures."""
    return _set_failures(
        replace(
            stage,
            chains=build_chains(stage.operators, settings.object_reuse),
            edges=timestamps.decide_topic_edges(stage.operators, settings),
            used_columns=find_used_columns(stage.operators, [result.operator for result in stage.results]),
        )
    )


def _decide_query(
    query: LiveQuery,
    operators: Sequence[Operator],
    bounded: tuple[BoundedStage, ...],
    mode: Mode | None,
    settings: Settings,
) -> LiveQuery:
    """The query, whose mode and joins are known, with all other decisions."""
    return _set_failures(
        replace(
            execution.set_start(query, bounded, settings),
            split=explain_exchanges(query),
            chains=build_chains(query.operators, settings.object_reuse, [*query.buffers]),
            edges=timestamps.decide_edges(query, operators, settings),
            untimed_sources=timestamps.find_untimed_sources(query, operators),
            checkpoint=execution.decide_checkpoint(query, settings),
            backlog=execution.decide_backlog(query, settings),
            catch_up=execution.decide_catch_up(query, mode, settings),
            key_groups=settings.key_groups,
            idle_partitions=execution.find_idle_partitions(query, settings),
            latency=execution.decide_latency(query, settings),
            can_carry_markers=execution.can_carry_markers(query),
            delivery=execution.decide_delivery(query, settings),
            key_group_dead_letters=select_dead_letter_sources(query),
            # A buffer's state must not depend on which columns are read downstream.
            used_columns=find_used_columns(query.operators, [*query.buffers]),
        )
    )


def _set_failures(runs: _Runs) -> _Runs:
    return replace(runs, failures=decide_failures(runs))
