"""Metadata: what does Dagster show of a result, and of a running query?

Numbers keep their keys from one event to the next, since Dagster plots them over time.
"""

from __future__ import annotations

import base64
from contextlib import suppress
from pathlib import Path
from typing import Any

from dagster import MetadataValue, TableColumn, TableColumnDep, TableColumnLineage, TableSchema

from flowcore.graph.operators import Operator
from flowcore.metrics.health import markdown, tables
from flowcore.metrics.measures import measures_of
from flowcore.metrics.progress import FlowProgress
from flowcore.planner.lineage import column_lineage
from flowcore.planner.plan import Plan
from flowcore.spark.manifest import Manifest, Table
from flowcore.spark.results import version_time_s
from flowcore.spark.stages import StageProgress
from pipelines.bridge.names import asset_key

__all__ = ["Metadata", "plan_metadata", "progress_metadata", "stage_metadata", "table_metadata"]

Metadata = dict[str, MetadataValue]


def plan_metadata(plan: Plan) -> Metadata:
    """The plan of an asset's flow, drawn and in words.

    Dagster's UI draws no Mermaid, but shows a picture that stands in Markdown.
    """
    picture = base64.b64encode(plan.to_svg().encode()).decode()
    drawn = f"![plan of flow {plan.flow}](data:image/svg+xml;base64,{picture})"
    return {"plan": MetadataValue.md(f"{drawn}\n\n```\n{plan.explain()}\n```")}


def stage_metadata(progress: StageProgress, manifest: Manifest) -> Metadata:
    """What is true of all that a stage leaves.

    Args:
        progress: That it is committed.
        manifest: The committed result.
    """
    return {
        "version": MetadataValue.text(manifest.version),
        "state": MetadataValue.text(progress.state.value),
        "fresh": MetadataValue.bool(progress.fresh),
        "duration_s": MetadataValue.float(manifest.duration_ms / 1000),
        **{f"{state.value}_s": MetadataValue.float(seconds) for state, seconds in progress.seconds},
        "sources": MetadataValue.json(dict(manifest.sources)),
        "rejected": MetadataValue.int(sum(manifest.rejected.values())),
    }


def table_metadata(table: Table, folder: Path, operator: Operator, flow: str) -> Metadata:
    """What is true of one table.

    Args:
        table: As its stage committed it.
        folder: Holds its files.
        operator: Whose output it is.
        flow: The flow's name.
    """
    columns = [TableColumn(name, kind) for name, kind in table.schema]
    lineage = TableColumnLineage(
        {
            column: [TableColumnDep(asset_key(flow, source), name) for source, name in origins]
            for column, origins in column_lineage(operator).items()
        }
    )
    return {
        "dagster/row_count": MetadataValue.int(table.rows),
        "dagster/column_schema": MetadataValue.table_schema(TableSchema(columns)),
        "dagster/column_lineage": MetadataValue.column_lineage(lineage),
        "digest": MetadataValue.text(table.digest),
        "files": MetadataValue.int(len(table.files)),
        "bytes": _count(sum(file.bytes for file in table.files)),
        "path": MetadataValue.path(folder),
    }


def progress_metadata(progress: FlowProgress) -> Metadata:
    """How live queries are doing: every measure, and tables for a person."""
    found: Metadata = {
        "health": MetadataValue.md("\n\n".join(map(markdown, tables(progress)))),
        "seconds": MetadataValue.float(progress.seconds),
    }
    for query in progress.queries:
        found[f"{query.name}/mode"] = MetadataValue.text(query.mode)
        found[f"{query.name}/realtime"] = MetadataValue.int(query.mode == "realtime")
        found |= _measures(query.name, query, progress.time_ms)
        for one in query.partitions:
            path = f"{query.name}/{one.topic}[{one.partition}]"
            found |= _measures(path, one, progress.time_ms)
        for stage, version in query.bounded.items():
            found[f"bounded_version/{stage}"] = MetadataValue.text(version)
            with suppress(ValueError):
                age_s = progress.time_ms / 1000 - version_time_s(version)
                found[f"bounded_age_s/{stage}"] = MetadataValue.float(max(age_s, 0.0))
    for latency in progress.latencies:
        path = f"latency/{latency.source} -> {latency.sink}"
        found |= _measures(path, latency, progress.time_ms)
    return found


def _measures(path: str, of: Any, now_ms: int) -> Metadata:
    found: Metadata = {}
    for measure in measures_of(of):
        key, value = measure.key, measure.of(of)
        if measure.unit == "ago":  # a watermark that stands still shall be seen to fall behind
            key, value = key.replace("_ms", "_delay_s"), measure.figure(of, now_ms)
        if value is None or not measure.plotted:
            continue
        found[f"{path}/{key}"] = (
            MetadataValue.float(value) if isinstance(value, float) else _count(int(value))
        )
    return found


def _count(number: int) -> MetadataValue:
    # The UI's plots take whole numbers of 32 bits and leave a gap for a larger one.
    return MetadataValue.int(number) if number < 1 << 31 else MetadataValue.float(float(number))
