"""The lag by which a sensor launches a slice, from what a run has kept and the ends of the topics now."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowcore import Flow, KafkaTopic
from flowcore.dagster import sensors
from flowcore.metrics.progress import FlowProgress, PartitionProgress, QueryProgress
from flowcore.planner import plan_flow
from flowcore.settings import Settings

ENDS = {"near:9092": {"bids": {0: 7, 1: 2}}, "far:9092": {"bids": {0: 1_000}}}


def test_lag_is_that_of_the_broker_that_a_query_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics of two brokers may have one name; a query that the flow no longer has may have read any."""
    monkeypatch.setattr(sensors, "end_offsets_of_topics", lambda servers, _names: ENDS[servers])
    flow = Flow("f")
    for name, servers in (("near", "near:9092"), ("far", "far:9092")):
        topic = KafkaTopic("bids", schema="id BIGINT", servers=servers)
        flow.read(name, topic).write(f"{name}_out", KafkaTopic(f"{name}-out", servers=servers))
    settings = Settings.of({"state.dir": tmp_path}, environment={})
    plan = plan_flow(flow, settings=settings)

    def lag(**offsets: int) -> int:
        queries = tuple(
            QueryProgress(
                name=name,
                mode="slice",
                active=False,
                partitions=(PartitionProgress(topic="bids", partition=0, offset=offset),),
            )
            for name, offset in offsets.items()
        )
        return sensors._lag(plan, FlowProgress(flow="f", time_ms=0, seconds=0.0, queries=queries), settings)

    assert lag(near=5, far=999) == 2
    assert lag(near=7, far=400) == 600
    assert lag(near=7, gone=0) == 1_000
