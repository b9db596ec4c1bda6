"""A live query emits the minimum of its sources' watermarks."""

from datetime import timedelta

import pytest

from flowcore.elements import (
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    EndOfInput,
    RecordAttributes,
    Watermark,
    WatermarkStatus,
)
from flowcore.watermarks import bounded_out_of_orderness, monotonous, punctuated
from flowcore.watermarks.merge import PartitionWatermark
from flowcore.watermarks.query import ArrivingWatermarks, GeneratedWatermarks, QueryWatermarks


def test_query_emits_the_minimum_of_its_partitions() -> None:
    """A partition without records holds event time back."""
    source = GeneratedWatermarks(bounded_out_of_orderness(timedelta(seconds=1)), range(2))
    query = QueryWatermarks({"a": source})

    source.take({0: 5_000})
    assert query.poll(0) == ()

    source.take({1: 3_000})
    assert query.poll(0) == (Watermark(1_999),)
    source.take({1: 2_000})
    assert query.poll(0) == ()


def test_query_emits_the_minimum_of_its_sources() -> None:
    """One source has its own watermark strategy, the other reads watermarks."""
    own, arriving = GeneratedWatermarks(monotonous(), range(1)), ArrivingWatermarks(range(1))
    query = QueryWatermarks({"own": own, "arriving": arriving})

    own.take({0: 1_000})
    assert query.poll(0) == ()
    arriving.take(0, "a/b", Watermark(500))
    assert query.poll(0) == (Watermark(500),)
    arriving.take(0, "a/b", Watermark(5_000))
    assert query.poll(0) == (Watermark(999),)


def test_arriving_watermarks_wait_for_every_partition_and_channel() -> None:
    """Two queries write to a topic of two partitions: the minimum of four channels counts."""
    source = ArrivingWatermarks(range(2))
    query = QueryWatermarks({"s": source})

    source.take(0, "x", Watermark(100))
    assert query.poll(0) == ()
    source.take(1, "x", Watermark(100))
    assert query.poll(0) == (Watermark(100),)
    source.take(0, "y", Watermark(50))
    source.take(0, "x", Watermark(300))
    source.take(1, "x", Watermark(300))
    assert query.poll(0) == ()
    source.take(0, "y", Watermark(200))
    assert query.poll(0) == (Watermark(200),)
    source.take(0, "y", RecordAttributes(backlog=True))
    assert query.poll(0) == ()


def test_partition_has_the_minimum_of_its_channels() -> None:
    """Idle channels do not count; a partition without elements is at the beginning."""
    arriving, own = ArrivingWatermarks(range(2)), GeneratedWatermarks(monotonous(), range(2))
    query = QueryWatermarks({"arriving": arriving, "own": own})

    arriving.take(0, "x", Watermark(100))
    arriving.take(0, "y", Watermark(50))
    arriving.take(0, "z", WatermarkStatus(idle=True))
    own.take({1: 70})
    query.poll(0)

    assert arriving.partitions() == {0: PartitionWatermark(50), 1: PartitionWatermark()}
    assert own.partitions() == {0: PartitionWatermark(), 1: PartitionWatermark(69)}
    assert query.watermark_ms == MIN_TIMESTAMP_MS


def test_idle_channels_are_ignored() -> None:
    """If all channels are idle, the query is idle; one active channel makes it active."""
    source = ArrivingWatermarks(range(1))
    query = QueryWatermarks({"s": source})

    source.take(0, "x", Watermark(10))
    source.take(0, "y", WatermarkStatus(idle=True))
    assert query.poll(0) == (Watermark(10),)
    source.take(0, "x", WatermarkStatus(idle=True))
    assert query.poll(0) == (WatermarkStatus(idle=True),)
    source.take(0, "y", WatermarkStatus(idle=False))
    assert query.poll(0) == (WatermarkStatus(idle=False),)
    source.take(0, "y", EndOfInput())
    assert query.poll(0) == (Watermark(MAX_TIMESTAMP_MS),)


def test_silent_partition_is_idle_after_the_timeout() -> None:
    """The time is the given processing time."""
    source = GeneratedWatermarks(monotonous().with_idleness(timedelta(seconds=1)), range(2))
    query = QueryWatermarks({"s": source})
    source.take({0: 100, 1: 50})
    assert query.poll(0) == (Watermark(49),)

    emitted = []
    for now_ms in (1_000, 2_000, 3_000):
        source.take({0: 100 + now_ms})
        emitted += query.poll(now_ms)

    assert emitted == [Watermark(3_099)]


def test_punctuated_source_moves_with_its_markers() -> None:
    """Other records only show that the partition is active."""
    source = GeneratedWatermarks(punctuated("end"), range(1))
    query = QueryWatermarks({"s": source})

    source.take({0: None})
    assert query.poll(0) == ()
    source.take({0: 70})
    assert query.poll(0) == (Watermark(70),)


@pytest.mark.parametrize("arriving", [True, False], ids=["arriving", "generated"])
def test_query_continues_after_a_restart(arriving: bool) -> None:
    """Each partition's state is restored; the last watermark is emitted again, and never a lower one."""

    def build() -> tuple[QueryWatermarks, GeneratedWatermarks | ArrivingWatermarks]:
        source = ArrivingWatermarks(range(2)) if arriving else GeneratedWatermarks(monotonous(), range(2))
        return QueryWatermarks({"s": source}), source

    def say(source: GeneratedWatermarks | ArrivingWatermarks, partition: int, time_ms: int) -> None:
        if isinstance(source, ArrivingWatermarks):
            source.take(partition, "x", Watermark(time_ms))
        else:
            source.take({partition: time_ms + 1})

    query, source = build()
    say(source, 0, 100)
    after, again = build()
    after.restore(query.snapshot())
    say(again, 1, 40)
    assert after.poll(0) == (Watermark(40),)

    third, _ = build()
    third.restore(after.snapshot())
    assert third.poll(0) == (Watermark(40),)
