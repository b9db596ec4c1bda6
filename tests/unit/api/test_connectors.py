"""Connectors are plain values, and refuse settings that contradict each other."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from flowcore import Csv, Flow, Json, KafkaTopic, Parquet, from_frame
from flowcore.errors import ConfigurationError
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


@pytest.mark.parametrize(
    "source",
    [Parquet("x", "a INT"), Csv("x", "a INT"), Json("x", "a INT"), from_frame(print, "a INT"),
     KafkaTopic("x", "a INT", until="latest")],
    ids=["parquet", "csv", "json", "frame", "kafka-until"],
)  # fmt: skip
def test_flow_source_is_bounded(source: Parquet) -> None:
    """Every source is bounded except an unbounded topic."""
    assert Flow("f").read("x", source).bounded


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": ""}, "names no topic"),
        ({"until": "earliest"}, "ends before its first record"),
        ({"start": datetime(2026, 1, 1)}, "start=2026-01-01 00:00:00 of topic 'bids' has no time zone"),  # noqa: DTZ001 - the mistake
        ({"until": datetime(2026, 1, 1)}, "until=.*has no time zone"),  # noqa: DTZ001 - the mistake
        ({"start": "beginning"}, "start='beginning' of topic 'bids' is not a position"),
        ({"until": 5}, "until=5 of topic 'bids' is not a position"),
        ({"name": "my topic!"}, "name='my topic!' cannot name a topic"),
        ({"name": ".."}, "cannot name a topic"),
        ({"name": "a" * 250}, "at most 249"),
        ({"servers": ["a:1", "b:2"]}, r"servers=\['a:1', 'b:2'\] of topic 'bids' is not the text of"),
        ({"partitions": 0}, "partitions=0 of topic 'bids' is not a number of partitions"),
        ({"partitions": "4"}, "partitions='4' of topic 'bids' is not"),
        ({"start": {0: -5}}, "start={0: -5} of topic 'bids': 0: -5 is not a partition and its offset"),
        ({"until": {"0": "5"}}, "'0': '5' is not a partition and its offset"),
        (
            {"start": datetime(2026, 2, 1, tzinfo=UTC), "until": datetime(2026, 1, 1, tzinfo=UTC)},
            "is after until",
        ),
        ({"start": {0: 5, 1: 7}, "until": {0: 5, 1: 6}}, "is after until=.*nothing would be read"),
        ({"on_error": "ignore"}, "on_error='ignore' of topic 'bids'"),
    ],
)  # fmt: skip
def test_topic_refuses(settings: dict[str, object], message: str) -> None:
    """Settings that contradict each other are an error when the topic is declared."""
    with pytest.raises(ConfigurationError, match=message):
        KafkaTopic(**{"name": "bids", **settings})  # type: ignore[arg-type]


def test_topic_accepts_every_kind_of_position() -> None:
    """Positions are ends, times with a zone, and offsets."""
    KafkaTopic("t", start={0: 5}, until=datetime(2026, 1, 1, tzinfo=UTC))
    KafkaTopic("t", start=datetime(2026, 1, 1, tzinfo=UTC), until={0: 9})
    KafkaTopic("t", start="latest", until="latest")
