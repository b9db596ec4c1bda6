"""Dagster metadata of plans, stages, tables and running queries.

Numbers keep their keys from one event to the next, since Dagster plots them over time.
"""

from __future__ import annotations

import base64
from contextlib import suppress
from pathlib import Path

import dagster as dg

from flowcore.api.operators import Operator
from flowcore.dagster.names import asset_key
from flowcore.escaping import markdown_block
from flowcore.metrics.dagster import Figure, figures, plotted
from flowcore.metrics.health import markdown, tables
from flowcore.metrics.progress import FlowProgress
from flowcore.planner.plan import Plan
from flowcore.planner.rules.columns import trace_columns
from flowcore.spark.results.manifest import Manifest, Table
from flowcore.spark.results.store import version_time_s
from flowcore.spark.run.bounded_stages import StageProgress

__all__ = ["Metadata", "plan_metadata", "progress_metadata", "stage_metadata", "table_metadata"]

Metadata = dict[str, dg.MetadataValue]


def plan_metadata(plan: Plan) -> Metadata:
    """The plan of an asset's flow, as a picture and as text.

    Dagster's UI does not render Mermaid, but shows a picture inside Markdown.
    """
    picture = base64.b64encode(plan.to_svg().encode()).decode()
    drawn = f"![plan of the flow](data:image/svg+xml;base64,{picture})"
    return {"plan": dg.MetadataValue.md(f"{drawn}\n\n{markdown_block(plan.explain())}")}


def stage_metadata(progress: StageProgress, manifest: Manifest) -> Metadata:
    """Metadata that all tables and sinks of a committed stage share."""
    return {
        "version": dg.MetadataValue.text(manifest.version),
        "state": dg.MetadataValue.text(progress.state.value),
        "fresh": dg.MetadataValue.bool(progress.fresh),
        "duration_s": dg.MetadataValue.float(manifest.duration_ms / 1000),
        **{f"{state.value}_s": dg.MetadataValue.float(seconds) for state, seconds in progress.seconds},
        "sources": dg.MetadataValue.json(dict(manifest.sources)),
        "rejected": dg.MetadataValue.int(sum(manifest.rejected.values())),
    }


def table_metadata(table: Table, folder: Path, operator: Operator, flow: str) -> Metadata:
    """Metadata of one committed table, the output of an operator, with its files in a folder."""
    columns = [dg.TableColumn(name, kind) for name, kind in table.schema]
    lineage = dg.TableColumnLineage(
        {
            column: [dg.TableColumnDep(asset_key(flow, source), name) for source, name in origins]
            for column, origins in trace_columns(operator).items()
        }
    )
    return {
        "dagster/row_count": dg.MetadataValue.int(table.rows),
        "dagster/column_schema": dg.MetadataValue.table_schema(dg.TableSchema(columns)),
        "dagster/column_lineage": dg.MetadataValue.column_lineage(lineage),
        "digest": dg.MetadataValue.text(table.digest),
        "files": dg.MetadataValue.int(len(table.files)),
        "bytes": _value(plotted(sum(file.bytes for file in table.files))),
        "path": dg.MetadataValue.path(folder),
    }


def progress_metadata(progress: FlowProgress) -> Metadata:
    """Metadata of live queries: all figures, the age of joined results, and tables as Markdown."""
    found = {key: _value(figure) for key, figure in figures(progress).items()}
    for query in progress.queries:
        for stage, version in query.bounded.items():
            with suppress(ValueError):
                age_s = progress.time_ms / 1000 - version_time_s(version)
                found[f"bounded_age_s/{stage}"] = dg.MetadataValue.float(max(age_s, 0.0))
    return {"health": dg.MetadataValue.md("\n\n".join(map(markdown, tables(progress)))), **found}


def _value(figure: Figure) -> dg.MetadataValue:
    match figure:
        case str():
            return dg.MetadataValue.text(figure)
        case int():
            return dg.MetadataValue.int(figure)
        case _:
            return dg.MetadataValue.float(figure)
