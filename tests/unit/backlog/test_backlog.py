"""Any input in backlog is backlog, and checkpoints are fewer while there is some."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.backlog.batches import LEAST_RECORDS, batch_records
from flowcore.backlog.channels import Channels, hear
from flowcore.backlog.channels import start as listen
from flowcore.backlog.checkpoints import CheckpointInterval, Schedule, due, start, switch
from flowcore.backlog.inputs import Inputs
from flowcore.backlog.thresholds import Thresholds
from flowcore.elements import RecordAttributes
from flowcore.errors import ConfigurationError

TEN = CheckpointInterval(10_000)
LONGER = CheckpointInterval(10_000, backlog_interval_ms=60_000)
NONE_IN_BACKLOG = CheckpointInterval(10_000, backlog_interval_ms=0)


def _told(channels: int, *said: tuple[int, bool]) -> list[bool | None]:
    heard, told = listen(channels), []
    for channel, backlog in said:
        heard, now = hear(heard, channel, RecordAttributes(backlog))
        told.append(None if now is None else now.backlog)
    return told


@pytest.mark.parametrize(
    ("channels", "said", "told"),
    [
        (1, [(0, False), (0, False), (0, True), (0, True), (0, False)], [False, None, True, None, False]),
        (2, [(0, False), (1, False)], [None, False]),
        (2, [(1, True), (1, False), (0, False)], [True, None, False]),
        (2, [(0, True), (1, True), (0, False), (1, False)], [True, None, None, False]),
        (3, [(0, False), (1, False), (2, True)], [None, None, True]),
    ],
    ids=["one", "no-backlog-at-all", "undefined-holds-back", "any-wins", "the-last-decides"],
)
def test_channels_tell_only_what_has_changed(
    channels: int, said: list[tuple[int, bool]], told: list[bool | None]
) -> None:
    """Backlog at once, no backlog when every channel has said so."""
    assert _told(channels, *said) == told


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=20))
def test_channels_tell_what_is_so(channels: int, said: list[tuple[int, bool]]) -> None:
    """What was told last is what all say together, wherever that is known; and nothing is told twice."""
    said = [(channel % channels, backlog) for channel, backlog in said]
    last: bool | None = None
    for upto, now in enumerate(_told(channels, *said), 1):
        assert now is None or now != last
        last = last if now is None else now
        standing = dict(said[:upto])
        if any(standing.values()):
            assert last is True
        elif len(standing) == channels:
            assert last is False


@pytest.mark.parametrize("channel", [-1, 2])
def test_channels_refuse_one_that_is_not_there(channel: int) -> None:
    """It would be counted for another."""
    with pytest.raises(ConfigurationError, match=f"channel {channel} is none of 2"):
        hear(listen(2), channel, RecordAttributes(backlog=True))


def test_channels_refuse_to_be_none() -> None:
    """Nothing would ever be told."""
    with pytest.raises(ConfigurationError, match="channels=0 is not positive"):
        listen(0)


def test_channels_are_plain_values() -> None:
    """What is known can be written down and compared."""
    heard, _ = hear(listen(2), 0, RecordAttributes(backlog=True))

    assert heard == Channels((True, None), told=True)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: CheckpointInterval(10_000, 9_999), "backlog_interval_ms=9999 is shorter .*=10000"),
        (lambda: CheckpointInterval(10_000, -1), "backlog_interval_ms=-1 is shorter"),
        (lambda: CheckpointInterval(0), "interval_ms=0 is not positive"),
        (lambda: CheckpointInterval(-1), "interval_ms=-1 is not positive"),
    ],
    ids=["shorter", "negative-in-backlog", "zero", "negative"],
)  # fmt: skip
def test_checkpoint_interval_refuses(build: Callable[[], object], message: str) -> None:
    """The interval of backlog is for fewer checkpoints, or for none."""
    with pytest.raises(ConfigurationError, match=message):
        build()


def test_checkpoint_interval_of_backlog_may_be_equal_or_none() -> None:
    """None given means the same, zero means no checkpoints."""
    assert CheckpointInterval(10, 10).interval_ms_in(backlog=True) == 10
    assert CheckpointInterval(10).interval_ms_in(backlog=True) == 10
    assert CheckpointInterval(10, 0).interval_ms_in(backlog=True) is None
    assert CheckpointInterval(10, 0).interval_ms_in(backlog=False) == 10


def test_checkpoints_are_due_at_their_time_and_not_before() -> None:
    """A look that comes late does not shift those that follow; one that was passed over is told too."""
    schedule, times = due(TEN, start(TEN, now_ms=500), 10_499)
    assert times == ()
    schedule, times = due(TEN, schedule, 10_500)
    assert times == (10_500,)
    schedule, times = due(TEN, schedule, 35_000)
    assert times == (20_500, 30_500)
    assert schedule.next_ms == 40_500


def test_first_checkpoint_is_due_after_the_interval_of_backlog_if_it_begins_in_it() -> None:
    """One source is enough; without checkpoints in backlog none is due."""
    assert start(LONGER).next_ms == 10_000
    assert start(LONGER, in_backlog=["bids"]).next_ms == 60_000
    assert start(NONE_IN_BACKLOG, in_backlog=["bids"]).next_ms is None


def test_switch_into_backlog_does_not_put_the_next_checkpoint_off() -> None:
    """It counts for those after it; with no checkpoints in backlog it is the last one."""
    for config, following in ((LONGER, 70_000), (NONE_IN_BACKLOG, None)):
        schedule = switch(config, start(config), "bids", 9_999, backlog=True)
        assert schedule.next_ms == 10_000
        schedule, times = due(config, schedule, 69_999)
        assert times == (10_000,)
        assert schedule.next_ms == following


@pytest.mark.parametrize(
    ("now_ms", "next_ms"), [(0, 10_000), (49_999, 59_999), (50_000, 60_000), (50_001, 60_000)]
)
def test_switch_out_of_backlog_brings_the_next_checkpoint_forward(now_ms: int, next_ms: int) -> None:
    """To one interval from now, unless it is due before that anyway."""
    schedule = start(LONGER, in_backlog=["bids"])

    assert switch(LONGER, schedule, "bids", now_ms, backlog=False) == Schedule(next_ms)


def test_switch_out_of_backlog_without_checkpoints_begins_them_again() -> None:
    """One interval from then."""
    schedule = start(NONE_IN_BACKLOG, in_backlog=["bids"])
    assert due(NONE_IN_BACKLOG, schedule, 10**9) == (schedule, ())

    assert switch(NONE_IN_BACKLOG, schedule, "bids", 10**9, backlog=False).next_ms == 10**9 + 10_000


def test_switch_counts_sources_by_name() -> None:
    """The last one to leave ends it; saying a thing twice changes nothing."""
    schedule = start(LONGER, in_backlog=["bids", "auctions"])
    schedule = switch(LONGER, schedule, "bids", 5, backlog=True)
    schedule = switch(LONGER, schedule, "bids", 10, backlog=False)
    schedule = switch(LONGER, schedule, "bids", 15, backlog=False)
    assert schedule == Schedule(60_000, frozenset({"auctions"}))
    assert switch(LONGER, schedule, "auctions", 20, backlog=False) == Schedule(10_020)


@given(
    st.sampled_from([TEN, LONGER, NONE_IN_BACKLOG, CheckpointInterval(10_000, 10_000)]),
    st.frozensets(st.sampled_from("ab")),
    st.lists(st.tuples(st.integers(0, 30_000), st.sampled_from("ab"), st.booleans()), max_size=20),
)
def test_switches_never_put_a_checkpoint_off_nor_bring_two_close(
    config: CheckpointInterval, in_backlog: frozenset[str], switches: list[tuple[int, str, bool]]
) -> None:
    """The next is never further than the interval that holds, nor are two closer than the normal one."""
    now_ms, times = 0, [0]
    schedule = start(config, in_backlog=in_backlog)
    for step_ms, source, backlog in switches:
        now_ms += step_ms
        schedule, found = due(config, schedule, now_ms)
        times += found
        before = schedule.next_ms
        schedule = switch(config, schedule, source, now_ms, backlog=backlog)
        assert before is None or (schedule.next_ms is not None and schedule.next_ms <= before)
        interval_ms = config.interval_ms_in(backlog=bool(schedule.in_backlog))
        assert interval_ms is None or (
            schedule.next_ms is not None and now_ms < schedule.next_ms <= now_ms + interval_ms
        )

    assert all(later - earlier >= 10_000 for earlier, later in pairwise(times))


def test_inputs_are_backlog_while_a_result_is_pending() -> None:
    """Whatever the sources say; when all is committed, they decide, and not before they have spoken."""
    inputs = Inputs(["a", "b"], ["bids"])

    told = [
        inputs.tell("bids", backlog=False),
        inputs.tell("a", backlog=False),
        inputs.tell("b", backlog=False),
        inputs.tell("bids", backlog=True),
    ]

    assert told == [None, None, RecordAttributes(backlog=False), RecordAttributes(backlog=True)]
    assert inputs.backlog


def test_inputs_say_nothing_until_every_source_has() -> None:
    """A query that joins nothing is neither in backlog nor out of it when it starts."""
    inputs = Inputs([], ["bids", "asks"])
    inputs.tell("bids", backlog=False)

    assert inputs.backlog is None


LIMITS = Thresholds(enter=100, leave=10)


@pytest.mark.parametrize(
    ("lag", "before", "backlog"),
    [
        (100, None, False), (101, None, True), (100, False, False), (101, False, True), (11, True, True),
        (10, True, False), (0, True, False),
    ],
)  # fmt: skip
def test_source_is_in_backlog_from_one_number_down_to_another(
    lag: int, before: bool | None, backlog: bool
) -> None:
    """Between the two it stays what it was."""
    assert LIMITS.backlog(lag, before=before) is backlog


@given(st.lists(st.integers(0, 120), min_size=1), st.sampled_from([None, True, False]))
def test_backlog_never_flaps(lags: list[int], before: bool | None) -> None:
    """Between two changes of mind the lag has crossed the whole band; inside of it nothing changes."""
    at: list[tuple[int, bool]] = []
    for lag in lags:
        after = LIMITS.backlog(lag, before=before)
        if after != before:
            at.append((lag, after))
        assert before is None or not LIMITS.leave < lag <= LIMITS.enter or after is before
        before = after
    for (_, was), (lag, backlog) in pairwise(at):
        assert backlog is not was
        assert lag > LIMITS.enter if backlog else lag <= LIMITS.leave


@pytest.mark.parametrize(("enter", "leave"), [(10, 10), (10, 11), (10, -1), (0, 0)])
def test_thresholds_refuse_what_would_go_to_and_fro(enter: int, leave: int) -> None:
    """The message names both settings."""
    with pytest.raises(ConfigurationError, match=f"backlog.leave={leave} is not below backlog.enter={enter}"):
        Thresholds(enter, leave)


@pytest.mark.parametrize(
    ("interval", "per_second", "records"),
    [
        (TEN, None, 5_000_000),
        (TEN, 0.0, 5_000_000),
        (TEN, 20_000.0, 200_000),
        (LONGER, 20_000.0, 1_200_000),
        (LONGER, 200_000.0, 5_000_000),
        (NONE_IN_BACKLOG, 20_000.0, 5_000_000),
        (TEN, 3.0, LEAST_RECORDS),
    ],
    ids=["unknown", "nothing-read", "interval", "of-backlog", "as-many-as-may", "no-interval", "slow"],
)
def test_batch_in_backlog_has_what_is_read_in_the_interval(
    interval: CheckpointInterval, per_second: float | None, records: int
) -> None:
    """As far as the speed is known, and never more than a batch may have."""
    assert batch_records(interval, per_second, 5_000_000) == records
