"""Flows in Dagster: assets, checks, jobs, schedules and sensors made from a plan.

`flow_assets(flow)` plans a flow and builds what Dagster shows of it; `definitions(...)` puts the assets of
several flows and their resources together. Loading starts no JVM. Needs the extra ``flowcore[dagster]``.
"""

from flowcore.dagster.assets import FlowAssets, flow_assets
from flowcore.dagster.attributes import Automation, Expectations, Objectives
from flowcore.dagster.component import FlowComponent, FlowsComponent
from flowcore.dagster.definitions import definitions
from flowcore.dagster.resources import FlowcoreResource, KafkaResource, ResultsResource, SparkResource

__all__ = [
    "Automation",
    "Expectations",
    "FlowAssets",
    "FlowComponent",
    "FlowcoreResource",
    "FlowsComponent",
    "KafkaResource",
    "Objectives",
    "ResultsResource",
    "SparkResource",
    "definitions",
    "flow_assets",
]
