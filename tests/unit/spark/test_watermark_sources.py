"""The watermarks that the sources of a live query emit."""

from __future__ import annotations

import pytest

from flowcore import KafkaTopic, monotonous, no_watermarks, periodic, punctuated
from flowcore.spark.topics.watermarks import watermark_source
from flowcore.watermarks import WatermarkStrategy

SCHEMA = "user STRING, at TIMESTAMP, ms BIGINT"


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (None, no_watermarks()),
        (monotonous(), no_watermarks()),
        (periodic("ms"), no_watermarks()),
        (punctuated("user = 'end'"), punctuated("user = 'end'")),
    ],
    ids=["none", "monotonous", "periodic", "punctuated"],
)
def test_without_polls_a_source_emits_no_periodic_watermark(
    declared: WatermarkStrategy | None, expected: WatermarkStrategy
) -> None:
    """`pipeline.auto-watermark-interval` is 0; otherwise the declared strategy holds."""
    topic = KafkaTopic("in", schema=SCHEMA, event_time="at", watermark=declared)

    assert watermark_source(topic, {"in": 2}, polls=False).strategy == expected
    assert watermark_source(topic, {"in": 2}, polls=True).strategy == (declared or no_watermarks())


def test_without_polls_watermarks_arrive() -> None:
    """A tagged topic brings its own, for each partition."""
    topic = KafkaTopic("in", schema=SCHEMA, elements="tagged")

    source = watermark_source(topic, {"in": 2}, polls=False)

    assert (source.strategy, source.partitions) == (None, ("0", "1"))
