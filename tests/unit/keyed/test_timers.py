"""Timers fire once, by time, and take memory only while they are pending."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flowcore.keyed.timers import TimerQueue

Timer = tuple[int, bool, str]
"""Time, whether it fires last, and owner."""


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.booleans(), st.sampled_from("ab"))),
    st.integers(0, 30),
)
def test_timers_fire_by_time_and_each_once(
    registered: list[tuple[bool, int, bool, str]], now_ms: int
) -> None:
    """This holds after any cancelled and repeated registrations."""
    queue, wanted = TimerQueue[tuple[bool, str]](), set[Timer]()

    for add, time_ms, last, owner in registered:
        if add:
            queue.add((last, owner), time_ms, last=last)
        else:
            queue.discard((last, owner), time_ms)
        (wanted.add if add else wanted.discard)((time_ms, last, owner))
    due = [(time_ms, *owner) for owner, time_ms in iter(lambda: queue.next_due(now_ms), None)]

    assert sorted(due) == sorted(timer for timer in wanted if timer[0] <= now_ms)
    assert [timer[:2] for timer in due] == sorted(timer[:2] for timer in due)
    left = {(time_ms, *owner) for owner, times in queue.owners.items() for time_ms in times}
    assert left == {timer for timer in wanted if timer[0] > now_ms}
    assert len(queue) == len(left)


class CountedKey:
    """A key that counts how often it is hashed."""

    hashes = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        CountedKey.hashes += 1
        return self.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CountedKey) and other.number == self.number


def test_poll_of_timers_costs_what_is_due_however_many_are_pending() -> None:
    timers = TimerQueue[Any]()
    for number in range(10_000):
        timers.add(CountedKey(number), 1000 + number)
    CountedKey.hashes = 0
    none = timers.next_due(999)
    hashes_for_none = CountedKey.hashes
    due = [timers.next_due(1002) for _ in range(4)]

    assert (none, hashes_for_none) == (None, 0)
    assert [found and found[1] for found in due] == [1000, 1001, 1002, None]
    assert CountedKey.hashes <= 3 * 2  # found, and no longer pending


def test_timers_that_were_asked_for_again_take_no_memory() -> None:
    timers = TimerQueue[Any]()
    for _ in range(100):
        timers.add("a", 5)

    assert (len(timers), len(timers._heap)) == (1, 1)


def test_timers_that_were_cancelled_take_no_memory() -> None:
    timers = TimerQueue[Any]()
    for time_ms in range(10_000):
        timers.add("a", time_ms)
        timers.discard("a", time_ms - 1)

    assert len(timers) == 1
    assert len(timers._heap) < 100
    assert timers.next_due(10_000) == ("a", 9_999)


def test_timers_of_one_time_fire_in_the_order_of_their_owners() -> None:
    """Those that are registered or cancelled meanwhile are no exception, and earlier ones come first."""
    timers = TimerQueue[Any]()
    for owner in ("c", "a", "d", "b"):
        timers.add(owner, 5)
    first = timers.next_due(5)
    timers.add("e", 4)
    timers.add("a", 5)
    timers.discard("c", 5)

    assert timers.next_ms == 4
    assert [first, *(timers.next_due(5) for _ in range(5))] == [
        ("a", 5), ("e", 4), ("a", 5), ("b", 5), ("d", 5), None,
    ]  # fmt: skip
