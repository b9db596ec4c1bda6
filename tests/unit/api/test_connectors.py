"""Connectors are plain values."""

from __future__ import annotations

import pytest

from flowcore import Csv, Flow, Json, KafkaTopic, Parquet


def test_topics_with_offsets_can_be_keys_of_a_mapping() -> None:
    """Equal topics are one key, also with a dict of offsets."""
    first = KafkaTopic("bids", schema="id BIGINT", start={0: 5}, until={0: 9}, format_options={})
    same = KafkaTopic("bids", schema="id BIGINT", start={0: 5}, until={0: 9}, format_options={})
    other = KafkaTopic("bids", schema="id BIGINT", start={0: 6}, until={0: 9}, format_options={})

    assert len({first, same, other}) == 2


@pytest.mark.parametrize("kind", [Parquet, Csv, Json])
def test_plans_show_the_folders_of_files(kind: type[Parquet | Csv | Json]) -> None:
    """Columns are named as the stream names them, in the order of the folders."""
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema="id BIGINT, day DATE, hour INT"))
    bids.write("out", kind("out", partition_by=("HOUR", "day")))

    (sink,) = flow.sinks
    assert sink.partition_by == ("hour", "day")
    assert sink.describe() == f"write {kind.__name__} out, a folder for each hour, day"
