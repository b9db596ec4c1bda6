"""Definitions: all flows of a code location with the resources they share."""

from __future__ import annotations

from dagster import Definitions, in_process_executor

from pipelines.bridge.dead_letters import dead_letter_checks
from pipelines.bridge.externals import dead_lettered, external_specs, externals_of
from pipelines.bridge.flow import BridgedFlow
from pipelines.bridge.names import bounded_keys
from pipelines.bridge.resources import FlowcoreResource, SparkResource

__all__ = ["definitions"]

# What Dagster merges may define a resource twice only if it is one object.
_FLOWCORE, _SPARK = FlowcoreResource(), SparkResource()


def definitions(
    *flows: BridgedFlow, flowcore: FlowcoreResource | None = None, spark: SparkResource | None = None
) -> Definitions:
    """What Dagster loads.

    Args:
        flows: Bridged flows; a topic or file that several of them touch is one asset.
        flowcore: Broker and folders; default: from the environment.
        spark: Spark; default: flowcore's own configuration on this machine.
    """
    resources = {"flowcore": flowcore or _FLOWCORE, "spark": spark or _SPARK}
    made = [key for flow in flows for key in bounded_keys(flow.plan)]
    outside = external_specs((e for flow in flows for e in externals_of(flow.plan)), made)
    letters = dead_letter_checks(topic for flow in flows for topic in dead_lettered(flow.plan))
    # Assets that run one after another in one process share one JVM.
    shared = Definitions(
        assets=outside, asset_checks=letters, resources=resources, executor=in_process_executor
    )
    return Definitions.merge(shared, *(flow.definitions for flow in flows))
