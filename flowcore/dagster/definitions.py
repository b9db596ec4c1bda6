"""Definitions: all flows of a code location with the resources they share."""

from __future__ import annotations

from dagster import Definitions, in_process_executor

from flowcore.dagster.assets import FlowAssets
from flowcore.dagster.dead_letter_checks import dead_letter_checks
from flowcore.dagster.external_assets import dead_lettered, external_specs, externals_of
from flowcore.dagster.names import bounded_keys
from flowcore.dagster.resources import FlowcoreResource, KafkaResource, ResultsResource, SparkResource

__all__ = ["definitions"]

# What Dagster merges may define a resource twice only if it is one object.
_FLOWCORE, _SPARK = FlowcoreResource(), SparkResource()


def definitions(
    *flows: FlowAssets,
    kafka: KafkaResource | None = None,
    results: ResultsResource | None = None,
    flowcore: FlowcoreResource | None = None,
    spark: SparkResource | None = None,
) -> Definitions:
    """What Dagster loads.

    Args:
        flows: The assets of flows; a topic or file that several of them touch is one asset.
        kafka: The broker and how one speaks to it; default: from the environment.
        results: Folders; default: from the environment.
        flowcore: Any other setting; default: from the environment. It may bring its own broker and folders.
        spark: Spark; default: flowcore's own configuration on this machine.
    """
    if flowcore is None and (kafka or results):
        flowcore = FlowcoreResource(kafka=kafka or _FLOWCORE.kafka, results=results or _FLOWCORE.results)
    flowcore = flowcore or _FLOWCORE
    resources = {
        "kafka": flowcore.kafka, "results": flowcore.results, "flowcore": flowcore, "spark": spark or _SPARK
    }  # fmt: skip
    made = [key for flow in flows for key in bounded_keys(flow.plan)]
    outside = external_specs((e for flow in flows for e in externals_of(flow.plan)), made)
    letters = dead_letter_checks(topic for flow in flows for topic in dead_lettered(flow.plan))
    # Assets that run one after another in one process share one JVM.
    shared = Definitions(
        assets=outside, asset_checks=letters, resources=resources, executor=in_process_executor
    )
    return Definitions.merge(shared, *(flow.definitions for flow in flows))
