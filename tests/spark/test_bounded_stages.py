"""A stage runs if its inputs have changed, and writes all of its output or nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowcore import Csv, Flow, Json, KafkaTopic, Parquet
from flowcore.errors import ResultError, RunError
from flowcore.spark.context import Context
from flowcore.spark.results.store import results_of
from tests.waiting import LONGEST_S

pytestmark = pytest.mark.spark

Run = Callable[..., Any]
Rows = Callable[[str], list[tuple[Any, ...]]]


def _source(folder: Path, *values: int, name: str = "p") -> None:
    (folder / "in").mkdir(exist_ok=True)
    pq.write_table(pa.table({"a": list(values)}), folder / "in" / f"{name}.parquet")


def _result_flow(condition: str = "a > 1", name: str = "f") -> Flow:
    """A flow with a bounded result ``kept``, as a live query would join it."""
    flow = Flow(name)
    kept = flow.read("in", Parquet("in", schema="a BIGINT")).where(condition, name="kept")
    flow.read("live", KafkaTopic("live", schema="a BIGINT")).join(kept, on="a").write(
        "out", KafkaTopic("out")
    )
    return flow


def _sink_flow(*conditions: str) -> Flow:
    flow = Flow("f")
    doubled = flow.read("in", Parquet("in", schema="a BIGINT")).aggregate(
        by="a", n="count(*)", name="doubled"
    )
    for number, condition in enumerate(conditions):
        doubled.where(condition).write(f"sink{number}", Parquet(f"out/{number}"))
    return flow


def test_stage_result_matches_its_manifest(tmp_path: Path, run: Run, context: Context, rows: Rows) -> None:
    """The manifest has the rows, the columns with Spark's types, and the files."""
    _source(tmp_path, 1, 2, 3)

    ((manifest, fresh),) = run(_result_flow())

    table = manifest.tables["kept"]
    assert fresh
    assert (table.rows, table.schema) == (2, (("a", "bigint"),))
    assert results_of(context).require("kept") == manifest
    root = results_of(context).folder("kept").root
    assert {str(Path(file.path).parent) for file in table.files} == {f"{manifest.version}/kept"}
    assert rows(f"from '{root / manifest.version}/kept/*.parquet'") == [(2,), (3,)]


def test_stage_without_rows_writes_an_empty_table(tmp_path: Path, run: Run, context: Context) -> None:
    """A stream can join an empty result."""
    _source(tmp_path, 1)

    ((manifest, _),) = run(_result_flow("a > 5"))

    assert manifest.tables["kept"].rows == 0
    assert manifest.tables["kept"].files
    root = results_of(context).folder("kept").root
    frame = context.spark.read.parquet(*(str(root / file.path) for file in manifest.tables["kept"].files))
    assert frame.columns == ["a"]


def test_stage_is_skipped_when_nothing_has_changed(tmp_path: Path, run: Run) -> None:
    """A flow declared again over the same files reuses the committed result."""
    _source(tmp_path, 1, 2, 3)
    ((first, _),) = run(_result_flow())

    assert run(_result_flow()) == [(first, False)]


@pytest.mark.parametrize("change", ["touched", "added", "removed", "expression", "refresh"])
def test_stage_runs_again_when_something_has_changed(change: str, tmp_path: Path, run: Run) -> None:
    """A changed file, a changed expression or a requested refresh runs the stage."""
    _source(tmp_path, 1, 2, 3)
    _source(tmp_path, 4, name="q")
    ((first, _),) = run(_result_flow())
    expected = {"touched": 3, "added": 4, "removed": 2, "expression": 2, "refresh": 3}
    match change:
        case "touched":
            os.utime(tmp_path / "in" / "p.parquet", ns=(1, 1))
        case "added":
            _source(tmp_path, 5, name="r")
        case "removed":
            (tmp_path / "in" / "q.parquet").unlink()
        case _:
            pass

    ((second, fresh),) = run(
        _result_flow("a > 2" if change == "expression" else "a > 1"), refresh=change == "refresh"
    )

    assert fresh
    assert second.version != first.version
    assert second.tables["kept"].rows == expected[change]


