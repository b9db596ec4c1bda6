"""The watermarks that the sources of a live query emit."""

from __future__ import annotations

import pytest

from flowcore import Flow, KafkaTopic, monotonous, no_watermarks, periodic, punctuated
from flowcore.spark.topics.poll_times import is_due
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
    read = Flow("f").read("bids", KafkaTopic("in", schema=SCHEMA, event_time="at", watermark=declared))
    nodes = [read.operator]
    if declared is not None:
        anew = Flow("f").read("bids", KafkaTopic("in", schema=SCHEMA, elements="tagged"))
        nodes.append(anew.with_event_time("at", watermark=declared).operator)

    for node in nodes:
        assert watermark_source(node, {"in": 2}, polls=False).strategy == expected
        assert watermark_source(node, {"in": 2}, polls=True).strategy == (declared or no_watermarks())
        assert watermark_source(node, {"in": 2}, polls=True).partitions == ("0", "1")


def test_without_polls_watermarks_arrive() -> None:
    """A tagged topic brings its own, for each partition."""
    read = Flow("f").read("bids", KafkaTopic("in", schema=SCHEMA, elements="tagged"))

    source = watermark_source(read.operator, {"in": 2}, polls=False)

    assert (source.strategy, source.partitions) == (None, ("0", "1"))


def test_watermarks_of_a_clock_that_was_set_back_are_polled_at_once() -> None:
    """Otherwise none would leave until the clock is there again."""
    polled_ms, interval_ms = 3_600_000, 200

    assert [is_due(polled_ms + ms, polled_ms, interval_ms) for ms in (0, 199, 200, -1, -3_000_000)] == [
        False, False, True, True, True,
    ]  # fmt: skip
