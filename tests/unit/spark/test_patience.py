"""A query waits for the end of an outage without end, with bounded waits, and reports begin and end once."""

from __future__ import annotations

from flowcore.errors import UnreachableBrokerError
from flowcore.spark.run.patience import Patience

AWAY = UnreachableBrokerError("no answer")


def test_outage_is_tried_for_ever_with_bounded_waits() -> None:
    """The waits are 1, 2, 4, 8, 16 and then 30 seconds, for hours."""
    now_s, reports = 100.0, list[str]()
    patience = Patience(reports.append, lambda: now_s)
    waits = []
    for _ in range(1_000):
        patience.wait(AWAY, batches=7)
        began_s = now_s
        while not patience.is_due:
            now_s += 0.5
        waits.append(now_s - began_s)

    assert waits[:6] == [1, 2, 4, 8, 16, 30]
    assert set(waits[6:]) == {30}
    assert reports == ["it waits, and continues by itself: no answer"]


def test_outage_has_ended_with_the_next_batch() -> None:
    """Its length is reported, and the next outage begins with a short wait."""
    now_s, reports = 0.0, list[str]()
    patience = Patience(reports.append, lambda: now_s)
    patience.progress(3)
    for now_s in (0.0, 1.0, 3.0):  # noqa: B007 - the clock reads it
        patience.wait(AWAY, batches=3)
    patience.progress(3)
    assert len(reports) == 1
    now_s = 1_800.0

    patience.progress(4)
    patience.progress(5)

    assert reports[1:] == ["it continues after an outage of 30 min"]
    assert patience.is_due
    patience.wait(AWAY, batches=5)
    now_s += 1
    assert patience.is_due


def test_slow_starts_are_counted_since_the_last_batch() -> None:
    """Three in a row are started again, and a start that was counted counts once."""
    patience, starts = Patience(lambda _: None), [object() for _ in range(8)]
    for start in starts[:3]:
        assert patience.allows(start, batch=7)
        patience.add(start, batch=7)
        patience.add(start, batch=7)
    assert not patience.allows(starts[3], batch=7)
    assert patience.allows(starts[2], batch=7)

    for start in starts[3:6]:
        assert patience.allows(start, batch=8)
        patience.add(start, batch=8)
    assert not patience.allows(starts[6], batch=8)
