"""A live query emits the minimum of its sources' watermarks."""

import json
from datetime import timedelta

import pytest

from flowcore.channels import channel_name
from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, Watermark, WatermarkStatus
from flowcore.watermarks import (
    WatermarkStrategy,
    bounded_out_of_orderness,
    monotonous,
    no_watermarks,
    periodic,
    punctuated,
)
from flowcore.watermarks.generated import NewestTimes
from flowcore.watermarks.merge import ChannelElements, PartitionWatermark
from flowcore.watermarks.progress import WatermarkProgress, WatermarkSource

IDLE, ACTIVE = WatermarkStatus(idle=True), WatermarkStatus(idle=False)


def progress(partitions: int, **sources: WatermarkStrategy | None) -> WatermarkProgress:
    """Sources with this number of partitions; the watermarks of those without a strategy arrive."""
    names = tuple(map(str, range(partitions)))
    return WatermarkProgress({name: WatermarkSource(each, names) for name, each in sources.items()})


def restarted(
    query: WatermarkProgress, partitions: int, **sources: WatermarkStrategy | None
) -> WatermarkProgress:
    """The same progress, written and read again."""
    after = progress(partitions, **sources)
    after.restore(json.loads(json.dumps(query.snapshot())))
    return after


def arrive(query: WatermarkProgress, *elements: tuple[int, str, Watermark | WatermarkStatus]) -> None:
    """Elements of the source ``s``, each with its partition and sender."""
    given = ((channel_name(str(partition), sender), element) for partition, sender, element in elements)
    query.arrive("s", ChannelElements.from_elements(given)[0])


def test_query_emits_the_minimum_of_its_partitions() -> None:
    """A partition without records holds event time back."""
    query = progress(2, s=bounded_out_of_orderness(timedelta(seconds=1)))

    query.take("s", NewestTimes.of({"0": 5_000}))
    assert query.poll(0) == ()

    query.take("s", NewestTimes.of({"1": 3_000}))
    assert query.poll(0) == (Watermark(1_999),)
    query.take("s", NewestTimes.of({"1": 2_000}))
    assert query.poll(0) == ()


def test_query_emits_the_minimum_of_its_sources() -> None:
    """One source has its own watermark strategy, the other reads watermarks."""
    query = progress(1, own=monotonous(), s=None)

    query.take("own", NewestTimes.of({"0": 1_000}))
    assert query.poll(0) == ()
    arrive(query, (0, "a/b", Watermark(500)))
    assert query.poll(0) == (Watermark(500),)
    arrive(query, (0, "a/b", Watermark(5_000)))
    assert query.poll(0) == (Watermark(999),)


def test_arriving_watermarks_wait_for_every_partition_and_channel() -> None:
    """Two queries write to a topic of two partitions: the minimum of four channels counts."""
    query = progress(2, s=None)

    arrive(query, (0, "x", Watermark(100)))
    assert query.poll(0) == ()
    arrive(query, (1, "x", Watermark(100)))
    assert query.poll(0) == (Watermark(100),)
    arrive(query, (0, "y", Watermark(50)), (0, "x", Watermark(300)), (1, "x", Watermark(300)))
    assert query.poll(0) == ()
    arrive(query, (0, "y", Watermark(200)))
    assert query.poll(0) == (Watermark(200),)


def test_partition_has_the_minimum_of_its_channels() -> None:
    """Idle channels do not count; a partition without elements is at the beginning."""
    query = progress(2, s=None, own=monotonous())

    arrive(query, (0, "x", Watermark(100)), (0, "y", Watermark(50)), (0, "z", IDLE))
    query.take("own", NewestTimes.of({"1": 70}))
    query.poll(0)

    assert query.partitions() == {
        "s": {"0": PartitionWatermark(50), "1": PartitionWatermark()},
        "own": {"0": PartitionWatermark(), "1": PartitionWatermark(69)},
    }
    assert query.watermark_ms == MIN_TIMESTAMP_MS


def test_idle_channels_are_ignored() -> None:
    """If all channels are idle, the query is idle; one active channel makes it active, until it ends."""
    query = progress(1, s=None)

    arrive(query, (0, "x", Watermark(10)), (0, "y", IDLE))
    assert query.poll(0) == (Watermark(10),)
    arrive(query, (0, "x", IDLE))
    assert query.poll(0) == (IDLE,)
    arrive(query, (0, "y", ACTIVE))
    assert query.poll(0) == (ACTIVE,)
    arrive(query, (0, "y", Watermark(MAX_TIMESTAMP_MS)))
    assert query.poll(0) == (IDLE,)


