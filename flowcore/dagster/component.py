"""Dagster components: flows declared in a project's ``defs.yaml`` files."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg
from pydantic import Field

from flowcore.api.flow import load_flow
from flowcore.dagster.attributes import AssetAttributes, Automation, Expectations, Objectives
from flowcore.dagster.definitions import FlowAssets, definitions, flow_assets

__all__ = ["FlowComponent", "FlowsComponent"]


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
        """The flow's definitions."""
        return flow_assets(
            load_flow(self.flow),
            owners=self.owners,
            group=self.group,
            tags=self.tags,
            descriptions=self.descriptions,
            automation=self.automation,
            objectives=self.objectives,
            expectations=self.expectations,
        )


class FlowComponent(_FlowAttributes, dg.Component):
    """One flow: its assets, checks, jobs, schedules and sensors, and its external assets."""

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the definitions of the flow."""
        del context
        return definitions(self.assets())


class FlowsComponent(dg.Component, dg.Model, dg.Resolvable):
    """Several flows; a topic or file that more than one of them uses is one asset."""

    flows: Sequence[_FlowAttributes] = Field(description="The attributes of a FlowComponent for each flow.")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the definitions of all flows."""
        del context
        return definitions(*(flow.assets() for flow in self.flows))
