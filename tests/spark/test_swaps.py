"""Sinks of one stage are replaced together: the next run finishes or rolls back what a kill interrupted."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowcore import Csv, Flow, Parquet
from flowcore.errors import ResultError, RunError
from flowcore.spark.context import Context
from flowcore.spark.results.manifest import Manifest
from flowcore.spark.results.store import StageFolder, results_of
from flowcore.spark.results.swaps import Swap, finish_swaps, roll_back_swaps
from tests.sampling import sample
from tests.waiting import LONGEST_S

pytestmark = pytest.mark.spark

Run = Callable[..., Any]
Rows = Callable[[str], list[tuple[Any, ...]]]

KILLED = """
import os, signal, sys
from pathlib import Path
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.results import swaps
from flowcore.spark.context import Context
from flowcore.spark.run.flow import run_plan
from flowcore.spark.run.session import session

sys.path.insert(0, sys.argv[1])
from three import flow

replace, moves = Path.replace, []

def replace_or_die(self, target):
    moves.append(self)
    if len(moves) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(self, target)

Path.replace = replace_or_die
folders = {"data.dir": sys.argv[1], "state.dir": sys.argv[1] + "/state"}
settings = Settings.of({**folders, "execution.short-lived": True})
with session(settings, "killed") as spark:
    run_plan(plan_flow(flow), Context(spark, settings, "f"))
"""
FLOW = """
from flowcore import Csv, Flow, Parquet

flow = Flow("f")
base = flow.read("in", Parquet("in", schema="a BIGINT")).aggregate(by="a", n="count(*)")
base.write("x", Parquet("x"))
base.write("y", Csv("y"))
base.write("z", Parquet("z"))
"""
# The moves: first the manifest; then for each sink the old folder away and the new one in its place.
BEFORE, IN_FIRST, BETWEEN, LAST = 1, 3, 4, 7


@pytest.mark.parametrize(
    "move",
    sample([BEFORE, IN_FIRST, BETWEEN, LAST], BETWEEN),
    ids=["before-commit", "in-first", "between", "in-last"],
)
def test_sinks_are_swapped_together_whenever_a_run_is_killed(
    move: int, tmp_path: Path, run: Run, rows: Rows
) -> None:
    """After kill -9 at this move, the next start has all of the old output or all of the new output."""
    _source(tmp_path, 1)
    run(_flow())
    _source(tmp_path, 1, 2)
    (tmp_path / "three.py").write_text(FLOW)
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(move)]
    killed = subprocess.run(command, check=False, timeout=LONGEST_S, start_new_session=True, env=os.environ)
    assert killed.returncode == -signal.SIGKILL
    hidden = {path.name for path in tmp_path.iterdir() if path.name.startswith(".")}
    assert hidden

    ((_, fresh),) = run(_flow())

    # Before the commit the stage has to run again; after it only folders have to be moved.
    assert fresh == (move == BEFORE)
    for files in ("x/*.parquet", "y/*.csv", "z/*.parquet"):
        assert rows(f"from '{{dir}}/{files}' select a") == [(1,), (2,)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "state", "three.py", "x", "y", "z"]


def _flow() -> Flow:
    flow = Flow("f")
    base = flow.read("in", Parquet("in", schema="a BIGINT")).aggregate(by="a", n="count(*)")
    base.write("x", Parquet("x"))
    base.write("y", Csv("y"))
    base.write("z", Parquet("z"))
    return flow


def _source(folder: Path, *values: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    pq.write_table(pa.table({"a": list(values)}), folder / "in" / "p.parquet")


def test_sinks_stay_as_they_were_when_one_of_them_fails(
    tmp_path: Path, run: Run, context: Context, rows: Rows
) -> None:
    """The third sink cannot be computed, so the first two are not replaced either."""
    _source(tmp_path, 1)
    run(_flow())
    _source(tmp_path, 1, 2)
    flow = Flow("f")
    base = flow.read("in", Parquet("in", schema="a BIGINT")).aggregate(by="a", n="count(*)")
    base.write("x", Parquet("x"))
    base.write("y", Csv("y"))
    base.with_columns(bad="1 / (a - 2)").write("z", Parquet("z"))

    with pytest.raises(RunError, match="DIVIDE_BY_ZERO"):
        run(flow)

    for files in ("x/*.parquet", "y/*.csv", "z/*.parquet"):
        assert rows(f"from '{{dir}}/{files}' select a") == [(1,)]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert results_of(context).folder("x+y+z").manifest() is not None


def test_sink_that_is_a_link_replaces_the_folder_behind_it(tmp_path: Path, run: Run, rows: Rows) -> None:
    """The link stays, also if nothing is behind it before the first run."""
    (tmp_path / "disk").mkdir()
    for name in ("x", "y"):
        (tmp_path / name).symlink_to(Path("disk") / name)

    for count in (1, 2):
        _source(tmp_path, *range(count))
        run(_flow())
        for files in ("x/*.parquet", "y/*.csv"):
            assert rows(f"from '{{dir}}/{files}' select a") == [(each,) for each in range(count)]

    assert [(tmp_path / name).is_symlink() for name in ("x", "y")] == [True, True]
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == ["x", "y"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_sink_that_is_a_mount_point_is_refused_before_it_is_computed(
    tmp_path: Path, run: Run, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not be renamed after the commit, and the next start would not come further."""
    _source(tmp_path, 1)
    monkeypatch.setattr(os.path, "ismount", lambda path: path == str(tmp_path / "y"))

    with pytest.raises(RunError, match=r"sink 'y' .*write to a folder in it, such as .*/y/y"):
        run(_flow())

    assert results_of(context).folder("x+y+z").manifest() is None
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("other", ["x/notes.txt", "x/in/part-0.parquet", "x/day=1/a.csv", "x"])
def test_sinks_replace_nothing_but_their_output(other: str, tmp_path: Path, run: Run, rows: Rows) -> None:
    """A folder or a file that no sink has written is kept, and the stage is refused before it runs."""
    _source(tmp_path, 1)
    kept = tmp_path / other
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("kept")

    with pytest.raises(ResultError, match=f"folder {tmp_path}/x cannot be replaced by a sink: .* was not"):
        run(_flow())
    assert kept.read_text() == "kept"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]

    kept.unlink()
    (tmp_path / "x" / "in").rmdir() if other.startswith("x/in") else None
    run(_flow())
    assert rows("from '{dir}/x/*.parquet' select a") == [(1,)]