def test_stage_sees_changes_in_a_linked_folder(tmp_path: Path, run: Run) -> None:
    """Spark reads what a link leads to; a link to a folder that it is in does not lead round for ever."""
    (tmp_path / "in").mkdir()
    (tmp_path / "elsewhere" / "in").mkdir(parents=True)
    (tmp_path / "in" / "day=1").symlink_to(tmp_path / "elsewhere" / "in")
    (tmp_path / "elsewhere" / "in" / "_round").symlink_to(tmp_path / "in")
    _source(tmp_path / "elsewhere", 2)
    assert run(_result_flow())[0][1]
    assert not run(_result_flow())[0][1]

    _source(tmp_path / "elsewhere", 3, 4, name="q")

    ((manifest, fresh),) = run(_result_flow())
    assert fresh
    assert manifest.tables["kept"].rows == 3


def test_stage_run_again_in_one_session_sees_the_new_files(tmp_path: Path, run: Run, rows: Rows) -> None:
    """A frame shared by several sinks is cached for one run only."""
    flow = _sink_flow("a > 0", "a > 1")
    _source(tmp_path, 1, 2)
    run(flow)
    _source(tmp_path, 1, 2, 3)

    run(flow)

    assert rows("select a from '{dir}/out/0/*.parquet'") == [(1,), (2,), (3,)]
    assert rows("select a from '{dir}/out/1/*.parquet'") == [(2,), (3,)]


def test_stage_runs_again_when_its_output_is_deleted(tmp_path: Path, run: Run, rows: Rows) -> None:
    """A deleted output is written again."""
    _source(tmp_path, 1, 2)
    run(_sink_flow("a > 0"))
    for file in (tmp_path / "out" / "0").iterdir():
        file.unlink()
    (tmp_path / "out" / "0").rmdir()

    ((_, fresh),) = run(_sink_flow("a > 0"))

    assert fresh
    assert rows("select a from '{dir}/out/0/*.parquet'") == [(1,), (2,)]


