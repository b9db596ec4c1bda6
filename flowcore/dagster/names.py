"""Asset keys and names of jobs, ops and pools for the parts of a flow.

A table of a bounded stage has the key ``[flow, table]``. Sources and sinks have keys without the flow's name,
so that one flow's output and another flow's input are the same asset: ``["kafka", topic]`` or ``["files",
*path]``.
"""

from __future__ import annotations

import re

import dagster as dg

from flowcore.api.connectors import Frame, KafkaTopic, Source
from flowcore.api.operators import Read, Write
from flowcore.planner.model import BoundedStage
from flowcore.planner.plan import Plan


def asset_key(flow: str, operator: Read | Write) -> dg.AssetKey:
    """The key of a source or sink."""
    match operator.connector:
        case KafkaTopic(name=name):
            return topic_key(name)
        case Frame():
            return dg.AssetKey([flow, operator.name])
        case files:
            parts = [part for part in re.split(r"[:/\\]+", files.path) if part]
            return dg.AssetKey(["files", *parts])


def topic_key(name: str) -> dg.AssetKey:
    """The key of a topic, the same for all flows."""
    return dg.AssetKey(["kafka", name])


def asset_kind(connector: Source) -> str:
    """The asset kind of a source or sink, which selects the icon in the UI: ``kafka``, ``parquet``, ..."""
    special = {KafkaTopic: "kafka", Frame: "python"}
    return special.get(type(connector), type(connector).__name__.lower())


def op_name(flow: str, stage: str) -> str:
    """The name of a stage's op and of its pool; it differs from all names of jobs.

    >>> op_name("sales", "live")
    'sales__live'
    """
    return f"{identifier(flow)}__{identifier(stage)}"


def table_key(flow: str, result: str) -> dg.AssetKey:
    return dg.AssetKey([flow, result])


def live_key(flow: str) -> dg.AssetKey:
    return dg.AssetKey([flow, "live"])


def stage_keys(stage: BoundedStage, plan: Plan) -> list[dg.AssetKey]:
    tables = [table_key(plan.flow, result.name) for result in stage.results]
    return tables + [asset_key(plan.flow, sink) for sink in stage.sinks]


def bounded_keys(plan: Plan) -> list[dg.AssetKey]:
    return [key for stage in plan.bounded for key in stage_keys(stage, plan)]


def identifier(*parts: str) -> str:
    """A valid Dagster name for a job, op, group or pool: letters, digits and ``_``.

    >>> identifier("shop-sales", "totals+report")
    'shop_sales_totals_report'
    """
    return re.sub(r"\W", "_", "_".join(parts), flags=re.ASCII)
