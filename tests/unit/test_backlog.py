"""A query is in backlog while any of its inputs is, and has fewer checkpoints then."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.backlog import (
    LEAST_RECORDS,
    ChannelStatus,
    CheckpointInterval,
    QueryInputs,
    Thresholds,
    batch_records,
    open_channels,
    receive,
)
from flowcore.elements import RecordAttributes
from flowcore.errors import ConfigurationError

TEN = CheckpointInterval(10_000)
LONGER = CheckpointInterval(10_000, backlog_interval_ms=60_000)
NONE_IN_BACKLOG = CheckpointInterval(10_000, backlog_interval_ms=0)


def _emitted(channels: int, *reports: tuple[int, bool]) -> list[bool | None]:
    status, emitted = open_channels(channels), []
    for channel, backlog in reports:
        status, now = receive(status, channel, RecordAttributes(backlog))
        emitted.append(None if now is None else now.backlog)
    return emitted


@pytest.mark.parametrize(
    ("channels", "reports", "emitted"),
    [
        (1, [(0, False), (0, False), (0, True), (0, True), (0, False)], [False, None, True, None, False]),
        (2, [(0, False), (1, False)], [None, False]),
        (2, [(1, True), (1, False), (0, False)], [True, None, False]),
        (2, [(0, True), (1, True), (0, False), (1, False)], [True, None, None, False]),
        (3, [(0, False), (1, False), (2, True)], [None, None, True]),
    ],
    ids=["one", "no-backlog-at-all", "undefined-holds-back", "any-wins", "the-last-decides"],
)
def test_channels_emit_only_changes(
    channels: int, reports: list[tuple[int, bool]], emitted: list[bool | None]
) -> None:
    """Backlog is emitted at once; its end is emitted when every channel has reported it."""
    assert _emitted(channels, *reports) == emitted


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=20))
def test_channels_emit_the_combination(channels: int, reports: list[tuple[int, bool]]) -> None:
    """The last emitted status is the known combination of all channels; no status is repeated."""
    reports = [(channel % channels, backlog) for channel, backlog in reports]
    last: bool | None = None
    for upto, now in enumerate(_emitted(channels, *reports), 1):
        assert now is None or now != last
        last = last if now is None else now
        standing = dict(reports[:upto])
        if any(standing.values()):
            assert last is True
        elif len(standing) == channels:
            assert last is False


@pytest.mark.parametrize("channel", [-1, 2])
def test_channels_refuse_an_unknown_channel(channel: int) -> None:
    """An unknown channel would be counted as another one."""
    with pytest.raises(ConfigurationError, match=f"channel {channel} is not one of 2"):
        receive(open_channels(2), channel, RecordAttributes(backlog=True))


def test_channels_refuse_a_count_of_zero() -> None:
    """Without channels no status would ever be emitted."""
    with pytest.raises(ConfigurationError, match="channels=0 is not positive"):
        open_channels(0)


def test_channels_are_plain_values() -> None:
    """They can be stored and compared."""
    status, _ = receive(open_channels(2), 0, RecordAttributes(backlog=True))

    assert status == ChannelStatus((True, None), emitted=True)


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
    """The interval in backlog may only make checkpoints less frequent, or turn them off."""
    with pytest.raises(ConfigurationError, match=message):
        build()


def test_checkpoint_interval_of_backlog_may_be_equal_or_none() -> None:
    """None means the same interval; zero means no checkpoints."""
    assert CheckpointInterval(10, 10).interval_ms_in(backlog=True) == 10
    assert CheckpointInterval(10).interval_ms_in(backlog=True) == 10
    assert CheckpointInterval(10, 0).interval_ms_in(backlog=True) is None
    assert CheckpointInterval(10, 0).interval_ms_in(backlog=False) == 10


def test_inputs_are_backlog_while_a_result_is_pending() -> None:
    """Pending results count as backlog; after their commit the sources decide, once all have reported."""
    inputs = QueryInputs(["a", "b"], ["bids"])

    emitted = [
        inputs.update("bids", backlog=False),
        inputs.update("a", backlog=False),
        inputs.update("b", backlog=False),
        inputs.update("bids", backlog=True),
    ]

    assert emitted == [None, None, RecordAttributes(backlog=False), RecordAttributes(backlog=True)]
    assert inputs.backlog


def test_inputs_have_no_status_until_every_source_has_reported() -> None:
    """A query without joined results starts with an unknown backlog status."""
    inputs = QueryInputs([], ["bids", "asks"])
    inputs.update("bids", backlog=False)

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
    """Between the two thresholds the status does not change."""
    assert LIMITS.in_backlog(lag, before=before) is backlog


@given(st.lists(st.integers(0, 120), min_size=1), st.sampled_from([None, True, False]))
def test_backlog_never_flaps(lags: list[int], before: bool | None) -> None:
    """Between two changes of the status the lag has crossed the whole band between the thresholds."""
    at: list[tuple[int, bool]] = []
    for lag in lags:
        after = LIMITS.in_backlog(lag, before=before)
        if after != before:
            at.append((lag, after))
        assert before is None or not LIMITS.leave < lag <= LIMITS.enter or after is before
        before = after
    for (_, was), (lag, backlog) in pairwise(at):
        assert backlog is not was
        assert lag > LIMITS.enter if backlog else lag <= LIMITS.leave


@pytest.mark.parametrize(("enter", "leave"), [(10, 10), (10, 11), (10, -1), (0, 0)])
def test_thresholds_refuse_an_empty_band(enter: int, leave: int) -> None:
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
    """Batch size is speed times interval once the speed is known, up to the limit of a batch."""
    assert batch_records(interval, per_second, 5_000_000) == records
