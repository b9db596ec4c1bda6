"""Assets of a flow's bounded stages: one for each table and sink, all made by one op."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from pydantic import Field

from flowcore.api.flow import Flow
from flowcore.dagster.attributes import AssetAttributes
from flowcore.dagster.metadata import stage_metadata, table_metadata
from flowcore.dagster.names import (
    asset_key,
    asset_kind,
    bounded_dependencies,
    bounded_keys,
    op_name,
    stage_keys,
    table_key,
    unique_identifiers,
)
from flowcore.dagster.resources import FlowcoreResource, SparkResource
from flowcore.dagster.sensors import REFRESH_WHEN
from flowcore.dagster.termination import TerminationRequests, cancel_jobs_on, deferred_interrupts
from flowcore.errors import ConfigurationError
from flowcore.planner import plan_flow
from flowcore.planner.model import BoundedStage
from flowcore.planner.plan import Plan
from flowcore.spark.results.manifest import Manifest
from flowcore.spark.results.store import StageFolder, results_of
from flowcore.spark.run.bounded_stages import StageProgress, run_concurrently

__all__ = ["StageConfig", "build_bounded_assets"]


class StageConfig(dg.Config):
    """Run configuration of bounded stages."""

    refresh: bool = Field(
        default=True,
        description="Run a stage even if its sources and its code are those of the committed result.",
    )


def build_bounded_assets(flow: Flow, plan: Plan, attributes: AssetAttributes) -> dg.AssetsDefinition:
    """The assets of a flow's bounded stages.

    Any subset can be materialized; a stage always makes all its tables and sinks. Each run plans the flow
    again, with the settings of its resources.

    Raises:
        ConfigurationError: Several of them are one asset, as sinks that write one topic.
    """
    name = op_name(plan.flow, "history")
    specs = [spec for stage in plan.bounded for spec in _asset_specs(stage, plan, attributes)]
    _require_one_writer(plan)
    dependencies = bounded_dependencies(plan)
    outputs = unique_identifiers(dependencies)
    inputs = unique_identifiers(
        key for deps in dependencies.values() for key in deps if key not in dependencies
    )

    # Of `specs=` Dagster would make the names of inputs and outputs itself, and several the same.
    @dg.multi_asset(
        name=name,
        ins={inputs[key]: dg.AssetIn(key, dagster_type=dg.Nothing) for key in inputs},
        outs={outputs[spec.key]: _optional_output(spec) for spec in specs},
        internal_asset_deps={outputs[key]: set(deps) for key, deps in dependencies.items()},
        pool=name,
        can_subset=True,
    )
    def run_history(
        context: dg.AssetExecutionContext,
        config: StageConfig,
        flowcore: FlowcoreResource,
        spark: SparkResource,
    ) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
        spark.send_heartbeats(context.instance, context.run.run_id)
        settings = flowcore.settings()
        # The live stage is not part of this run, so Spark needs no task slots for it.
        run_plan = replace(plan_flow(flow, settings=settings), live=None)
        selected = context.selected_asset_keys
        chosen = [s for s in run_plan.bounded if not selected.isdisjoint(stage_keys(s, run_plan))]
        requests = TerminationRequests(context)
        with deferred_interrupts() as interrupted:

            def poll() -> None:
                if requests.poll():
                    interrupted.set()

            run = spark.context(run_plan, settings)
            with (
                cancel_jobs_on(interrupted, run.spark),
                closing(run_concurrently(chosen, run, refresh=config.refresh, meanwhile=poll)) as changes,
            ):
                for progress in changes:
                    stage = progress.stage.name
                    context.log.info("stage %s of flow %s is %s", stage, plan.flow, _describe(progress))
                    if progress.manifest is not None:
                        folder = results_of(run).folder(stage)
                        yield from _report(context, _results(progress, progress.manifest, folder))

    return run_history


def _report(
    context: dg.AssetExecutionContext,
    results: Iterable[dg.MaterializeResult],  # type: ignore[type-arg]
) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
    """Yield the selected ones of these results, and log those that are made along with them."""
    for result in results:
        if result.asset_key in context.selected_asset_keys:
            yield result
        else:
            context.log_event(_materialization(result))


def _materialization(result: dg.MaterializeResult) -> dg.AssetMaterialization:  # type: ignore[type-arg]
    """The event of a result that is not one of the op's outputs; for those Dagster adds the tag."""
    assert result.asset_key is not None  # noqa: S101 - a fact for the type checker
    version = result.data_version
    tags = {DATA_VERSION_TAG: version.value} if version else None
    return dg.AssetMaterialization(result.asset_key, metadata=result.metadata, tags=tags)


def _asset_specs(stage: BoundedStage, plan: Plan, attributes: AssetAttributes) -> list[dg.AssetSpec]:
    assets = [(table_key(plan.flow, result.name), result.name, "parquet") for result in stage.results]
    assets += [(asset_key(plan.flow, sink), sink.name, asset_kind(sink.sink)) for sink in stage.sinks]
    return [
        attributes.spec(
            plan,
            key,
            name,
            stage.operators,
            deps=(),  # `build_bounded_assets` has them by output
            kind=kind,
            automation_condition=REFRESH_WHEN,
        )
        for key, name, kind in assets
    ]


def _require_one_writer(plan: Plan) -> None:
    keys = bounded_keys(plan)
    repeated = next((key for key in keys if keys.count(key) > 1), None)
    if repeated is not None:
        msg = (
            f"{keys.count(repeated)} bounded sinks of flow {plan.flow!r} write the asset "
            f"{repeated.to_user_string()}: Dagster could not show which of them made it; write it by one "
            "sink, of the union of their streams"
        )
        raise ConfigurationError(msg)


def _optional_output(spec: dg.AssetSpec) -> dg.AssetOut:
    """An output that a run may leave out, and that no I/O manager stores."""
    return dg.AssetOut.from_spec(spec, dagster_type=dg.Nothing, is_required=False)


def _describe(progress: StageProgress) -> str:
    if progress.manifest is None:
        return str(progress.state)
    how = "is up to date" if not progress.fresh else f"took {progress.manifest.duration_ms / 1000:.1f} s"
    return f"{progress.state}: version {progress.manifest.version} {how}"


def _results(
    progress: StageProgress, manifest: Manifest, folder: StageFolder
) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
    common = stage_metadata(progress, manifest)
    for result in progress.stage.results:
        table = manifest.tables[result.name]
        path = folder.root / manifest.version / result.name
        yield dg.MaterializeResult(
            asset_key=table_key(manifest.flow, result.name),
            metadata=common | table_metadata(table, path, result.operator, manifest.flow),
            data_version=dg.DataVersion(table.digest),
        )
    for sink in progress.stage.sinks:
        yield dg.MaterializeResult(asset_key=asset_key(manifest.flow, sink), metadata=common)
