"""Which committed versions of a result a query joins next."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.results.joined import JoinedResults
from flowcore.spark.results.manifest import Manifest
from flowcore.spark.results.store import ResultStore


def test_version_that_one_query_cannot_join_is_tried_by_others(tmp_path: Path) -> None:
    """Another query may have no use for the column that is missing."""
    flow = Flow("f")
    names = flow.read("names", Parquet("names", schema="id BIGINT, name STRING"))
    for topic in ("bids", "asks"):
        rows = flow.read(topic, KafkaTopic(topic, schema="id BIGINT"))
        rows.join(names, on="id", name=f"named_{topic}").write(f"{topic}_out", KafkaTopic(f"{topic}-out"))
    plan = plan_flow(flow, "micro-batch")
    (stage,) = [each for each in plan.bounded if each.results]
    bids, asks = plan.live_queries
    folder = ResultStore(tmp_path, "f").folder(stage.name)
    folder.root.mkdir(parents=True)
    Manifest(
        flow="f", stage=stage.name, version="v2", created_ms=1, duration_ms=1, fingerprint="x", sources={},
        tables={}, rejected={},
    ).write(folder.manifest_path)  # fmt: skip
    context: Any = SimpleNamespace(flow="f", settings=Settings.of({"state.dir": tmp_path}, environment={}))
    results = JoinedResults(plan, context)
    joined = {stage.name: "v1"}
    assert results.newer_versions(bids, joined) == {stage.name: "v2"}

    results.reject(bids, {stage.name: "v2"})

    assert results.newer_versions(bids, joined) == {}
    assert results.newer_versions(asks, joined) == {stage.name: "v2"}
