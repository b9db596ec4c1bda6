"""Metadata: what does Dagster show of a result, and of a running query?

Numbers keep their keys from one event to the next, since Dagster plots them over time.
"""

from __future__ import annotations

import base64
from contextlib import suppress
from pathlib import Path

from dagster import MetadataValue, TableColumn, TableColumnDep, TableColumnLineage, TableSchema

from flowcore.api.operators import Operator
from flowcore.dagster.names import asset_key
from flowcore.metrics.figures import Figure, figures, plotted
from flowcore.metrics.health import markdown, tables
from flowcore.metrics.progress import FlowProgress
from flowcore.planner.plan import Plan
from flowcore.planner.rules.lineage import column_lineage
from flowcore.spark.results.manifest import Manifest, Table
from flowcore.spark.results.store import version_time_s
from flowcore.spark.run.bounded_stages import StageProgress

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
        "bytes": _value(plotted(sum(file.bytes for file in table.files))),
        "path": MetadataValue.path(folder),
    }


def progress_metadata(progress: FlowProgress) -> Metadata:
    """How live queries are doing: every figure, the age of what they join, and tables for a person."""
    found = {key: _value(figure) for key, figure in figures(progress).items()}
    for query in progress.queries:
        for stage, version in query.bounded.items():
            with suppress(ValueError):
                age_s = progress.time_ms / 1000 - version_time_s(version)
                found[f"bounded_age_s/{stage}"] = MetadataValue.float(max(age_s, 0.0))
    return {"health": MetadataValue.md("\n\n".join(map(markdown, tables(progress)))), **found}


def _value(figure: Figure) -> MetadataValue:
    match figure:
        case str():
            return MetadataValue.text(figure)
        case int():
            return MetadataValue.int(figure)
        case _:
            return MetadataValue.float(figure)
