"""Dagster definitions made from a flow's plan: assets, asset checks, jobs, schedules and sensors.

`flow_assets(flow)` plans one flow and builds its definitions. `definitions(...)` combines several flows with
the resources that they share. Loading them starts no JVM. Needs the extra ``flowcore[dagster]``.
"""

from flowcore.dagster.attributes import Automation, Expectations, Objectives
from flowcore.dagster.definitions import FlowAssets, FlowComponent, FlowsComponent, definitions, flow_assets
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
