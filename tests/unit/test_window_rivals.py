"""The rival of the window benchmark that keeps state per key: each window once, with all its records."""

from __future__ import annotations

from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from tests.benchmarks._window_rivals import PerKey


def _tester(lateness_ms: int) -> TwsTester:
    # Spark drops records by the watermark of the batch before, which is never ahead of these.
    return TwsTester(
        PerKey("tumbling", lateness_ms),
        timeMode="EventTime",
        outputMode="Update",
        eventTimeExtractor=lambda _row: 1 << 40,
    )


def _batch(tester: TwsTester, watermark_ms: int, *times_ms: int) -> list[tuple[int, int]]:
    """Let a batch arrive; return end and count of the windows that it emits.

    A batch has its watermark before its records, and fires its timers after them.
    """
    tester._currentWatermarkMs = watermark_ms - 1
    tester.handle.setWatermark(-1)  # Spark takes timers that are due, and fires them in the same batch
    emitted = tester.test(1, [Row(auction_id=1, price=1, at=at) for at in times_ms])
    emitted = [*emitted, *tester.setWatermark(watermark_ms)]
    return [(round(row.window_end.timestamp() * 1000), row.n) for row in emitted]


def test_window_that_the_watermark_has_passed_is_emitted_once_with_all_records() -> None:
    """Records of a slower partition come in the batch whose watermark ends their window."""
    tester = _tester(0)

    assert _batch(tester, 1_000, 500, 4_000) == []
    assert _batch(tester, 12_000, 9_000, 9_500, 11_000) == [(10_000, 4)]
    assert _batch(tester, 30_000) == [(20_000, 1)]


def test_late_record_lets_its_window_fire_again_until_it_is_removed() -> None:
    """With a lateness of 30 s Spark's watermark is 30 s behind: Spark drops no record of the window."""
    tester = _tester(30_000)

    assert _batch(tester, 80_000, 109_000) == [(110_000, 1)]
    assert _batch(tester, 109_000, 109_100, 109_200) == [(110_000, 3)]
    assert _batch(tester, 110_000) == []
    assert tester.peekMapState("windows", 1) == {}
