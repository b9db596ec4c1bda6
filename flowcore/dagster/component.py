"""Components: flows described in YAML, for a project whose definitions are a folder of ``defs.yaml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster import Component, ComponentLoadContext, Definitions, Model, Resolvable
from pydantic import Field

from flowcore.api.loading import load_flow
from flowcore.dagster.assets import FlowAssets, flow_assets
from flowcore.dagster.attributes import Automation, Expectations, Objectives
from flowcore.dagster.definitions import definitions

__all__ = ["FlowComponent", "FlowsComponent"]


class _FlowForm(Model, Resolvable):
    """One flow, and what a person adds to its plan."""

    flow: str = Field(description="Where it is: MODULE:FLOW, for instance my_flows.sales:flow.")
    owners: Sequence[str] = Field(default=(), description="E-mail addresses, or team:name.")
    group: str | None = Field(default=None, description="Group of its assets. Default: the flow's name.")
    tags: Mapping[str, str] = Field(default={}, description="Put on every asset of the flow.")
    descriptions: Mapping[str, str] = Field(
        default={},
        description="Markdown by the name of a table or sink; that of `live` is of the live queries.",
    )
    automation: Automation = Field(default=Automation(), description="When it runs by itself.")
    objectives: Objectives = Field(default=Objectives(), description="What its stream shall hold.")
    expectations: dict[str, Expectations] = Field(
        default={}, description="By table of a bounded stage, what it shall hold."
    )

    def assets(self) -> FlowAssets:
        """The flow as Dagster sees it."""
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


class FlowComponent(_FlowForm, Component):
    """One flow: its assets, checks, jobs, schedules and sensors, and what lies around it."""

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """All that Dagster is told of it."""
        del context
        return definitions(self.assets())


class FlowsComponent(Component, Model, Resolvable):
    """Several flows; a topic or file that more than one of them touches is one asset."""

    flows: Sequence[_FlowForm] = Field(description="Each as the attributes of a FlowComponent.")

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """All that Dagster is told of them."""
        del context
        return definitions(*(form.assets() for form in self.flows))
