"""Connectors are plain values."""

from __future__ import annotations

from typing import Any

import pytest

from flowcore import Csv, Flow, Json, KafkaTopic, Parquet
from flowcore.planner import plan_flow


def test_topics_with_offsets_can_be_keys_of_a_mapping() -> None:
    """Equal topics are one key, also with a dict of offsets."""
    first = KafkaTopic("bids", schema="id BIGINT", start={0: 5}, until={0: 9}, format_options={})
    same = KafkaTopic("bids", schema="id BIGINT", start={0: 5}, until={0: 9}, format_options={})
    other = KafkaTopic("bids", schema="id BIGINT", start={0: 6}, until={0: 9}, format_options={})

    assert len({first, same, other}) == 2


@pytest.mark.parametrize(
    ("setting", "more"),
    [("key", {}), ("updating_by", {}), ("channels", {"elements": "tagged"})],
)
def test_topics_take_lists_as_tuples(setting: str, more: dict[str, Any]) -> None:
    """A list of names is the tuple of them, so that the topic can be a key of a mapping."""
    listed = KafkaTopic("bids", schema="id BIGINT", **{setting: ["id"]}, **more)
    same = KafkaTopic("bids", schema="id BIGINT", **{setting: ("id",)}, **more)

    assert getattr(listed, setting) == ("id",)
    assert {listed: "one"} == {same: "one"}


def test_plans_show_a_sink_with_a_list_as_key() -> None:
    """All details of a plan can be shown for a topic whose key is a list."""
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema="id BIGINT, day DATE"))
    bids.write("out", KafkaTopic("out", key=["id", "day"]))

    assert "key id, day" in plan_flow(flow).explain(verbose=True)


@pytest.mark.parametrize("kind", [Parquet, Csv, Json])
def test_plans_show_the_folders_of_files(kind: type[Parquet | Csv | Json]) -> None:
    """Columns are named as the stream names them, in the order of the folders."""
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema="id BIGINT, day DATE, hour INT"))
    bids.write("out", kind("out", partition_by=("HOUR", "day")))

    (sink,) = flow.sinks
    assert sink.partition_by == ("hour", "day")
    assert sink.describe() == f"write {kind.__name__} out, a folder for each hour, day"
