"""Bounded stages as assets: one for each table and sink; what is launched together runs side by side."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pyarrow.parquet as pq
from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    AssetSpec,
    Config,
    DataVersion,
    MaterializeResult,
    MetadataValue,
    asset_check,
    multi_asset,
)
from pydantic import Field

from flowcore.dagster.attributes import Notes
from flowcore.dagster.metadata import Metadata, plan_metadata, stage_metadata, table_metadata
from flowcore.dagster.names import asset_key, identifier, kind_of, op_name, stage_keys, table_key
from flowcore.dagster.resources import FlowcoreResource, SparkResource
from flowcore.dagster.sensors import REFRESH_WHEN
from flowcore.dagster.termination import deferred_interrupts, jobs_end_with
from flowcore.errors import ResultError
from flowcore.planner.model import BoundedStage
from flowcore.planner.plan import Plan
from flowcore.planner.rules.fingerprint import fingerprint_operators
from flowcore.spark.results.manifest import Manifest
from flowcore.spark.results.store import ResultStore, StageFolder, results_of
from flowcore.spark.run.bounded_stages import StageProgress, stages_side_by_side

__all__ = ["StageConfig", "completeness_checks", "history_assets"]


class StageConfig(Config):
    """How a bounded stage is run."""

    refresh: bool = Field(
        default=True,
        description="Compute it even if its sources and its code are those of the committed result.",
    )


def history_assets(plan: Plan, notes: Notes) -> AssetsDefinition:
    """The assets that the bounded stages of a plan make: one op, which runs those stages side by side.

    Any of them can be launched alone; a stage makes all that it makes whichever of it is asked for.
    """
    name = op_name(plan.flow, "history")
    # Topics are written by the live stage; here Spark needs slots for none of it.
    bounded_only = replace(plan, live=None)

    @multi_asset(
        name=name,
        specs=[spec for stage in plan.bounded for spec in _specs(stage, plan, notes)],
        pool=name,
        can_subset=True,
    )
    def run_history(
        context: AssetExecutionContext, config: StageConfig, flowcore: FlowcoreResource, spark: SparkResource
    ) -> Iterator[MaterializeResult]:  # type: ignore[type-arg]
        chosen = [s for s in plan.bounded if not context.selected_asset_keys.isdisjoint(stage_keys(s, plan))]
        with deferred_interrupts() as interrupted:
            run = spark.context(bounded_only, flowcore.settings())
            with (
                jobs_end_with(interrupted, run.spark),
                closing(stages_side_by_side(chosen, run, refresh=config.refresh)) as changes,
            ):
                for progress in changes:
                    context.log.info(
                        "stage %s of flow %s is %s", progress.stage.name, plan.flow, _state(progress)
                    )
                    if progress.manifest is not None:
                        folder = results_of(run).folder(progress.stage.name)
                        yield from _made(_results(progress, progress.manifest, folder), context)

    return run_history


def completeness_checks(stage: BoundedStage, plan: Plan) -> list[AssetChecksDefinition]:
    """For each table a check that its files are there, unchanged, and hold the rows they should."""
    return [_completeness_check(stage, result.name, plan.flow) for result in stage.results]


def _specs(stage: BoundedStage, plan: Plan, notes: Notes) -> list[AssetSpec]:
    deps = [asset_key(plan.flow, source) for source in stage.sources]
    code_version = fingerprint_operators(stage.operators)[:12]

    def spec(key: AssetKey, name: str, kind: str) -> AssetSpec:
        return AssetSpec(
            key,
            deps=deps,
            description=notes.descriptions.get(name, f"`{name}` of flow `{plan.flow}`"),
            metadata=plan_metadata(plan),
            kinds={"spark", kind},
            group_name=notes.group or identifier(plan.flow),
            owners=notes.owners,
            tags=notes.tags,
            code_version=code_version,
            automation_condition=REFRESH_WHEN,
        )

    tables = [spec(table_key(plan.flow, result.name), result.name, "parquet") for result in stage.results]
    return tables + [spec(asset_key(plan.flow, sink), sink.name, kind_of(sink.sink)) for sink in stage.sinks]


def _state(progress: StageProgress) -> str:
    if progress.manifest is None:
        return str(progress.state)
    how = "is up to date" if not progress.fresh else f"took {progress.manifest.duration_ms / 1000:.1f} s"
    return f"{progress.state}: version {progress.manifest.version} {how}"


def _made(
    results: Iterator[MaterializeResult],  # type: ignore[type-arg]
    context: AssetExecutionContext,
) -> Iterator[MaterializeResult]:  # type: ignore[type-arg]
    """Those that were asked for as results; the others, which were made along with them, as events."""
    for result in results:
        if result.asset_key in context.selected_asset_keys:
            yield result
        else:
            assert result.asset_key is not None  # noqa: S101 - a fact for the type checker
            context.log_event(AssetMaterialization(result.asset_key, metadata=result.metadata))


def _results(progress: StageProgress, manifest: Manifest, folder: StageFolder) -> Iterator[MaterializeResult]:  # type: ignore[type-arg]
    common = stage_metadata(progress, manifest)
    for result in progress.stage.results:
        table = manifest.tables[result.name]
        path = folder.root / manifest.version / result.name
        yield MaterializeResult(
            asset_key=table_key(manifest.flow, result.name),
            metadata=common | table_metadata(table, path, result.operator, manifest.flow),
            data_version=DataVersion(table.digest),
        )
    for sink in progress.stage.sinks:
        yield MaterializeResult(asset_key=asset_key(manifest.flow, sink), metadata=common)


def _completeness_check(stage: BoundedStage, table: str, flow: str) -> AssetChecksDefinition:
    @asset_check(
        asset=table_key(flow, table),
        name="complete",
        blocking=True,
        description="Every file of the committed result is there, unchanged, and holds the rows it should.",
    )
    def complete(context: AssetCheckExecutionContext, flowcore: FlowcoreResource) -> AssetCheckResult:
        del context
        store = ResultStore(flowcore.settings().state_dir, flow)
        return _check_table(store.folder(stage.name), table)

    return complete


def _check_table(folder: StageFolder, name: str) -> AssetCheckResult:
    manifest = folder.manifest()
    if manifest is None:
        return AssetCheckResult(passed=False, description=f"there is no committed result in {folder.root}")
    table = manifest.tables[name]
    try:
        replace(manifest, tables={name: table}).check(folder.root)
    except ResultError as error:
        return AssetCheckResult(passed=False, description=str(error))
    rows = sum(pq.ParquetFile(folder.root / file.path).metadata.num_rows for file in table.files)
    found: Metadata = {
        "version": MetadataValue.text(manifest.version),
        "rows": MetadataValue.int(rows),
        "files": MetadataValue.int(len(table.files)),
    }
    if rows != table.rows:
        wrong = f"the files hold {rows} rows, the manifest says {table.rows}"
        return AssetCheckResult(passed=False, description=wrong, metadata=found)
    if rows == 0:
        return AssetCheckResult(passed=False, description="the result has no rows", metadata=found)
    return AssetCheckResult(passed=True, description=f"{rows:,} rows", metadata=found)