@pytest.mark.parametrize(
    ("sink", "query"),
    [
        (Parquet("out"), "select a from '{dir}/out/*.parquet'"),
        (Csv("out", delimiter=";"), "select a from read_csv('{dir}/out/*.csv', delim=';', header=true)"),
        (Json("out"), "select a from '{dir}/out/*.json'"),
    ],
    ids=["parquet", "csv", "json"],
)
def test_file_sink_is_replaced_as_a_whole(
    sink: Parquet, query: str, tmp_path: Path, run: Run, rows: Rows
) -> None:
    """The new files replace the old ones, and no other files are left."""
    for number in (1, 2):
        _source(tmp_path, number, number + 1)
        flow = Flow("f")
        flow.read("in", Parquet("in", schema="a BIGINT")).write("out", sink)
        run(flow)

    assert rows(query) == [(2,), (3,)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out", "state"]


def test_failing_stage_keeps_the_old_output(tmp_path: Path, run: Run, context: Context, rows: Rows) -> None:
    """Result and sink are unchanged, and there is no partial file."""
    _source(tmp_path, 1, 2)
    run(_sink_flow("a > 0"))
    run(_result_flow())
    before = results_of(context).require("kept")
    _source(tmp_path, 1, 2, 3)

    with pytest.raises(RunError, match=r"stage 'sink0' failed: .*DIVIDE_BY_ZERO"):
        run(_sink_flow("1 / (a - 3) < 5"))
    with pytest.raises(RunError, match=r"stage 'kept' failed: .*DIVIDE_BY_ZERO"):
        run(_result_flow("1 / (a - 3) < 5"))

    assert rows("select a from '{dir}/out/0/*.parquet'") == [(1,), (2,)]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["0"]
    assert results_of(context).require("kept") == before
    versions = {path.name for path in results_of(context).folder("kept").root.iterdir() if path.is_dir()}
    assert versions == {before.version}


KILLED = """
import json, sys, time
from flowcore import Flow, Parquet, KafkaTopic, from_frame
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.run.flow import run_plan
from flowcore.spark.run.session import session

def slowly(frames):
    for frame in frames:
        if frame.a.iloc[0] > 0:
            time.sleep(600)
        yield frame

def source(spark):
    return spark.range(0, 2, 1, 2).toDF("a").mapInPandas(slowly, "a BIGINT")

flow = Flow("f")
kept = flow.read("in", from_frame(source, "a BIGINT")).where("a >= 0", name="kept")
kept.write("file", Parquet("out"))
flow.read("live", KafkaTopic("live", schema="a BIGINT")).join(kept, on="a").write("out", KafkaTopic("out"))
folders = {"data.dir": sys.argv[1], "state.dir": sys.argv[1] + "/state"}
settings = Settings.of({**folders, "execution.short-lived": True})
with session(settings, "killed") as spark:
    run_plan(plan_flow(flow), Context(spark, settings, "f"))
"""


def test_killed_stage_has_no_visible_output(tmp_path: Path, run: Run, context: Context) -> None:
    """A kill -9 between two files leaves no manifest and no output, and the next run succeeds."""
    folder = results_of(context).folder("kept+file")
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], start_new_session=True) as process:
        try:
            deadline = time.monotonic() + 300
            while not list(folder.root.glob("*/kept/**/part-*.parquet")):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            _source(tmp_path, 1)
            with pytest.raises(RunError, match=r"'kept\+file' is being run by another process"):
                run(_kept_and_file())
        finally:
            os.killpg(process.pid, signal.SIGKILL)

    with pytest.raises(ResultError, match="has no committed result"):
        results_of(context).require("kept+file")
    assert not (tmp_path / "out").exists()

    ((manifest, _),) = run(_kept_and_file())

    assert results_of(context).require("kept+file") == manifest
    assert sorted(path.name for path in folder.root.iterdir() if path.is_dir()) == [manifest.version]
    assert (tmp_path / "out").exists()


def _kept_and_file() -> Flow:
    flow = Flow("f")
    kept = flow.read("in", Parquet("in", schema="a BIGINT")).where("a >= 0", name="kept")
    kept.write("file", Parquet("out"))
    flow.read("live", KafkaTopic("live", schema="a BIGINT")).join(kept, on="a").write(
        "out", KafkaTopic("out")
    )
    return flow


ALIVE = """
import json, os
from flowcore.settings import Settings
from flowcore.spark.run.session import session, stop_session
from pyspark import SparkContext

def java(pid):
    try:
        return b"java" in open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0")[0]
    except OSError:
        return False

seen = []
for number in range(2):
    settings = Settings.of({"state.dir": os.environ["STATE"], "execution.short-lived": True})
    with session(settings, "s") as spark:
        pid = SparkContext._gateway.proc.pid
        children = [int(p) for p in os.listdir("/proc") if p.isdigit() and java(p)
                    and int(open(f"/proc/{p}/stat").read().split(")")[1].split()[1]) in (pid, os.getpid())]
        count = spark.range(3).count()
    stop_session(spark)  # what is gone is left alone
    seen.append({"count": count, "during": len(children), "after": sum(map(java, children))})
print(json.dumps(seen))
"""


@pytest.mark.thorough
def test_session_stops_its_jvm(tmp_path: Path) -> None:
    """At the session's end its Java process is gone; the next session starts a new one."""
    done = subprocess.run(
        [sys.executable, "-c", ALIVE], env={**os.environ, "STATE": str(tmp_path)},
        capture_output=True, text=True, check=True, timeout=LONGEST_S,
    )  # fmt: skip

    assert json.loads(done.stdout.splitlines()[-1]) == [{"count": 3, "during": 1, "after": 0}] * 2
