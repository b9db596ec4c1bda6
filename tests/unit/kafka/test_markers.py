"""A marker is sent at the turn of a millisecond."""

import statistics
import time
from collections.abc import Iterator

import pytest

from flowcore.kafka import markers

MS_NS = 1_000_000


def test_marks_are_made_at_the_turn_of_a_millisecond() -> None:
    """A marker is sent at or shortly after its time, and no time is repeated."""
    marks, late_ns = [], []
    for _ in range(50):
        began_ns = time.time_ns()
        marks.append(_mark())
        late_ns.append(time.time_ns() - marks[-1] * MS_NS)
        assert marks[-1] * MS_NS > began_ns

    assert min(late_ns) >= 0
    assert statistics.median(late_ns) < 100_000
    assert len(set(marks)) == len(marks)


def test_mark_on_a_busy_machine_is_less_than_a_millisecond_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the clock is read only every 0.7 ms, the attempt ends after a bounded number of reads."""
    clock = _clock(step_ns=700_000)
    monkeypatch.setattr("flowcore.kafka.markers.time.time_ns", lambda: next(clock))
    monkeypatch.setattr("flowcore.kafka.markers.time.sleep", lambda _seconds: None)

    marked_ms = _mark()

    assert 0 < next(clock) - marked_ms * MS_NS < 2 * MS_NS


def test_wake_up_that_comes_late_waits_for_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark half a millisecond before its sending would add half a millisecond of latency."""
    times = iter([900_000, 910_000, 1_500_000, 1_600_000, 1_610_000, 1_990_000, 2_050_000])
    monkeypatch.setattr("flowcore.kafka.markers.time.time_ns", lambda: next(times))
    monkeypatch.setattr("flowcore.kafka.markers.time.sleep", lambda _seconds: None)

    assert _mark() == 2


def test_clock_set_back_does_not_delay_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the next millisecond of the new time, not of the old time."""
    times = iter(
        [1_000 * MS_NS + 900_000, 5 * MS_NS, 5 * MS_NS, 5 * MS_NS + 900_000, 5 * MS_NS + 910_000, 6 * MS_NS]
    )
    monkeypatch.setattr("flowcore.kafka.markers.time.time_ns", lambda: next(times))
    monkeypatch.setattr("flowcore.kafka.markers.time.sleep", lambda _seconds: None)

    assert _mark() == 6


def _mark() -> int:
    """A mark, for which what was prepared is for that very mark."""
    marked_ms, prepared = markers._at_turn(lambda mark_ms: {0: str(mark_ms).encode()})
    assert prepared == {0: str(marked_ms).encode()}
    return marked_ms


def _clock(step_ns: int) -> Iterator[int]:
    now_ns = 1_700_000_000 * 1_000 * MS_NS
    while True:
        now_ns += step_ns
        yield now_ns
