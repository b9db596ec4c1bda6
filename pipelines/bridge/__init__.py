"""The bridge: from a flow to what Dagster shows, launches and watches.

`bridge(flow)` plans a flow and describes it to Dagster; `definitions(...)` puts bridged flows and
their resources together. Loading starts no JVM.
"""

from pipelines.bridge.component import FlowComponent, FlowsComponent
from pipelines.bridge.definitions import definitions
from pipelines.bridge.flow import BridgedFlow, bridge
from pipelines.bridge.options import Automation, Expectations, Objectives
from pipelines.bridge.resources import FlowcoreResource, KafkaResource, ResultsResource, SparkResource

__all__ = [
    "Automation",
    "BridgedFlow",
    "Expectations",
    "FlowComponent",
    "FlowcoreResource",
    "FlowsComponent",
    "KafkaResource",
    "Objectives",
    "ResultsResource",
    "SparkResource",
    "bridge",
    "definitions",
]
