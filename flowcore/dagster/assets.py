"""The assets of a flow: what Dagster is told of one flow, made from its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dagster import Definitions

from flowcore.api.flow import Flow
from flowcore.dagster.attributes import Automation, Expectations, Notes, Objectives
from flowcore.dagster.automation import automation_of
from flowcore.dagster.bounded_assets import completeness_checks, history_assets
from flowcore.dagster.live_asset import live_asset
from flowcore.dagster.restart_sensor import running_check
from flowcore.dagster.stream_checks import health_checks
from flowcore.dagster.table_checks import expectation_checks
from flowcore.planner import plan_flow
from flowcore.planner.plan import Plan
from flowcore.settings import Settings

__all__ = ["FlowAssets", "flow_assets"]


@dataclass(frozen=True, slots=True)
class FlowAssets:
    """One flow as Dagster sees it.

    Attributes:
        plan: Of the flow.
        definitions: Its assets, checks, jobs and schedules, without resources and without what lies
            around it: those are shared with other flows.
    """

    plan: Plan
    definitions: Definitions


def flow_assets(
    flow: Flow,
    *,
    owners: Sequence[str] = (),
    group: str | None = None,
    tags: Mapping[str, str] | None = None,
    descriptions: Mapping[str, str] | None = None,
    automation: Automation | None = None,
    objectives: Objectives | None = None,
    expectations: Mapping[str, Expectations] | None = None,
) -> FlowAssets:
    """Describe a flow to Dagster; no JVM is started.

    Args:
        flow: The flow.
        owners: Who answers for it: e-mail addresses, or ``team:name``.
        group: Of its assets. Default: the flow's name.
        tags: Put on every asset of the flow.
        descriptions: Markdown by the name of a table or sink; ``"live"`` is that of the live queries.
        automation: When it runs by itself.
        objectives: What its stream shall hold.
        expectations: By table of a bounded stage, what it shall hold.

    Raises:
        PlanError: The flow cannot run, or something is expected of a column that a table does not have.
        ConfigurationError: Something is expected of a table that there is not.
        SettingsError: A setting in the environment, by which the shown plan is made, cannot be used.
    """
    plan = plan_flow(flow, settings=Settings.of())
    notes = Notes(owners=owners, group=group, tags=tags or {}, descriptions=descriptions or {})
    options = automation or Automation()
    assets = [history_assets(plan, notes)] if plan.bounded else []
    checks = [check for stage in plan.bounded for check in completeness_checks(stage, plan)]
    checks += expectation_checks(plan, expectations or {})
    held = objectives or Objectives()
    if plan.live is not None:
        assets.append(live_asset(flow, plan, notes, held))
        checks.append(health_checks(plan, held))
        checks.append(running_check(plan, options.restart_policy))
    own = Definitions(assets=assets, asset_checks=checks)
    return FlowAssets(plan, Definitions.merge(own, automation_of(plan, options, held)))
