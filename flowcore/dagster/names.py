"""Names: under which asset key, job and op does Dagster know a part of a flow?

What a stage computes belongs to its flow: ``[flow, table]``. What lies outside is the same thing to
every flow: a topic is ``["kafka", name]``, files are ``["files", *path]``, so that one flow's output
and another's input are one node of the graph.
"""

from __future__ import annotations

import re

from dagster import AssetKey

from flowcore.api.connectors import Frame, KafkaTopic, Source
from flowcore.api.operators import Read, Write
from flowcore.planner.model import BoundedStage
from flowcore.planner.plan import Plan

__all__ = [
    "asset_key",
    "bounded_keys",
    "identifier",
    "kind_of",
    "live_key",
    "op_name",
    "stage_keys",
    "table_key",
    "topic_key",
]


def asset_key(flow: str, end: Read | Write) -> AssetKey:
    """The key of a source or sink."""
    connector = end.source if isinstance(end, Read) else end.sink
    match connector:
        case KafkaTopic(name=name):
            return topic_key(name)
        case Frame():
            return AssetKey([flow, end.name])
        case files:
            parts = [part for part in re.split(r"[:/\\]+", files.path) if part]
            return AssetKey(["files", *parts])


def topic_key(name: str) -> AssetKey:
    """The key of a topic, to every flow."""
    return AssetKey(["kafka", name])


def kind_of(connector: Source) -> str:
    """The kind of a source or sink, by which the UI picks an icon: ``kafka``, ``parquet``, ..."""
    special = {KafkaTopic: "kafka", Frame: "python"}
    return special.get(type(connector), type(connector).__name__.lower())


def op_name(flow: str, stage: str) -> str:
    """The name of the op and the pool of a stage; no job has it, for theirs must differ.

    >>> op_name("sales", "live")
    'sales__live'
    """
    return f"{identifier(flow)}__{identifier(stage)}"


def table_key(flow: str, result: str) -> AssetKey:
    """The key of a table that a bounded stage leaves."""
    return AssetKey([flow, result])


def live_key(flow: str) -> AssetKey:
    """The key of a flow's live queries."""
    return AssetKey([flow, "live"])


def stage_keys(stage: BoundedStage, plan: Plan) -> list[AssetKey]:
    """The keys of the tables and sinks that a bounded stage makes."""
    tables = [table_key(plan.flow, result.name) for result in stage.results]
    return tables + [asset_key(plan.flow, sink) for sink in stage.sinks]


def bounded_keys(plan: Plan) -> list[AssetKey]:
    """The keys of all tables and sinks that the bounded stages of a plan make."""
    return [key for stage in plan.bounded for key in stage_keys(stage, plan)]


def identifier(*parts: str) -> str:
    """A name that Dagster takes for a job, op, group or pool: letters, digits and ``_``.

    >>> identifier("shop-sales", "totals+report")
    'shop_sales_totals_report'
    """
    return re.sub(r"\W", "_", "_".join(parts), flags=re.ASCII)
