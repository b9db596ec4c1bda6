"""The rules of figures: rounds in turn, warm-ups that do not count, costs, slopes, delays."""

from __future__ import annotations

import os
import time
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from flowcore.latency import recent_since_us
from pipelines.benchmark import Figures, slope
from tests.benchmarks import _rounds
from tests.benchmarks._delays import select_sent, summarize_delays
from tests.benchmarks._minutes import Marked, minute_ends
from tests.benchmarks._process_cost import ProcessCost
from tests.benchmarks.nexmark import OURS, RIVAL, _report, _Run
from tests.benchmarks.scale import fit_exponent


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The runs of contenders, which are in this process."""
    monkeypatch.setattr(_rounds, "spark_pid", os.getpid)
    return []


def test_contenders_take_turns_after_a_warm_up(calls: list[tuple[str, int]]) -> None:
    """A machine that slows down slows all of them."""

    def run(name: str, number: int) -> float:
        calls.append((name, number))
        return float(len(calls))

    ours, theirs = _rounds.run_rounds(3, {name: partial(run, name) for name in ("ours", "theirs")}, "s")

    assert "".join(name[0] for name, _ in calls) == "ot" + "ot" + "to" + "ot"
    assert (ours.rounds, theirs.rounds) == ([3, 6, 7], [4, 5, 8])
    assert len(ours.cpu_s) == len(ours.peak_mb) == 3
    assert min(ours.peak_mb) > 1


def test_rate_is_measured_over_two_numbers_of_records(calls: list[tuple[str, int]]) -> None:
    """A run that starts for 3 s and then does 100,000 records a second."""

    def run(count: int) -> float:
        calls.append(("ours", count))
        return 3 + count / 100_000

    (figures,) = _rounds.run_rates(3, {"ours": run}, 400_000)

    assert [count for _, count in calls] == [400_000, *([100_000, 400_000] * 3)]
    assert figures.median == pytest.approx(400_000 / 7)
    assert figures.by_slope == pytest.approx(100_000)
    assert _rounds.ratio_by_slope("ratio", figures, Figures("theirs", "records/s", [1], by_slope=50_000)) == {
        "ratio_by_slope": pytest.approx(2)
    }


def test_few_records_have_no_slope(calls: list[tuple[str, int]]) -> None:
    """A run over them is little more than a start."""

    def run(count: int) -> float:
        calls.append(("ours", count))
        return 1.0

    (figures,) = _rounds.run_rates(3, {"ours": run}, 99_999)

    assert {count for _, count in calls} == {99_999}
    assert figures.by_slope is None


def test_no_slope_if_few_records_took_as_long_as_many() -> None:
    """A rate that is infinite or negative is not reported."""
    assert slope((100, [4.0]), (400, [4.0])) is None
    assert _rounds.ratio_by_slope("ratio", *(Figures(name, "records/s", [1]) for name in "ab")) == {}


def test_json_members_have_median_least_most_and_cost() -> None:
    """What was not measured is left out."""
    figures = Figures("ours", "s", [3, 1, 2], cpu_s=[5, 7, 6], peak_mb=[10, 30, 20])

    assert figures.members == {
        "unit": "s", "median": 2, "min": 1, "max": 3, "rounds": [3, 1, 2], "cpu_s": 6, "peak_mb": 20
    }  # fmt: skip
    assert Figures("ours", "s", [1]).members.keys() == {"unit", "median", "min", "max", "rounds"}


def test_cost_is_that_of_the_block() -> None:
    """Processor time that was spent before does not count."""
    began = time.process_time()
    while time.process_time() < began + 0.3:
        pass

    with ProcessCost(os.getpid()) as cost:
        began = time.process_time()
        while time.process_time() < began + 0.2:
            pass

    assert 0.15 < cost.cpu_s < 0.3
    assert cost.peak_mb > 1


def test_delays_have_slow_seconds_of_sending_and_the_longest_pause() -> None:
    """A result that was sent in second 1 and is received in second 2 makes second 1 slow."""
    received_us = np.array([1_000_000, 1_300_000, 2_050_000, 2_060_000])

    delays = summarize_delays(np.array([10.0, 20.0, 150.0, 30.0]), received_us)

    assert (delays.max_ms, delays.slow_seconds, delays.longest_pause_ms) == (150, 1, 750)
    assert delays.p50_ms == 25


def test_results_are_selected_by_the_time_of_sending() -> None:
    """What was sent in the period counts, also if it is received after it, and in whatever order."""
    now_us = 1_700_000_000_000_000
    times = [(5, 9), (-1, 10), (0, 11), (99, 250), (100, 101)]
    received = [(now_us + at, b'{"sent_us":%d}' % (now_us + sent)) for sent, at in times]

    delays_ms, received_us = select_sent(received, now_us, now_us + 100)

    assert (received_us - now_us).tolist() == [9, 11, 250]
    assert delays_ms.tolist() == pytest.approx([0.004, 0.011, 0.151])


@pytest.mark.parametrize("now_us", [1_700_000_000_000_000, 1_700_000_000_000_001, 1_700_000_009_999_999])
def test_minutes_of_latency_follow_one_another(now_us: int) -> None:
    """Each has the markers that are recent at its end, and each bid is in one of them."""
    ends_us = minute_ends(now_us, 3)

    assert 0 <= ends_us[0] - 60_000_000 - now_us < 10_000_000
    assert [recent_since_us(each) for each in ends_us] == [ends_us[0] - 60_000_000, *ends_us[:-1]]


def test_bid_that_is_received_after_its_minute_counts_in_it() -> None:
    """It was under way at the end: a minute of receipt would leave it out, or count it in the next one."""
    begin_us = 1_700_000_000_000_000
    times_ms = [(-1, 2), (0, 5), (59_999, 60_400), (60_000, 60_003)]
    received = [
        (begin_us + at * 1_000, b'{"sent_us":%d}' % (begin_us + sent * 1_000)) for sent, at in times_ms
    ]

    minute = Marked(begin_us, begin_us + 60_000_000, 7, 1.0, 2.0, 3).with_bids(received)

    assert (minute.bids, minute.delays.max_ms, minute.delays.slow_seconds) == (2, 401, 1)
    assert (minute.markers, minute.p50_ms, minute.p99_ms, minute.checkpoints) == (7, 1, 2, 3)


@pytest.mark.parametrize(
    ("costs", "exponent"),
    [([5.0, 5.0, 5.0], 0.0), ([2.0, 20.0, 200.0], 1.0), ([1.0, 100.0, 10_000.0], 2.0)],
)
def test_the_exponent_says_how_cost_grows_with_size(costs: list[float], exponent: float) -> None:
    """0 if it does not depend on it, 1 if it is proportional."""
    assert fit_exponent([10, 100, 1000], costs) == pytest.approx(exponent)


def test_nexmark_reports_the_ratio_of_each_query_with_a_rival() -> None:
    """Text and table show it too, and not only a member of the details."""
    slow, fast = ([_Run(100, seconds, peak_mb=1, cpu_s=1)] for seconds in (4, 2))
    events = {"bid": pa.table({"auction": [1]})}

    report = _report({}, {"q4": {OURS: slow, RIVAL: fast}, "q6": {OURS: slow}}, events, "pyflink", {})

    assert report.ratios == {"q4_ratio": 0.5}


@pytest.mark.parametrize("who", [OURS, RIVAL])
def test_a_query_of_nexmark_that_failed_has_no_figures_and_no_ratio(who: str) -> None:
    """Not those of the rounds before it either; the other contender keeps its own."""
    run = [_Run(100, 2, peak_mb=1, cpu_s=1)]
    events = {"bid": pa.table({"auction": [1]})}

    report = _report({}, {"q4": {OURS: run, RIVAL: run}}, events, "pyflink", {("q4", who): "it is wrong"})

    query = report.details["queries"]["q4"]
    assert report.ratios == {}
    assert [query["right"], query["pyflink"]["right"]] == [who != OURS, who != RIVAL]
    assert len(report.figures) == 1
    assert "it is wrong" in report.notes[0]
