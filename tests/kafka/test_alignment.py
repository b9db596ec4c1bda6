"""Partitions of an aligned source are read as the plan says."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

from flowcore import Flow, monotonous
from flowcore.planner import plan_flow
from flowcore.spark.checkpoint.plan_file import checkpoint_folder
from tests.kafka.conftest import Live


def test_a_batch_takes_of_each_partition_its_share_of_what_is_unread(live: Live) -> None:
    """So that the partition with the larger backlog does not fall behind."""
    live.settings = replace(live.settings, max_batch_records=200)
    watermark = monotonous().with_alignment(timedelta(seconds=1))
    source = live.topic("bids", schema="at BIGINT", event_time="at", watermark=watermark)
    live.send(source, *({"at": number} for number in range(200)), partitions=2)
    live.send(source, *({"at": number} for number in range(200)))
    flow = Flow("aligned")
    flow.read("bids", source).write("out", live.topic("out"))

    live.run(flow)

    plan = plan_flow(flow, "slice", live.settings)
    assert "alignment: in proportion because" in plan.explain(verbose=True)
    assert "takes of each as much as its share of all that is unread" in plan.explain(verbose=True)
    offsets = checkpoint_folder(plan.live_queries[0], flow.name, live.settings) / "offsets" / "0"
    assert json.loads(offsets.read_text().splitlines()[-1]) == {source.name: {"0": 150, "1": 50}}
