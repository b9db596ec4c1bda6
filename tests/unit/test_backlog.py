"""A query is in backlog while any of its inputs is, and has fewer checkpoints then."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowcore.backlog import (
    LEAST_RECORDS,
    BacklogProgress,
    CheckpointInterval,
    MergedBacklog,
    Thresholds,
    batch_records,
)
from flowcore.channels import MOST_SENDERS
from flowcore.elements import RecordAttributes
from flowcore.errors import ConfigurationError

TEN = CheckpointInterval(10_000)
LONGER = CheckpointInterval(10_000, backlog_interval_ms=60_000)
NONE_IN_BACKLOG = CheckpointInterval(10_000, backlog_interval_ms=0)


def _emitted(channels: int, *reports: tuple[int, bool]) -> list[bool | None]:
    merged, emitted = MergedBacklog(map(str, range(channels))), []
    for channel, backlog in reports:
        now = merged.receive(str(channel), backlog=backlog)
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


def test_ended_channel_leaves_the_status_to_the_others() -> None:
    """Its backlog is over, and its report is not awaited; the end alone is not a status."""
    merged = MergedBacklog(["0", "1", "2"])

    assert merged.receive("0", backlog=None) is None
    assert merged.receive("1", backlog=True) == RecordAttributes(backlog=True)
    assert merged.receive("2", backlog=False) is None
    assert merged.receive("1", backlog=None) == RecordAttributes(backlog=False)
    assert merged.receive("2", backlog=None) is None


def test_senders_to_a_partition_are_channels() -> None:
    """A partition is unknown until the first of them reports; two flows may write to one topic."""
    merged = MergedBacklog(["0", "1"])
    merged.receive("0/a", backlog=True)
    merged.receive("0/b", backlog=False)
    merged.receive("1/a", backlog=False)

    assert merged.receive("0/a", backlog=False) == RecordAttributes(backlog=False)


def test_elements_without_a_sender_are_a_channel_of_their_own() -> None:
    merged = MergedBacklog(["0"])
    merged.receive("0", backlog=True)

    assert merged.receive("0/a", backlog=False) is None
    assert merged.receive("0", backlog=False) == RecordAttributes(backlog=False)


def test_first_senders_of_a_partition_count() -> None:
    """The first senders are read among many others; a sender that has ended leaves its place."""
    merged = MergedBacklog(["0"])
    for number in range(MOST_SENDERS):
        merged.receive(f"0/{number}", backlog=False)
    assert merged.receive("0/forged", backlog=True) is None
    kept = json.loads(json.dumps(merged.snapshot(["0"])))
    merged = MergedBacklog.from_snapshot(kept, ["0"])
    assert [merged.receive(f"0/forged-{number}", backlog=True) for number in range(100)] == [None] * 100
    assert merged.receive("0/7", backlog=True) == RecordAttributes(backlog=True)
    assert merged.receive("0/7", backlog=None) == RecordAttributes(backlog=False)
    assert merged.receive("0/later", backlog=True) == RecordAttributes(backlog=True)


def test_channels_that_are_no_longer_declared_do_not_count() -> None:
    """The others decide with their next report."""
    progress = BacklogProgress({"s": ["0", "1"]})
    progress.receive("s", "0/eve", backlog=True)
    progress.receive("s", "1/a", backlog=False)
    kept = json.loads(json.dumps(progress.snapshot()))
    declared = BacklogProgress({"s": ["0", "1"]}, (), {"s": ["a"]})
    declared.restore(kept)

    assert declared.receive("s", "0/eve", backlog=True) is None
    assert declared.receive("s", "0/a", backlog=False) == RecordAttributes(backlog=False)


def test_operator_is_in_backlog_while_any_input_is() -> None:
    """An input that never reports does not hold the status, and an ignored one does not count."""
    progress = BacklogProgress({"": [""], "a": ["0", "1"], "b": ["0"], "c": ["0"]}, ignored=["c"])

    emitted = [
        progress.receive("", "", backlog=True),
        progress.receive("c", "0", backlog=True),
        progress.receive("a", "0", backlog=True),
        progress.receive("", "", backlog=False),
        progress.receive("a", "0", backlog=False),
        progress.receive("a", "1", backlog=False),
    ]

    assert emitted == [RecordAttributes(backlog=True), *[None] * 4, RecordAttributes(backlog=False)]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["0", "1", "1/x"]), st.none() | st.booleans()))
)
@example([("a", "0", True), ("a", "1", None), ("a", "0", False)])
def test_backlog_progress_survives_restarts(reports: list[tuple[str, str, bool | None]]) -> None:
    """What is emitted does not depend on restarts, nor on whether the state is written in its short form."""
    inputs = {"a": ["0", "1"], "b": ["0"]}
    progress = restarted = BacklogProgress(inputs)
    for source, channel, backlog in reports:
        kept = json.loads(json.dumps(restarted.snapshot()))
        restarted = BacklogProgress(inputs)
        restarted.restore(kept)
        emitted = progress.receive(source, channel, backlog=backlog)
        assert restarted.receive(source, channel, backlog=backlog) == emitted


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: CheckpointInterval(10_000, 9_999), "backlog='9999 ms' is shorter .*duration='10 s'"),
        (lambda: CheckpointInterval(10_000, -1), "interval-during-backlog='-1 ms' is shorter"),
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
    inputs = MergedBacklog(["a", "b", "bids"])
    inputs.receive("a", backlog=True)
    inputs.receive("b", backlog=True)

    emitted = [
        inputs.receive("bids", backlog=False),
        inputs.receive("a", backlog=False),
        inputs.receive("b", backlog=False),
        inputs.receive("bids", backlog=True),
    ]

    assert emitted == [None, None, RecordAttributes(backlog=False), RecordAttributes(backlog=True)]
    assert inputs.backlog


def test_inputs_have_no_status_until_every_source_has_reported() -> None:
    """A query without joined results starts with an unknown backlog status."""
    inputs = MergedBacklog(["bids", "asks"])
    inputs.receive("bids", backlog=False)

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
