"""A watermark does not overtake buffered records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowcore.elements import Watermark, WatermarkStatus
from flowcore.flush.pending_watermarks import PendingWatermarks

IDLE, ACTIVE = WatermarkStatus(idle=True), WatermarkStatus(idle=False)


def test_watermark_does_not_wait_without_a_buffer() -> None:
    """It is released at once, before any batch is known."""
    held = PendingWatermarks(0)
    held.add((IDLE, Watermark(5)), now_ms=1_000)

    assert held.release(begun_ms=0) == (IDLE, Watermark(5))


def test_pending_watermark_is_released_by_a_batch_that_began_an_interval_later() -> None:
    """Of several pending watermarks only the latest is released, in order."""
    held = PendingWatermarks(500)
    held.add((Watermark(5), IDLE), now_ms=1_000)
    held.add((Watermark(6),), now_ms=1_100)
    held.add((ACTIVE,), now_ms=1_200)

    assert held.release(begun_ms=1_499) == ()
    assert held.release(begun_ms=1_600) == (IDLE, Watermark(6))
    assert held.release(begun_ms=1_600) == ()
    assert held.release(begun_ms=1_700) == (ACTIVE,)


@given(st.lists(st.tuples(st.integers(0, 300), st.booleans()), max_size=30), st.integers(1, 500))
def test_no_watermark_is_released_early_and_none_is_forgotten(
    elements: list[tuple[int, bool]], interval_ms: int
) -> None:
    """For any arrivals between batches, the last watermark is released in the end."""
    held, now_ms, times, left = PendingWatermarks(interval_ms), 0, {}, []
    for number, (moves, batch) in enumerate(elements):
        now_ms += moves
        times[number] = now_ms
        held.add((Watermark(number),), now_ms)
        for element in held.release(now_ms) if batch else ():
            assert isinstance(element, Watermark)
            assert times[element.timestamp_ms] + interval_ms <= now_ms
            left.append(element.timestamp_ms)
    left += [element.timestamp_ms for element in held.release(now_ms + 500) if isinstance(element, Watermark)]

    assert left == sorted(set(left))
    assert left[-1:] == list(times)[-1:]


def test_nothing_is_released_in_backlog_unless_buffers_are_flushed_in_it() -> None:
    """With an interval in backlog it is released then, else by a batch of live records."""
    held, longer = PendingWatermarks(500, None), PendingWatermarks(500, 2_000)
    for each in (held, longer):
        each.add((Watermark(5),), now_ms=1_000)

    assert held.release(begun_ms=99_000, backlog=True) == ()
    assert held.release(begun_ms=1_500, backlog=False) == (Watermark(5),)
    assert longer.release(begun_ms=2_999, backlog=True) == ()
    assert longer.release(begun_ms=3_000, backlog=True) == (Watermark(5),)


def test_watermark_waits_for_each_buffer_of_a_chain_in_turn() -> None:
    """The second interval begins with the batch in which the first buffer's records arrived there."""
    held = PendingWatermarks(500, 2_000, PendingWatermarks(50, 100, PendingWatermarks(0)))
    held.add((IDLE, Watermark(5)), now_ms=1_000)

    assert held.release(begun_ms=1_499) == ()
    assert held.release(begun_ms=1_700) == ()
    assert held.release(begun_ms=1_749) == ()
    assert held.release(begun_ms=1_750) == (IDLE, Watermark(5))
