"""Input that waits for a batch is quiet when nothing more arrives."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from flowcore.flush.quiet_input import QUIET_MS, QuietInput


def test_input_is_quiet_a_tenth_of_the_interval_after_its_last_record() -> None:
    """Each record begins the time anew."""
    quiet = QuietInput(60_000)

    assert not quiet.poll(1, unread=1, now_ms=0)
    assert not quiet.poll(2, unread=2, now_ms=5_999)
    assert not quiet.poll(2, unread=2, now_ms=11_998)
    assert quiet.poll(2, unread=2, now_ms=11_999)


def test_short_interval_has_at_least_two_seconds() -> None:
    """A short pause is not the end of the input."""
    quiet = QuietInput(5_000)

    assert not quiet.poll(1, unread=1, now_ms=10)
    assert not quiet.poll(1, unread=1, now_ms=QUIET_MS + 9)
    assert quiet.poll(1, unread=1, now_ms=QUIET_MS + 10)


@given(st.lists(st.tuples(st.integers(0, 9_000), st.integers(0, 3), st.booleans()), max_size=30))
def test_batch_is_early_only_if_records_wait_and_there_are_at_most_ten_in_an_interval(
    polls: list[tuple[int, int, bool]],
) -> None:
    """A batch reads all records that wait."""
    quiet, now_ms, arrived, read, early = QuietInput(30_000), 0, 0, 0, []
    last_ms = 0
    for moves_ms, fresh, batch in polls:
        now_ms += moves_ms
        arrived += fresh
        last_ms = now_ms if fresh else last_ms
        if quiet.poll(arrived, unread=arrived - read, now_ms=now_ms):
            assert arrived > read
            assert now_ms - last_ms >= 3_000
            early.append(now_ms)
            read = arrived
        elif batch:
            read = arrived

    assert all(later - earlier >= 3_000 for earlier, later in pairwise(early))