def test_commit_of_a_running_stage_is_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process runs the stage, its folders are not moved."""
    monkeypatch.setattr("flowcore.spark.results.store._WAIT_S", 0.1)
    folder = StageFolder(tmp_path / "results", "x")
    with folder.fresh_version() as (version, _):
        swap = Swap.of(str(tmp_path / "x"), version)
        Path(swap.staged).mkdir()
        Manifest(
            flow="f", stage="x", version=version, created_ms=1, duration_ms=1, fingerprint="", sources={},
            tables={}, rejected={},
        ).write(folder.manifest_path)  # fmt: skip
        with pytest.raises(RunError, match="'x' is being run by another process"):
            folder.finish_commit([swap.target])
        assert swap.pending

    folder.finish_commit([swap.target])

    assert not swap.pending
    assert (tmp_path / "x").is_dir()


@pytest.mark.parametrize("version", ["20250101T000000-0123abcd", "x/../../y", "20250101T000000-0123abcd.old"])
def test_forged_manifest_moves_no_folder(version: str, tmp_path: Path) -> None:
    """The folders are those of the plan, whatever it names; a version that is none is refused."""
    (tmp_path / "results").mkdir()
    staged, other = tmp_path / ".x.20250101T000000-0123abcd", tmp_path / "other"
    staged.mkdir()
    other.mkdir()
    folder = StageFolder(tmp_path / "results", "x")
    forged = {
        "format": 2, "flow": "f", "stage": "x", "version": version, "created_ms": 1, "duration_ms": 1,
        "fingerprint": "", "sources": {}, "tables": {}, "rejected": {},
        "swaps": [{"staged": str(other), "target": str(tmp_path / "taken")}],
    }  # fmt: skip
    folder.manifest_path.write_text(json.dumps(forged))

    with suppress(ResultError):
        folder.finish_commit([str(tmp_path / "x")])

    assert other.is_dir()
    assert not (tmp_path / "taken").exists()
    assert (tmp_path / "x").exists() == staged.name.endswith(version)
    assert (tmp_path / "x").exists() != staged.exists()


def test_second_swap_changes_nothing(tmp_path: Path) -> None:
    """A repeated call has nothing to move."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "old").touch()
    swap = Swap.of(str(tmp_path / "x"), "20250101T000000-0123abcd")
    Path(swap.staged).mkdir()
    (Path(swap.staged) / "new").touch()

    finish_swaps([swap])
    finish_swaps([swap])

    assert [path.name for path in tmp_path.rglob("*")] == ["x", "new"]


def test_link_that_an_earlier_run_has_moved_away_is_removed(tmp_path: Path) -> None:
    """And nothing of what it leads to."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "kept").touch()
    (tmp_path / ".x.20250101T000000-0123abcd.old").symlink_to(tmp_path / "disk")

    roll_back_swaps([str(tmp_path / "x")])

    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["disk", "kept"]


def test_roll_back_removes_only_its_own_folders(tmp_path: Path) -> None:
    """Other hidden files, and folders of other targets, are kept."""
    for name in (".x.20250101T000000-0123abcd", ".x.20250101T000000-0123abcd.old"):
        (tmp_path / name).mkdir()
    others = {".x.backup", ".y.20250101T000000-0123abcd", "x.20250101T000000-0123abcd", "x"}
    for name in others:
        (tmp_path / name).mkdir()

    roll_back_swaps([str(tmp_path / "x"), str(tmp_path / "nowhere" / "z")])

    assert {path.name for path in tmp_path.iterdir()} == others
