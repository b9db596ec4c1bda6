"""Metadata: what does Dagster show of a result, and of a running query?

Numbers keep their keys from one event to the next, since Dagster plots them over time.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path

from dagster import MetadataValue, TableColumn, TableSchema

from flowcore.latency import LatencySummary
from flowcore.planner.plan import Plan
from flowcore.spark.manifest import Manifest, Table
from flowcore.spark.progress import QueryProgress
from flowcore.spark.stages import StageProgress

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


def table_metadata(table: Table, folder: Path) -> Metadata:
    """What is true of one table; ``folder`` holds its files."""
    columns = [TableColumn(name, kind) for name, kind in table.schema]
    return {
        "dagster/row_count": MetadataValue.int(table.rows),
        "dagster/column_schema": MetadataValue.table_schema(TableSchema(columns)),
        "digest": MetadataValue.text(table.digest),
        "files": MetadataValue.int(len(table.files)),
        "bytes": _count(sum(file.bytes for file in table.files)),
        "path": MetadataValue.path(folder),
    }


def progress_metadata(
    queries: Iterable[QueryProgress],
    seconds: float,
    versions: Mapping[str, str],
    latency: Iterable[LatencySummary] = (),
) -> Metadata:
    """How live queries are doing.

    Args:
        queries: Of one live stage.
        seconds: How long they have run.
        versions: The version of each bounded result that they join.
        latency: Of the last minute, where it is tracked.
    """
    found: Metadata = {
        "seconds": MetadataValue.float(seconds),
    }
    for query in queries:
        found |= {
            f"{query.name}/mode": MetadataValue.text(query.mode),
            f"{query.name}/batches": _count(query.batches),
            f"{query.name}/records": _count(query.rows_in),
            f"{query.name}/records_out": _count(query.rows_out),
            f"{query.name}/dead_letters": _count(query.dead_letters),
            f"{query.name}/records_per_second": MetadataValue.float(query.rows_per_second),
        }
        if query.backlog is not None:
            found[f"{query.name}/backlog"] = MetadataValue.bool(query.backlog)
    for one in latency:
        path = f"latency/{one.source} -> {one.sink}"
        found[f"{path}/markers"] = _count(one.count)
        figures = ("p50", one.p50_ms), ("p90", one.p90_ms), ("p99", one.p99_ms), ("max", one.max_ms)
        for name, value_ms in figures:
            if value_ms is not None:
                found[f"{path}/{name}_ms"] = MetadataValue.float(value_ms)
    return found | {
        f"bounded_version/{stage}": MetadataValue.text(version) for stage, version in versions.items()
    }


def _count(number: int) -> MetadataValue:
    # The UI's plots take whole numbers of 32 bits and leave a gap for a larger one.
    return MetadataValue.int(number) if number < 1 << 31 else MetadataValue.float(float(number))
