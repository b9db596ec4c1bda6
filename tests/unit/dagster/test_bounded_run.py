"""A run of bounded stages in Dagster, without Spark: which stages it runs, and which assets it reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dagster import AssetKey, DagsterInstance, Definitions

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.dagster import (
    FlowcoreResource,
    ResultsResource,
    SparkResource,
    bounded_assets,
    definitions,
    flow_assets,
)
from flowcore.errors import ConfigurationError, PlanError
from flowcore.planner import plan_flow
from flowcore.planner.model import BoundedStage
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.results.manifest import Manifest
from flowcore.spark.run.bounded_stages import StageProgress, StageState


class _Spark:
    """Stands in for Spark: remembers what it is to run, and commits each stage at once."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.stages: list[BoundedStage] = []

    def context(self, plan: Plan, settings: Settings) -> Any:
        self.plans.append(plan)
        return SimpleNamespace(spark=None, settings=settings)

    def run(self, stages: Sequence[BoundedStage], _context: Any, **_: Any) -> Iterator[StageProgress]:
        for stage in stages:
            self.stages.append(stage)
            version = "20270115T075959-0a1b2c3d"
            manifest = Manifest("shop", stage.name, version, 0, 0, "", {}, {}, {})
            yield StageProgress(stage, StageState.COMMITTED, manifest=manifest)


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> _Spark:
    fake = _Spark()
    monkeypatch.setattr(SparkResource, "context", fake.context)
    monkeypatch.setattr(bounded_assets, "run_concurrently", fake.run)
    monkeypatch.setattr(bounded_assets, "cancel_jobs_on", lambda *_: nullcontext())
    monkeypatch.setattr(bounded_assets, "results_of", lambda _: SimpleNamespace(folder=lambda _: None))
    return fake


def _copies(**names: str) -> Flow:
    """A stage for each source and sink, which are folders of these names."""
    flow = Flow("shop")
    for number, (source, sink) in enumerate(names.items()):
        flow.read(f"in{number}", Parquet(source, schema="id BIGINT")).write(f"out{number}", Parquet(sink))
    return flow


def _made(defs: Definitions, *selected: str) -> set[str]:
    """The names of the folders that a run materializes."""
    with DagsterInstance.ephemeral() as instance:
        result = defs.resolve_job_def("shop_history").execute_in_process(
            instance=instance, asset_selection=[AssetKey(["files", name]) for name in selected] or None
        )
    return {key.path[-1] for event in result.get_asset_materialization_events() if (key := event.asset_key)}


def test_files_with_similar_names_are_assets_each(spark: _Spark) -> None:
    """Dagster would give both outputs one name, and fail to load; each can be selected alone."""
    defs = definitions(flow_assets(_copies(a="x-y", b="x.y", c="z")))

    assert _made(defs) == {"x-y", "x.y", "z"}
    assert _made(defs, "x.y") == {"x.y"}
    assert [sink.name for stage in spark.stages[3:] for sink in stage.sinks] == ["out1"]


def test_assets_depend_on_what_their_own_stage_reads(spark: _Spark) -> None:
    """On files outside, also those with similar names, and on those of another stage of the flow."""
    del spark
    flow = _copies(**{"a-b": "x", "a.b": "y"})
    flow.read("more", Parquet("y", schema="id BIGINT")).write("last", Parquet("z"))
    assets = definitions(flow_assets(flow))
    graph = assets.resolve_asset_graph()
    parents = {
        name: [key.path[-1] for key in graph.get(AssetKey(["files", name])).parent_keys] for name in "xyz"
    }
    history = graph.assets_def_for_key(AssetKey(["files", "x"]))

    assert parents == {"x": ["a-b"], "y": ["a.b"], "z": ["y"]}
    assert {key.path[-1] for key in history.keys_by_input_name.values()} == {"a-b", "a.b", "y"}


def test_run_is_planned_with_the_settings_of_its_resources(spark: _Spark) -> None:
    """Not with those of the environment of the code server, with which its assets were declared."""
    flow = Flow("shop")
    source = flow.read("in", Parquet("in", schema="id BIGINT"))
    source.map(_same, schema="id BIGINT").write("out", Parquet("out"))
    more = {"pipeline.object-reuse": "true"}
    assert _made(definitions(flow_assets(flow), flowcore=FlowcoreResource(more=more))) == {"out"}
    here, there = (plan_flow(flow, settings=Settings.of(each)).bounded[0].chains for each in ({}, more))

    assert [stage.chains for stage in spark.stages] == [there]
    assert here != there
    assert spark.plans[0].live is None


def test_run_that_would_replace_the_folder_of_its_data_is_refused(spark: _Spark, tmp_path: Path) -> None:
    """Only the settings of the run know which folder this is."""
    flow = _copies(raw=str(tmp_path / "data"))
    defs = definitions(flow_assets(flow), results=ResultsResource(data_dir=str(tmp_path / "data")))

    with pytest.raises(PlanError, match=r"which is data\.dir"):
        _made(defs)
    assert not spark.plans


def _same(record: Any) -> Any:
    return record


def test_names_of_outputs_stay_where_no_other_has_them() -> None:
    """They are in the history of runs."""
    job = definitions(flow_assets(_copies(a="x-y", b="z"))).resolve_job_def("shop_history")
    (history,) = job.graph.nodes

    assert [each.name for each in history.definition.output_defs] == ["files__x_y", "files__z"]


def test_several_sinks_that_write_one_topic_are_refused() -> None:
    """They would be one asset, which only one of them could report."""
    flow = Flow("shop")
    for number in range(2):
        source = flow.read(f"in{number}", Parquet(f"in{number}", schema="id BIGINT"))
        source.write(f"out{number}", KafkaTopic("sales"))

    with pytest.raises(
        ConfigurationError, match=r"2 bounded sinks of flow 'shop' write the asset kafka/sales"
    ):
        flow_assets(flow)
