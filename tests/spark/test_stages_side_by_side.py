"""Independent stages run concurrently, and end together if one of them fails."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowcore import Flow, Parquet, from_frame
from flowcore.errors import RunError
from flowcore.planner import plan_flow
from flowcore.spark.context import Context
from flowcore.spark.results.store import results_of
from flowcore.spark.run.bounded_stages import StageProgress, StageState, run_concurrently
from tests.sampling import sample
from tests.waiting import LONGEST_S

pytestmark = pytest.mark.spark

Rows = Callable[[str], list[tuple[Any, ...]]]
WAITING, RUNNING = StageState.WAITING, StageState.RUNNING
FINISHING, COMMITTED, FAILED = StageState.FINISHING, StageState.COMMITTED, StageState.FAILED


def _meeting(folder: Path, mine: str, other: str) -> Callable[[Any], Any]:
    """A source whose task ends only when another source's task is running too."""

    def wait(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        (folder / mine).touch()
        deadline = time.monotonic() + 300
        while not (folder / other).exists():
            if time.monotonic() > deadline:
                msg = f"{other} did not start"
                raise TimeoutError(msg)
            time.sleep(0.05)
        yield from frames

    return lambda spark: spark.range(0, 1, 1, 1).toDF("a").mapInPandas(wait, "a BIGINT")


def _two(folder: Path, first: Callable[[Any], Any], second: Callable[[Any], Any]) -> Flow:
    flow = Flow("f")
    flow.read("one", from_frame(first, "a BIGINT")).write("x", Parquet(str(folder / "x")))
    flow.read("two", from_frame(second, "a BIGINT")).write("y", Parquet(str(folder / "y")))
    return flow


def _changes(flow: Flow, context: Context) -> list[tuple[str, StageState]]:
    changes = run_concurrently(plan_flow(flow).bounded, context, refresh=False)
    return [(progress.stage.name, progress.state) for progress in changes]


def test_independent_stages_run_concurrently(tmp_path: Path, context: Context, rows: Rows) -> None:
    """Each stage ends only if the other runs at the same time."""
    flow = _two(tmp_path, _meeting(tmp_path, "1", "2"), _meeting(tmp_path, "2", "1"))

    changes = _changes(flow, context)

    assert changes[:2] == [("x", WAITING), ("y", WAITING)]
    for name in ("x", "y"):
        assert [state for stage, state in changes if stage == name] == [
            WAITING, RUNNING, FINISHING, COMMITTED,
        ]  # fmt: skip
        assert rows(f"from '{{dir}}/{name}/*.parquet'") == [(0,)]


def test_stages_run_in_sequence_with_stages_at_once_1(tmp_path: Path, context: Context) -> None:
    """A function may read files that another stage writes, which the plan cannot detect."""
    alone = replace(context, settings=replace(context.settings, stages_at_once=1))
    flow = _two(
        tmp_path,
        lambda spark: spark.range(0, 1, 1, 1).toDF("a"),
        lambda spark: spark.range(0, 1, 1, 1).toDF("a"),
    )

    assert _changes(flow, alone)[2:] == [
        (name, state) for name in ("x", "y") for state in (RUNNING, FINISHING, COMMITTED)
    ]


def test_stage_waits_for_the_stage_whose_output_it_reads(
    tmp_path: Path, context: Context, rows: Rows
) -> None:
    """Within one run, every stage of a chain through files reads the new files."""
    (tmp_path / "in").mkdir()
    for values in ([1, 2], [5, 6, 7]):
        pq.write_table(pa.table({"a": values}), tmp_path / "in" / "p.parquet")
        flow = Flow("f")
        flow.read("in", Parquet("in", schema="a BIGINT")).with_columns(b="a * 2").write("x", Parquet("x"))
        doubled = flow.read("again", Parquet("x", schema="b BIGINT"))
        doubled.aggregate(total="sum(b)").write("y", Parquet("y"))
        flow.read("last", Parquet("y", schema="total BIGINT")).write("z", Parquet("z"))

        _changes(flow, context)

        assert rows("from '{dir}/z/*.parquet'") == [(2 * sum(values),)]


def test_failing_stage_cancels_the_others(tmp_path: Path, context: Context) -> None:
    """The other stages are cancelled and their output is removed; the error is that of the failing stage."""

    def slow(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        (tmp_path / "begun").touch()
        time.sleep(60)
        yield from frames

    def failing(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        while not (tmp_path / "begun").exists():
            time.sleep(0.05)
        msg = "no such luck"
        yield from frames
        raise ValueError(msg)

    flow = _two(
        tmp_path,
        lambda spark: spark.range(0, 1, 1, 1).toDF("a").mapInPandas(slow, "a BIGINT"),
        lambda spark: spark.range(0, 1, 1, 1).toDF("a").mapInPandas(failing, "a BIGINT"),
    )
    events: list[StageProgress] = []

    with pytest.raises(RunError, match=r"stage 'y' failed: .*no such luck"):
        events.extend(_each(events, flow, context))

    last = {progress.stage.name: progress for progress in events}
    assert [progress.stage.name for progress in events if progress.state is FAILED] == ["y", "x"]
    assert "stage 'x' was cancelled" in str(last["x"].error)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun", "state"]
    assert results_of(context).folder("x").manifest() is None
    assert not context.spark.sparkContext.statusTracker().getActiveJobsIds()


def _each(events: list[StageProgress], flow: Flow, context: Context) -> Iterator[StageProgress]:
    for progress in run_concurrently(plan_flow(flow).bounded, context, refresh=False):
        events.append(progress)
        yield from ()


def test_stages_end_when_the_caller_closes_the_run(tmp_path: Path, context: Context) -> None:
    """As with Ctrl-C, no job is running and no output exists afterwards."""
    flow = _two(tmp_path, _meeting(tmp_path, "1", "never"), _meeting(tmp_path, "2", "never"))

    with closing(run_concurrently(plan_flow(flow).bounded, context, refresh=False)) as changes:
        for _ in changes:
            if (tmp_path / "1").exists() or all(next(changes).state in (WAITING, RUNNING) for _ in range(3)):
                break

    assert results_of(context).folder("x").manifest() is None
    assert not (tmp_path / "x").exists()
    assert not context.spark.sparkContext.statusTracker().getActiveJobsIds()


def test_finishing_stage_has_no_visible_output(tmp_path: Path, context: Context) -> None:
    """In the state finishing the output is complete but not visible; when committed, it is."""
    flow = _two(
        tmp_path,
        lambda spark: spark.range(0, 1, 1, 1).toDF("a"),
        lambda spark: spark.range(0, 1, 1, 1).toDF("a"),
    )
    alone = replace(context, settings=replace(context.settings, stages_at_once=1))
    states = []

    for progress in run_concurrently(plan_flow(flow).bounded[:1], alone, refresh=False):
        if progress.state is COMMITTED:
            states = [state for state, seconds in progress.seconds if seconds >= 0]
            assert progress.manifest == results_of(context).folder("x").manifest()

    assert states == [WAITING, RUNNING, FINISHING]


INTERRUPTED = """
import time
from pathlib import Path
from flowcore import Flow, Parquet, from_frame

def slow(name):
    def wait(frames):
        Path(name).touch()
        time.sleep(60)
        yield from frames
    return lambda spark: spark.range(0, 1, 1, 1).toDF("a").mapInPandas(wait, "a BIGINT")

flow = Flow("f")
flow.read("one", from_frame(slow("1"), "a BIGINT")).write("x", Parquet("x"))
flow.read("two", from_frame(slow("2"), "a BIGINT")).write("y", Parquet("y"))
"""


@pytest.mark.parametrize(
    "number", sample([signal.SIGINT, signal.SIGTERM], signal.SIGINT), ids=["ctrl-c", "terminate"]
)
def test_stages_are_stopped_by_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    """The command prints `stopped`, exits at once, and leaves no output and no process."""
    (tmp_path / "slow_flow.py").write_text(INTERRUPTED)
    command = [sys.executable, "-m", "flowcore.cli.main", "run", "slow_flow:flow"]
    command += ["--set", "execution.short-lived=true"]
    environment = {**os.environ, "PYTHONPATH": f"{Path.cwd()}:{tmp_path}"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            deadline = time.monotonic() + 300
            while not all((tmp_path / name).exists() for name in ("1", "2")):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.send_signal(number)
            _, errors = process.communicate(timeout=40)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    assert process.returncode == 130
    assert errors.splitlines()[-1] == "stopped"
    left = {path.name for path in tmp_path.iterdir()} - {"1", "2", "slow_flow.py", "__pycache__"}
    assert left == {".flowcore"}
    assert not list(tmp_path.rglob("*.parquet"))


def test_command_prints_each_stage_and_its_states(tmp_path: Path) -> None:
    """The terminal shows each stage when it is finishing and when it is committed."""
    text = INTERRUPTED.replace("time.sleep(60)", "pass")
    (tmp_path / "quick_flow.py").write_text(text)
    command = [sys.executable, "-m", "flowcore.cli.main", "run", "quick_flow:flow"]
    environment = {**os.environ, "PYTHONPATH": f"{Path.cwd()}:{tmp_path}"}

    done = subprocess.run(
        [*command, "--set", "execution.short-lived=true"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=LONGEST_S,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    for name in ("x", "y"):
        assert f"stage {name}: finishing, its output is committed" in done.stderr
        assert f"stage {name}: written (in " in done.stderr