def test_idle_channel_that_ends_does_not_hold_event_time() -> None:
    """At the end of time a channel is not idle, whether its status came before or comes later."""
    query = progress(1, s=None)
    arrive(query, (0, "x", Watermark(10)), (0, "y", Watermark(20)), (0, "x", IDLE), (0, "y", IDLE))
    assert query.poll(0) == (IDLE,)

    arrive(
        query, (0, "x", Watermark(MAX_TIMESTAMP_MS)), (0, "y", Watermark(MAX_TIMESTAMP_MS)), (0, "y", IDLE)
    )

    assert query.poll(0) == (ACTIVE, Watermark(MAX_TIMESTAMP_MS))


def test_idle_source_that_ends_does_not_hold_event_time() -> None:
    """Its partitions were idle when its input ended."""
    query = progress(1, s=monotonous().with_idleness(timedelta(milliseconds=10)))
    query.take("s", NewestTimes.of({"0": 5}))
    assert [query.poll(now_ms) for now_ms in (0, 1, 12)] == [(Watermark(4),), (), (IDLE,)]

    query.arrive("s", ChannelElements.from_elements([("0", Watermark(MAX_TIMESTAMP_MS))])[0])
    assert query.emit() == (ACTIVE, Watermark(MAX_TIMESTAMP_MS))


def test_ended_channels_leave_event_time_to_the_others() -> None:
    """An idle channel may resume: its records must not be late because another one has ended."""
    query = progress(1, s=None)
    arrive(query, (0, "x", Watermark(10)), (0, "y", Watermark(20)), (0, "y", Watermark(MAX_TIMESTAMP_MS)))
    assert query.poll(0) == (Watermark(10),)

    arrive(query, (0, "x", IDLE))
    assert query.poll(0) == (IDLE,)
    arrive(query, (0, "x", ACTIVE), (0, "x", Watermark(30)))
    assert query.poll(0) == (ACTIVE, Watermark(30))
    arrive(query, (0, "x", Watermark(MAX_TIMESTAMP_MS)))
    assert query.poll(0) == (Watermark(MAX_TIMESTAMP_MS),)


def test_source_with_a_strategy_takes_only_the_end_from_its_elements() -> None:
    """An ended partition does not hold event time; other watermarks and statuses are ignored."""
    query = progress(2, s=monotonous().with_idleness(timedelta(milliseconds=10)))
    query.take("s", NewestTimes.of({"0": 5, "1": 50}))
    arrive(query, (0, "x", Watermark(900)), (1, "x", IDLE))
    assert query.poll(0) == (Watermark(4),)

    arrive(query, (0, "x", Watermark(MAX_TIMESTAMP_MS)))
    assert query.poll(1) == (Watermark(49),)
    assert query.wake_ms(1) == 12
    assert query.poll(12) == (IDLE,)
    assert query.wake_ms(12) is None
    query = restarted(query, 2, s=monotonous().with_idleness(timedelta(milliseconds=10)))
    query.take("s", NewestTimes.of({"0": 70, "1": 60}))
    assert query.poll(13) == (ACTIVE, Watermark(59))
    arrive(query, (1, "x", Watermark(MAX_TIMESTAMP_MS)))

    assert query.poll(14) == (Watermark(MAX_TIMESTAMP_MS),)
    assert query.poll(99) == ()


def test_partition_ends_when_all_its_senders_have_ended() -> None:
    """One of two flows that write to a topic may end before the other, also before a restart."""
    query = progress(1, s=no_watermarks())
    arrive(query, (0, "y", Watermark(3)), (0, "x", Watermark(MAX_TIMESTAMP_MS)))
    assert query.poll(0) == ()

    query = restarted(query, 1, s=no_watermarks())
    arrive(query, (0, "y", Watermark(MAX_TIMESTAMP_MS)))

    assert query.poll(1) == (Watermark(MAX_TIMESTAMP_MS),)


def test_silent_partition_is_idle_after_the_timeout() -> None:
    """The time is the given processing time."""
    query = progress(2, s=monotonous().with_idleness(timedelta(seconds=1)))
    query.take("s", NewestTimes.of({"0": 100, "1": 50}))
    assert query.poll(0) == (Watermark(49),)

    emitted = []
    for now_ms in (1_000, 2_000, 3_000):
        query.take("s", NewestTimes.of({"0": 100 + now_ms}))
        emitted += query.poll(now_ms)

    assert emitted == [Watermark(3_099)]


def test_punctuated_source_moves_with_its_markers() -> None:
    """Other records only show that the partition is active."""
    query = progress(1, s=punctuated("end"))

    query.take("s", NewestTimes.of({"0": None}))
    assert query.poll(0) == ()
    query.take("s", NewestTimes.of({"0": 70}))
    assert query.poll(0) == (Watermark(70),)


