"""Totals are sums over Spark's reports of batches; rates and lag are current."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from flowcore.elements import MIN_TIMESTAMP_MS
from flowcore.metrics.progress import PartitionProgress
from flowcore.metrics.tally import WINDOW_MS, Batch, BusyOperators, QueryTally, Rate, partitions_of
from flowcore.watermarks.merge import PartitionWatermark

START_MS = 1_000_000
REPORT = json.loads("""{
  "name": "tops", "timestamp": "1970-01-01T00:16:40.440Z", "batchId": 3, "batchDuration": 14714,
  "durationMs": {"addBatch": 9000},
  "numInputRows": 3800, "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"},
  "stateOperators": [
    {"operatorName": "aggregate", "numRowsTotal": 7, "memoryUsedBytes": 264368,
     "numRowsDroppedByWatermark": 2, "customMetrics": {"rocksdbSstFileSize": 1000}},
    {"operatorName": "dedupe", "numRowsTotal": 5, "memoryUsedBytes": 32, "numRowsDroppedByWatermark": 1}],
  "sources": [
    {"startOffset": null, "endOffset": {"bids": {"0": 1900, "1": 1901}, "bids.events": {"0": 4}}},
    {"startOffset": null, "endOffset": {"asks": {"0": 7}}, "latestOffset": {"asks": {"0": 40}},
     "processedRowsPerSecond": 3.2}]
}""")
"""Of a real query, shortened, with a second operator and a second source."""


def batch(number: int, end_ms: int, *, length_ms: int = 1_000, records: int = 0, **more: Any) -> Batch:
    """A batch that ended this long after the start."""
    return Batch(
        number=number, start_ms=START_MS + end_ms - length_ms, length_ms=length_ms, records=records, **more
    )


def test_batch_has_sparks_figures() -> None:
    """State and late records are summed over operators; offsets are those of all sources."""
    assert Batch.of(REPORT) == Batch(
        number=3, start_ms=1_000_440, length_ms=14_714, records=3_800,
        counts={"late": 0, "dropped": 3, "repeated": 0, "unidentified": 0, "saved": 0},
        state_rows=12, state_bytes=265_400, watermark_ms=None,
        offsets={"bids": {0: 1900, 1: 1901}, "bids.events": {0: 4}, "asks": {0: 7}},
    )  # fmt: skip


def test_batch_of_a_store_that_does_not_count_has_no_rows() -> None:
    """A state of unknown size must not be shown as 0 rows."""
    states = [{**state, "numRowsTotal": 0} for state in REPORT["stateOperators"]]

    assert Batch.of({**REPORT, "stateOperators": states}).state_rows is None
    assert Batch.of({**REPORT, "stateOperators": []}).state_bytes is None


def test_batch_has_sparks_watermark_once_there_is_one() -> None:
    """Before that it is the epoch."""
    batch = {**REPORT, "eventTime": {"watermark": "1970-01-01T00:00:02.500Z"}}

    assert Batch.of(batch).watermark_ms == 2_500


def test_batch_counts_what_operators_observe() -> None:
    """Late records of windows and Spark's dropped ones are counted; the watermark is the minimum."""
    observed = {
        "flowcore-keygroups-a": {
            "late_records": 10,
            "dropped_records": 4,
            "state_bytes": 70,
            "watermark_ms": 900,
        },
        "flowcore-keygroups-b": {"late_records": 20, "state_bytes": 7, "watermark_ms": 800},
        "flowcore-keygroups-c": {"late_records": 0, "state_bytes": 0, "watermark_ms": None},
        "flowcore-watermarks-bids": {"newest_0": 5},
        "nothing": None,
    }

    found = Batch.of({**REPORT, "observedMetrics": observed})

    assert (found.counts["late"], found.counts["dropped"], found.state_bytes, found.watermark_ms) == (
        30,
        7,
        77,
        800,
    )


def test_batch_counts_what_a_flush_buffer_holds_and_has_saved() -> None:
    """The tally sums saved results, and keeps the other values until a batch reports new ones."""
    full = {"saved_records": 6, "buffered_records": 2, "buffered_since_ms": 50, "watermark_ms": 0}
    observed = {"buffer": full}
    tally, found = QueryTally(START_MS), Batch.of({**REPORT, "observedMetrics": observed})
    empty = {"buffer": {**full, "saved_records": 1, "buffered_records": 0, "buffered_since_ms": None}}

    tally.take([found, batch(4, 1_000)])
    assert (tally.counts["saved"], tally.buffered, tally.buffered_since_ms) == (6, 2, 50)
    tally.take([replace(Batch.of({**REPORT, "observedMetrics": empty}), number=5)])
    assert (tally.counts["saved"], tally.buffered, tally.buffered_since_ms) == (7, 0, None)


def test_batch_counts_what_deduplication_dropped_and_could_not_check() -> None:
    """The tally sums both."""
    observed = {"once": {"repeated_records": 3, "unidentified_records": 2, "watermark_ms": 0}}
    found = Batch.of({**REPORT, "observedMetrics": observed})
    tally = QueryTally(START_MS)

    tally.take([found, replace(found, number=found.number + 1)])

    assert (tally.counts["repeated"], tally.counts["unidentified"]) == (6, 4)


