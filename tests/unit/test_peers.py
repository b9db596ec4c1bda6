"""What the comparison with other engines takes for a right answer, and what its report says."""

from __future__ import annotations

import importlib.util
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from flowcore.errors import InstallationError
from tests.benchmarks._peers.contenders import CONTENDERS, PROGRAMS, Job, Launch
from tests.benchmarks._peers.processes import Processes, require_ss
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


def _slow_and_fast(peers: Any) -> dict[str, Any]:
    """flowcore, and a rival that is twice as fast."""
    return {
        name: peers.Runs(many=[_throughput(peers, 100, seconds)], few=[_throughput(peers, 10, 3)])
        for name, seconds in (("flowcore", 12), ("quix", 7))
    }


def test_worst_ratio_is_to_the_best_peer(peers: Any) -> None:
    """A rival that takes no part is null, and does not count."""
    found = {"join": {**_slow_and_fast(peers), "pathway": peers.Runs(absence="there is no wheel")}}

    report = peers._report(found, 100, 1)

    assert report.ratios == {"join_worst_ratio": 0.5, "join_worst_ratio_by_slope": pytest.approx(4 / 9)}
    assert report.details["workloads"]["join"]["pathway"] is None
    assert report.notes == ["join pathway takes no part: there is no wheel"]
    assert "FAILED" not in report.verified
    assert peers._failures(found) == {}


@pytest.mark.parametrize("fails", ["flowcore", "quix", "bytewax"])
def test_failure_leaves_no_figures_and_no_ratio(peers: Any, fails: str) -> None:
    """A contender that fails later could have been the best: its rounds before that do not count either."""
    runs = {**_slow_and_fast(peers), "bytewax": peers.Runs()}
    runs["bytewax"] = peers.Runs(many=runs["quix"].many, few=runs["quix"].few)
    runs[fails].failure = "its results are wrong"
    found = {"join": runs}

    report = peers._report(found, 100, 1)
    of = report.details["workloads"]["join"]

    assert not any(figure.name.startswith(f"join {fails}") for figure in report.figures)
    assert len(report.figures) == 4
    assert report.ratios == {}
    assert (of["worst_ratio"], of["no_ratio_because"]) == (None, f"{fails} failed")
    assert (of[fails]["right"], of[fails]["failure"]) == (False, "its results are wrong")
    assert report.verified.endswith(f"FAILED: join {fails}")
    assert report.notes == [
        f"join {fails} FAILED, so it has no figures: its results are wrong",
        f"join has no worst ratio: {fails} failed",
    ]


def test_failures_are_shown(peers: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Text and JSON have the reason."""
    found = {"join": {**_slow_and_fast(peers), "bytewax": peers.Runs(failure="no result in 240 s")}}

    for as_json in (False, True):
        peers._report(found, 100, 1).show(as_json=as_json)

        assert "join bytewax FAILED, so it has no figures: no result in 240 s" in capsys.readouterr().out


class _Site:
    """Runs nothing; only flowcore's runs succeed."""

    def __init__(self, peers: Any) -> None:
        self.peers = peers

    def throughput(self, contender: Any, _workload: str, count: int) -> Any:
        contender.install()
        return _throughput(self.peers, count, 12)

    def forget_records(self) -> None:
        """There are none."""


def _not_installable() -> Path:
    msg = "there is no wheel"
    raise InstallationError(msg)


@pytest.mark.parametrize("asked", [False, True], ids=["by-default", "by-name"])
def test_missing_rival_fails_only_if_it_was_asked_for(
    peers: Any, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A platform that has no wheel of it does not fail the default comparison."""
    missing = replace(CONTENDERS["quix"], install=_not_installable)
    monkeypatch.setitem(CONTENDERS, "quix", missing)
    bench = peers._Bench(_Site(peers), 100, 1, 1, {"quix"} if asked else set())

    found = {"join": bench.measure("join", ("flowcore", "quix"), 1)}
    runs = found["join"]["quix"]

    assert (runs.absence, runs.failure) == (
        (None, "InstallationError: there is no wheel") if asked else ("there is no wheel", None)
    )
    assert [*peers._failures(found)] == (["join quix"] if asked else [])
    assert peers._report(found, 100, 1).ratios == {}


def test_worst_ratio_of_latency_is_the_worse_percentile(peers: Any) -> None:
    """It is below 1 where the best peer is faster."""
    of = {
        "flowcore": peers._summary(peers.Runs(live=[_latency(peers, 1, 8)])),
        "quix": peers._summary(peers.Runs(live=[_latency(peers, 2, 4)])),
    }

    assert peers._worst_ratio("latency", of) == (0.5, None)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job of a contender."""
    return Job("join", "127.0.0.1:1", "in", "out", tmp_path / "table", tmp_path, 10, 50)


def test_spark_has_the_same_batches_and_heap_with_flowcore_and_without(job: Job) -> None:
    """More records in a batch commit state less often, and a larger heap is collected less often."""
    ours, theirs = (CONTENDERS[name].prepare(Path("python"), job) for name in ("flowcore", "spark"))

    assert f"execution.max-records-per-batch={theirs.environment['BATCH_RECORDS']}" in ours.commands[0]
    assert f"spark.driver.memory={theirs.environment['HEAP']}" in ours.commands[0]
    program = (PROGRAMS / "spark_streaming.py").read_text()
    assert 'options["maxOffsetsPerTrigger"] = os.environ["BATCH_RECORDS"]' in program
    assert '.config("spark.driver.memory", os.environ["HEAP"])' in program


def test_processes_end_if_one_of_them_cannot_be_started(tmp_path: Path) -> None:
    """Nothing is left of a contender that has started in part."""
    sleeps = [sys.executable, "-c", "import time; time.sleep(300)"]
    launch = Launch([sleeps, [str(tmp_path / "missing")]], {}, tmp_path)
    processes = Processes(launch.start(), 1)

    with pytest.raises(FileNotFoundError), processes:
        pass

    assert len(processes.roots) == 1
    assert not psutil.pid_exists(processes.roots[0].pid)


def test_processes_are_started_and_stopped_by_the_block(tmp_path: Path) -> None:
    """Processor time is read after the watching has ended, too."""
    spins = [sys.executable, "-c", "while True: pass"]

    with Processes(Launch([spins], {}, tmp_path).start(), 1) as processes:
        processes.stop_watching()
        before_s = processes.sample(with_memory=False)
        time.sleep(1)
        spent_s = processes.sample(with_memory=False) - before_s
        processes.sample()

    assert 0 < spent_s < 1.5
    assert processes.peak_mb() > 1
    assert not psutil.pid_exists(processes.roots[0].pid)


def test_commands_need_ss_at_their_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when the first contender runs already."""
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(InstallationError, match="iproute2"):
        require_ss()
