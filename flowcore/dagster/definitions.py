"""Dagster definitions of flows: of one flow from its plan, and of several flows with shared resources.

The components do the same for flows that a project declares in its ``defs.yaml`` files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import dagster as dg
from pydantic import Field

from flowcore.api.flow import Flow
from flowcore.api.loading import load_flow
from flowcore.dagster import stream_checks
from flowcore.dagster.attributes import AssetAttributes, Automation, Expectations, Objectives
from flowcore.dagster.bounded_assets import build_bounded_assets
from flowcore.dagster.live_asset import build_live_asset
from flowcore.dagster.names import build_external_assets, topics_with_dead_letters
from flowcore.dagster.resources import (
    FlowcoreResource,
    KafkaResource,
    ResultsResource,
    SparkResource,
    refuse_literal_secrets,
)
from flowcore.dagster.restart_sensor import build_restart_sensor, build_running_check
from flowcore.dagster.sensors import (
    build_automation_sensor,
    build_history_sensor,
    build_jobs,
    build_lag_sensor,
)
from flowcore.dagster.table_checks import build_completeness_checks, build_expectation_checks
from flowcore.planner import plan_flow
from flowcore.planner.plan import Plan
from flowcore.settings import Settings

__all__ = ["FlowAssets", "FlowComponent", "FlowsComponent", "definitions", "flow_assets"]

# Dagster merges definitions with the same resource key only if the resource is the same object.
_FLOWCORE, _SPARK = FlowcoreResource(), SparkResource()


@dataclass(frozen=True, slots=True)
class FlowAssets:
    """A flow's plan, and its definitions without resources and external assets, which flows share."""

    plan: Plan
    definitions: dg.Definitions


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
    """Build the Dagster definitions of a flow; no JVM is started.

    ``owners``, ``group``, ``tags`` and ``descriptions`` are those of `AssetAttributes`. ``expectations`` are
    by table of a bounded stage.

    Raises:
        PlanError: The flow cannot run, or a table does not have an expected column.
        ConfigurationError: No bounded stage writes a table with expectations, or several bounded sinks are
            one asset.
        SettingsError: A setting in the environment, which the displayed plan depends on, is invalid.
    """
    plan = plan_flow(flow, settings=Settings.of())
    attributes = AssetAttributes(owners=owners, group=group, tags=tags or {}, descriptions=descriptions or {})
    automation, objectives = automation or Automation(), objectives or Objectives()
    policy, keep_runs = automation.restart_policy, timedelta(days=automation.keep_runs_days)
    assets, sensors = [], [build_restart_sensor(plan, policy, keep_runs)]
    checks = [check for stage in plan.bounded for check in build_completeness_checks(stage, plan.flow)]
    checks += build_expectation_checks(plan, expectations or {})
    if plan.bounded:
        assets.append(build_bounded_assets(flow, plan, attributes))
        sensors += [build_history_sensor(plan), build_automation_sensor(plan)]
    if plan.live is not None:
        assets.append(build_live_asset(flow, plan, attributes, objectives))
        checks += [stream_checks.build_stream_checks(plan, objectives), build_running_check(plan, policy)]
        sensors += [stream_checks.build_health_sensor(plan, objectives), build_lag_sensor(plan, automation)]
        if topics_with_dead_letters(plan):
            sensors.append(stream_checks.build_dead_letter_sensor(plan))
    own = dg.Definitions(assets=assets, asset_checks=checks, sensors=sensors)
    return FlowAssets(plan, dg.Definitions.merge(own, build_jobs(plan, automation)))


def definitions(
    *flows: FlowAssets,
    kafka: KafkaResource | None = None,
    results: ResultsResource | None = None,
    flowcore: FlowcoreResource | None = None,
    spark: SparkResource | None = None,
) -> dg.Definitions:
    """Combine flows and their resources into the definitions of a code location.

    Args:
        flows: From `flow_assets`; a topic or file that several of them use is one asset.
        kafka: The broker, and how to log in to it. Default: that of ``flowcore``.
        results: Folders. Default: those of ``flowcore``.
        flowcore: All other settings; it may contain its own broker and folders. Default: the environment.
        spark: Spark. Default: flowcore's own configuration on this machine.

    Raises:
        SettingsError: A resource contains a secret, which Dagster would store and show, or a setting that
            does not exist.
    """
    flowcore, spark = flowcore or _FLOWCORE, spark or _SPARK
    refuse_literal_secrets(flowcore, spark)
    if kafka or results:
        given = {name: getattr(flowcore, name) for name in type(flowcore).model_fields}
        given |= {"kafka": kafka or flowcore.kafka, "results": results or flowcore.results}
        flowcore = type(flowcore)(**given)
        refuse_literal_secrets(flowcore, spark)
    resources = {
        "kafka": flowcore.kafka, "results": flowcore.results, "flowcore": flowcore, "spark": spark
    }  # fmt: skip
    shared = dg.Definitions(
        assets=build_external_assets([flow.plan for flow in flows]),
        asset_checks=stream_checks.build_dead_letter_checks(
            each for flow in flows for each in topics_with_dead_letters(flow.plan)
        ),
        resources=resources,
        # Assets that run one after another in one process share one JVM.
        executor=dg.in_process_executor,
    )
    return dg.Definitions.merge(shared, *(flow.definitions for flow in flows))


class _FlowAttributes(AssetAttributes):
    """One flow and the attributes that a user adds to its plan."""

    flow: str = Field(description="The flow's location: MODULE:FLOW, for instance my_flows.sales:flow.")
    automation: Automation = Field(default=Automation(), description="When it runs without a person.")
    objectives: Objectives = Field(
        default=Objectives(), description="Service level objectives of its stream."
    )
    expectations: dict[str, Expectations] = Field(
        default={}, description="Expectations of the values, by table of a bounded stage."
    )

    def assets(self) -> FlowAssets:
        attributes = {name: getattr(self, name) for name in _FlowAttributes.model_fields if name != "flow"}
        return flow_assets(load_flow(self.flow), **attributes)


class FlowComponent(_FlowAttributes, dg.Component):
    """One flow: its assets, checks, jobs, schedules and sensors, and its external assets."""

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        del context
        return definitions(self.assets())


class FlowsComponent(dg.Component, dg.Model, dg.Resolvable):
    """Several flows; a topic or file that more than one of them uses is one asset."""

    flows: Sequence[_FlowAttributes] = Field(description="The attributes of a FlowComponent for each flow.")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        del context
        return definitions(*(flow.assets() for flow in self.flows))