def test_tally_keeps_figures_that_an_empty_batch_does_not_report() -> None:
    """Windows still have their state and their watermark."""
    tally = QueryTally(START_MS)

    tally.take([batch(4, 1_000, state_bytes=70, watermark_ms=800), batch(5, 2_000)])

    assert (tally.state_bytes, tally.watermark_ms) == (70, 800)


def test_batch_of_windows_that_have_no_time_yet_has_no_watermark() -> None:
    """Windows report the smallest number until they have a watermark."""
    observed = {"windows": {"late_records": 1, "watermark_ms": MIN_TIMESTAMP_MS}}
    found = Batch.of({**REPORT, "observedMetrics": observed})

    assert (found.counts["late"], found.watermark_ms) == (1, None)


def test_tally_keeps_the_batches_of_a_rate_only() -> None:
    """In real-time mode nobody asks for the rate of batches, and a run has no end."""
    tally = QueryTally(START_MS)

    for number in range(100):
        tally.take([batch(number, number * 1_000, records=10)])

    assert len(tally._recent) <= WINDOW_MS // 1_000 + 1
    assert tally.rows_per_second(START_MS + 99_000, busy=True) == 10


def test_tally_takes_each_batch_once() -> None:
    """Spark reports the last hundred batches repeatedly."""
    tally = QueryTally(START_MS)
    first, second = (
        batch(4, 1_000, records=10, counts={"late": 1}),
        batch(5, 2_000, records=20, counts={"late": 2}),
    )

    tally.take([first])
    tally.take([first, second])

    assert (tally.batches, tally.rows_in, tally.counts["late"], tally.last) == (2, 30, 3, second)


def test_backlog_status_is_not_counted_as_records() -> None:
    """It comes from files that flowcore writes, and not from a topic."""
    files = {"startOffset": None, "endOffset": {"logOffset": 3}, "numInputRows": 1}
    batch = Batch.of({**REPORT, "numInputRows": 3801, "sources": [*REPORT["sources"], files]})

    assert batch == Batch.of(REPORT)


def test_trigger_without_input_is_not_a_batch() -> None:
    """It has the number of the next batch, whose records must be counted."""
    nothing = {**REPORT, "durationMs": {"latestOffset": 2, "triggerExecution": 34}, "numInputRows": 0}
    tally = QueryTally(START_MS)

    tally.take(Batch.all_of([nothing]))
    assert tally.batches == 0

    tally.take(Batch.all_of([nothing, REPORT]))
    assert (tally.batches, tally.rows_in) == (1, 3_800)


def test_tally_continues_from_the_checkpoint() -> None:
    """A topic that a batch does not report keeps its offsets."""
    tally = QueryTally(START_MS, {"bids": {0: 5}, "asks": {0: 9}})

    tally.take([batch(1, 1_000, offsets={"bids": {0: 8}})])

    assert tally.offsets == {"bids": {0: 8}, "asks": {0: 9}}


@pytest.mark.parametrize(
    ("batches", "now_ms", "busy", "expected"),
    [
        pytest.param([], 60_000, True, None, id="none yet"),
        pytest.param([batch(0, 59_000, records=50)], 60_000, False, 5.0, id="one short batch in ten seconds"),
        pytest.param([batch(0, 2_000, records=50)], 2_500, True, 20.0, id="started just now"),
        pytest.param(
            [batch(n, 50_000 + n * 500, length_ms=500, records=100) for n in range(1, 21)],
            60_000, True, 200.0, id="many batches",
        ),
        pytest.param(
            [batch(0, 59_000, length_ms=50_000, records=5_000)], 60_000, True, 100.0, id="a long one"
        ),
        pytest.param(
            [batch(0, 30_000, length_ms=20_000, records=5_000)], 60_000, True, 250.0, id="and one more"
        ),
        pytest.param([batch(0, 30_000, records=5_000)], 60_000, False, 0.0, id="nothing came since"),
    ],
)  # fmt: skip
def test_rate_in_is_that_of_the_last_batches(
    batches: list[Batch], now_ms: int, busy: bool, expected: float | None
) -> None:
    """It covers ten seconds, or the last batch if that took longer."""
    tally = QueryTally(START_MS)
    tally.take(batches)

    assert tally.rows_per_second(START_MS + now_ms, busy=busy) == expected


@pytest.mark.parametrize("back_ms", [3_000, 3_600_000], ids=["seconds", "an-hour"])
def test_rate_in_is_that_of_the_time_after_the_clock_was_set_back(back_ms: int) -> None:
    """Batches of before would lie in the time to come, and their number would grow until it is reached."""
    tally = QueryTally(START_MS - 7_200_000)
    tally.take(batch(number, number * 1_000, records=1_000) for number in range(1, 6))
    tally.take([batch(6, 6_000 - back_ms, records=50)])

    assert tally.rows_per_second(START_MS + 6_000 - back_ms, busy=True) == 5
    assert len(tally._recent) == 1


