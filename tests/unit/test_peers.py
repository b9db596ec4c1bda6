"""What the comparison with other engines takes for a right answer, and what its report says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.benchmarks._peers.workloads import (
    BEGIN_MS,
    DAY_MS,
    WINDOW_MS,
    WORKLOADS,
    Answer,
    write_auctions,
)

RECORDS = {
    "join": {"bid": [0, 1], "key": [7, 9_999]},  # the second is not in the bounded table
    "sum": {"number": [0, 1, 2], "key": [1, 1, 2], "value": [5, 6, 7]},
    "windows": {"key": [1, 1, 1], "at": [BEGIN_MS, BEGIN_MS + 1, BEGIN_MS + DAY_MS]},
}
WINDOW = BEGIN_MS // WINDOW_MS * WINDOW_MS
RIGHT = {
    "join": [{"bid": 0, "key": 7, "category": 7}],
    "sum": [{"key": 1, "total": 5}, {"key": 1, "total": 11}, {"key": 2, "total": 7}],
    "windows": [{"key": 1, "window_start": WINDOW, "n": 2}],
}


def check(workload: str, outputs: list[dict[str, int]], folder: Path) -> Answer:
    """The answer of an engine that has written these outputs, one each millisecond."""
    write_auctions(folder / "auctions.csv")
    placed = [{**each, "appended_ms": number, "place": number} for number, each in enumerate(outputs)]
    records = pa.table(RECORDS[workload])
    return WORKLOADS[workload].check(records, folder / "auctions.csv", pa.Table.from_pylist(placed))


@pytest.mark.parametrize("workload", sorted(RIGHT))
def test_answer_is_right_when_all_results_are_there(workload: str, tmp_path: Path) -> None:
    """The last result completes the answer."""
    answer = check(workload, RIGHT[workload], tmp_path)

    assert answer == Answer(
        len(RIGHT[workload]), missing=0, wrong=0, first_ms=0, last_ms=len(RIGHT[workload]) - 1
    )
    assert answer.right


@pytest.mark.parametrize("workload", sorted(RIGHT))
def test_repeated_result_is_wrong(workload: str, tmp_path: Path) -> None:
    """Without a failure nothing is written twice."""
    answer = check(workload, [*RIGHT[workload], RIGHT[workload][-1]], tmp_path)

    assert (answer.missing, answer.wrong) == (0, 1)


@pytest.mark.parametrize("workload", sorted(RIGHT))
def test_other_value_is_wrong_and_the_right_one_missing(workload: str, tmp_path: Path) -> None:
    """A result counts only as a whole."""
    *others, last = RIGHT[workload]
    name = list(last)[-1]

    answer = check(workload, [*others, {**last, name: last[name] + 1}], tmp_path)

    assert (answer.missing, answer.wrong) == (1, 1)


def test_sums_between_may_be_left_out(tmp_path: Path) -> None:
    """An engine with mini-batches writes fewer sums."""
    assert check("sum", RIGHT["sum"][1:], tmp_path).right


def test_older_sum_after_a_newer_one_is_wrong(tmp_path: Path) -> None:
    """Readers keep the last sum of a key."""
    older, newer, other = RIGHT["sum"]

    assert check("sum", [newer, older, other], tmp_path).wrong == 1


def test_windows_of_closing_records_are_no_part_of_the_answer() -> None:
    """The last records only close windows: one for each key, after all others."""
    records = WORKLOADS["windows"].records(100)

    assert records["at"].to_pylist()[-5:] == [BEGIN_MS + DAY_MS] * 5
    assert max(records["at"].to_pylist()[:-5]) < BEGIN_MS + DAY_MS // 2


@pytest.fixture(scope="module")
def peers() -> Any:
    """The benchmark's module, as `flowcore bench` loads it."""
    path = Path(__file__).parents[1] / "benchmarks" / "peers.py"
    spec = importlib.util.spec_from_file_location("benchmark_peers", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _throughput(peers: Any, records: int, seconds: float) -> Any:
    return peers.Throughput(
        records, records, first_result_s=1, seconds=seconds - 2, whole_s=seconds, peak_mb=3, cpu_s=4
    )


def _latency(peers: Any, p50: float, p99: float) -> Any:
    return peers.Latency(10, 1, p50, p99, max_ms=100, slow_seconds=1, peak_mb=3, cpu_s=4)


def test_slope_leaves_the_start_out(peers: Any) -> None:
    """900 more records in 9 more seconds are 100 a second, whatever the start takes."""
    runs = peers.Runs(many=[_throughput(peers, 1_000, 29)], few=[_throughput(peers, 100, 20)])

    summary = peers._summary(runs)

    assert summary["records_per_second_by_slope"] == 100
    assert summary["records_per_second"] == pytest.approx(1_000 / 27)
    assert (summary["right"], summary["p50_ms"]) == (True, None)


def test_worst_ratio_is_to_the_best_peer_that_is_right(peers: Any) -> None:
    """A rival that failed has no figures, and says why."""
    of = {
        "flowcore": peers._summary(
            peers.Runs(many=[_throughput(peers, 100, 12)], few=[_throughput(peers, 10, 3)])
        ),
        "quix": peers._summary(
            peers.Runs(many=[_throughput(peers, 100, 7)], few=[_throughput(peers, 10, 3)])
        ),
        "bytewax": peers._summary(peers.Runs(failure="it is not installed")),
    }

    assert peers._worst_ratio("join", of) == 0.5
    assert (of["bytewax"]["right"], of["bytewax"]["failure"]) == (False, "it is not installed")


def test_worst_ratio_of_latency_is_the_worse_percentile(peers: Any) -> None:
    """It is below 1 where the best peer is faster."""
    of = {
        "flowcore": peers._summary(peers.Runs(live=[_latency(peers, 1, 8)])),
        "quix": peers._summary(peers.Runs(live=[_latency(peers, 2, 4)])),
    }

    assert peers._worst_ratio("latency", of) == 0.5