@pytest.mark.parametrize("arriving", [True, False], ids=["arriving", "generated"])
def test_query_continues_after_a_restart(arriving: bool) -> None:
    """Each partition's state is restored; the last watermark is emitted again, and never a lower one."""

    def build(kept: WatermarkProgress | None = None) -> WatermarkProgress:
        query = progress(2, s=None if arriving else monotonous())
        if kept:
            query.restore(kept.snapshot())
            query.restart()
        return query

    def emit(query: WatermarkProgress, partition: int, time_ms: int) -> None:
        if arriving:
            arrive(query, (partition, "x", Watermark(time_ms)))
        else:
            query.take("s", NewestTimes.of({str(partition): time_ms + 1}))

    query = build()
    emit(query, 0, 100)
    after = build(query)
    emit(after, 1, 40)
    assert after.poll(0) == (Watermark(40),)

    assert build(after).poll(0) == (Watermark(40),)


def test_time_outs_of_partitions_begin_anew_after_a_restart() -> None:
    """A partition is not idle because the query did not run."""
    strategy = monotonous().with_idleness(timedelta(milliseconds=10))
    query = progress(2, s=strategy)
    query.take("s", NewestTimes.of({"0": 100, "1": 50}))
    assert [query.poll(now_ms) for now_ms in (0, 1)] == [(Watermark(49),), ()]
    after = progress(2, s=strategy)
    after.restore(query.snapshot())
    after.restart()

    after.take("s", NewestTimes.of({"0": 200}))

    assert [after.poll(now_ms) for now_ms in (1_000, 1_005)] == [(Watermark(49),), ()]


@pytest.mark.parametrize(
    "changed", [punctuated("kind = 'end'"), periodic("ms"), periodic(max), no_watermarks()], ids=str
)
def test_another_strategy_keeps_the_watermark_until_it_gives_a_higher_one(changed: WatermarkStrategy) -> None:
    """The newest timestamp of the strategy before is not a watermark."""
    query = progress(1, s=bounded_out_of_orderness(timedelta(seconds=1)))
    query.take("s", NewestTimes.of({"0": 5_000}))
    assert query.poll(0) == (Watermark(3_999),)

    after = restarted(query, 1, s=changed)

    assert (after.poll(0), after.watermark_ms) == ((), 3_999)
    after.take("s", NewestTimes.of({"0": 4_500}))
    after.poll(0)
    assert after.watermark_ms == (4_500 if changed.generates else 3_999)


def test_a_shorter_delay_counts_at_once() -> None:
    """The newest timestamps are known, also of state that does not say that they are timestamps."""
    query = progress(1, s=bounded_out_of_orderness(timedelta(seconds=1)))
    query.take("s", NewestTimes.of({"0": 5_000}))
    query.poll(0)
    kept = query.snapshot()
    del kept["sources"]["s"]["delayed"]
    after = progress(1, s=monotonous())
    after.restore(kept)

    assert after.poll(0) == (Watermark(4_999),)


def test_partitions_that_were_added_hold_the_watermark_after_a_restart() -> None:
    """The new partitions have not been read yet."""
    query = progress(1, s=monotonous())
    query.take("s", NewestTimes.of({"0": 100}))
    query.poll(0)
    after = progress(2, s=monotonous())
    after.restore(query.snapshot())
    after.take("s", NewestTimes.of({"0": 200}))

    assert after.poll(0) == ()
    after.take("s", NewestTimes.of({"1": 150}))
    assert after.poll(0) == (Watermark(149),)


@pytest.mark.parametrize("restarts", [False, True], ids=["key-group", "driver"])
@pytest.mark.parametrize("arriving", [False, True], ids=["a strategy is removed", "a strategy is added"])
def test_source_whose_watermarks_are_of_another_kind_holds_event_time(arriving: bool, restarts: bool) -> None:
    """The watermark of before stays until each partition has one that is higher."""

    def emit(query: WatermarkProgress, time_ms: int, *, elements: bool) -> tuple[object, ...]:
        for partition in range(2):
            if elements:
                arrive(query, (partition, "a", Watermark(time_ms)))
            else:
                query.take("s", NewestTimes.of({str(partition): time_ms + 1}))
        return query.poll(0)

    before = progress(2, s=None if arriving else monotonous())
    assert emit(before, 100, elements=arriving) == (Watermark(100),)
    after = restarted(before, 2, s=monotonous() if arriving else None)
    if restarts:
        after.restart()

    assert after.poll(0) == ((Watermark(100),) if restarts else ())
    assert emit(after, 50, elements=not arriving) == ()
    assert emit(after, 150, elements=not arriving) == (Watermark(150),)