def test_rate_out_is_over_the_window_however_often_it_is_asked() -> None:
    """Two readers of one run get the same rate."""
    often, rarely = Rate(), Rate()
    count = 0
    for now_ms in range(0, 3 * WINDOW_MS, 100):
        count += 7
        seen = often.take(now_ms, count)
        if now_ms % WINDOW_MS == 0:
            at = rarely.take(now_ms, count)

    assert seen == pytest.approx(70)
    assert at == pytest.approx(70)


def test_rate_out_forgets_what_was_before_the_window() -> None:
    """The rate of a stopped stream falls to zero."""
    rate = Rate()
    for now_ms in range(0, 2 * WINDOW_MS, 1_000):
        rate.take(now_ms, now_ms)
    for now_ms in range(2 * WINDOW_MS, 3 * WINDOW_MS + 1_000, 1_000):
        last = rate.take(now_ms, 2 * WINDOW_MS)

    assert last == 0


def test_rate_out_is_unknown_at_the_first_poll() -> None:
    """There is no earlier value to compare with."""
    rate = Rate()

    assert [rate.take(0, 5), rate.take(1_000, 25)] == [None, 20.0]


def test_rate_out_is_known_again_after_the_clock_was_set_back() -> None:
    """Soon, and not when the old time is reached."""
    rate = Rate()
    rates = [rate.take(now_ms, count) for now_ms, count in ((9_000, 5), (1_000, 25), (2_000, 45))]

    assert rates == [None, None, 20.0]


def test_lag_is_the_end_minus_what_is_committed() -> None:
    """Companion topics do not count; a partition that only one side knows has no lag."""
    found = partitions_of(
        ["bids"],
        {"bids": {0: 90, 1: 120}, "bids.events": {0: 1}},
        {"bids": {0: 100, 1: 119, 2: 7}, "out": {0: 1}},
        {"bids": {0: PartitionWatermark(5_000), 1: PartitionWatermark(idle=True)}},
    )

    assert found == (
        PartitionProgress(
            topic="bids", partition=0, offset=90, end=100, lag=10, watermark_ms=5_000, idle=False
        ),
        # The broker was asked before the batch was committed.
        PartitionProgress(topic="bids", partition=1, offset=120, end=119, lag=0, idle=True),
        PartitionProgress(topic="bids", partition=2, end=7),
    )


def test_query_that_need_not_read_its_records_counts_the_offsets_that_it_has_passed() -> None:
    """A new partition begins with offset 0."""
    tally = QueryTally(START_MS, {"bids": {0: 5}}, by_offsets=True)

    first = Batch(number=0, start_ms=START_MS, length_ms=100, offsets={"bids": {0: 9}})
    tally.take([first])
    second = replace(first, number=1, start_ms=START_MS + 100, records=3, offsets={"bids": {0: 9, 1: 3}})
    tally.take([first, second])

    assert tally.rows_in == 7
    assert tally.rows_per_second(START_MS + 200, busy=False) == 35


def _shares(reads: Iterable[tuple[float, int, float, bool]]) -> list[float | None]:
    """The share of an operator at reads: seconds, batches, seconds that it was busy, whether a batch runs."""
    operators, found = BusyOperators(["slow"]), []
    for now_s, batches, busy_s, running in reads:
        busy_ns = {"slow": int(busy_s * 1e9), "of another query": 10**9}
        (one,) = operators.take(START_MS + int(now_s * 1_000), batches, busy_ns, running=running)
        assert (one.name, one.busy_ms) == ("slow", busy_s * 1_000)
        found.append(one.busy_share)
    return found


@pytest.mark.parametrize("every_s", [0.5, 1, 2, 5, 10])
def test_share_of_an_operator_does_not_depend_on_how_often_it_is_read(every_s: float) -> None:
    """A batch every ten seconds that takes three, in which a worker is busy, is 0.3."""
    times = [every_s * number for number in range(int(60 / every_s))]

    shares = _shares((now, int(now // 10), 3.0 * (now // 10), now % 10 < 3) for now in times)

    assert shares[0] is None
    assert {round(share, 2) for share in shares if share is not None} == {0.3}


def test_share_of_an_operator_is_of_its_last_batches() -> None:
    """It stays while a long batch runs, and is 0 after a time without one as long as it was of."""
    assert _shares([(0, 1, 2, True), (5, 1, 2, True), (20, 2, 12, True), (100, 2, 12, True)]) == [
        None, None, 0.5, 0.5,
    ]  # fmt: skip
    assert _shares([(0, 1, 2, True), (20, 2, 12, False), (39, 2, 12, False), (41, 2, 12, False)]) == [
        None, 0.5, 0.5, 0,
    ]  # fmt: skip
    assert _shares([(10, 1, 0, True), (0, 2, 5, True), (1, 3, 5.5, True)]) == [None, None, 0.5]
