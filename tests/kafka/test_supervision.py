"""A live query supervises itself: it catches up, goes live, and switches to newly committed results."""

import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.metrics.history import history_folder, last_progress, read_history
from flowcore.planner import plan_flow
from flowcore.spark.context import Context
from flowcore.spark.results.store import ResultStore, StageFolder
from flowcore.spark.run import running_query
from flowcore.spark.run.flow import run_plan
from flowcore.spark.run.wall_clock import WallClock
from tests.sampling import sample
from tests.waiting import run_until

pytestmark = pytest.mark.kafka

Live = Any
BID = "id BIGINT NOT NULL, price DOUBLE"
BAND = {"backlog_enter": 500, "backlog_leave": 100}
# Native, and slow enough that a burst takes longer than a real-time batch.
SLOW = "java_method('java.lang.Thread', 'sleep', cast(2 as bigint)) as slow"


def test_query_catches_up_goes_live_and_catches_up_again(live: Live) -> None:
    """Modes switch on one checkpoint; each bid is emitted once, and every switch has its reason."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, *map(_bid, range(2_000)), partitions=2)
    flow = Flow("itself")
    flow.read("bids", bids).select("id", SLOW).write("out", out)
    live.settings = _settings(live, **BAND)
    modes: list[str] = []

    def follow(run: Any) -> None:
        modes.append(run.progress()[0].mode)
        run_until(run, lambda: run.progress()[0].mode == "realtime")
        assert run.progress()[0].backlog is False
        live.send(bids, *map(_bid, range(2_000, 12_000)), partitions=2)
        run_until(run, lambda: run.progress()[0].mode == "micro-batch")
        run_until(run, lambda: run.progress()[0].mode == "realtime")
        live.send(bids, _bid(12_000), partitions=2)
        run_until(run, lambda: len(live.records(out)) >= 12_001)
        run_until(run, lambda: run.progress()[0].rows_in == 12_001)

    live.run(flow, None, follow)

    assert modes == ["micro-batch"]
    assert Counter(value["id"] for value in live.values(out)) == dict.fromkeys(range(12_001), 1)
    last = last_progress(history_folder(live.settings.state_dir, "itself"))
    assert last is not None
    assert [(one.before, one.after) for one in last.switches] == [
        ("micro-batch", "realtime"), ("realtime", "micro-batch"), ("micro-batch", "realtime"),
    ]  # fmt: skip
    assert "no partition has over 100 unread" in last.switches[0].reason
    assert "over 500 unread" in last.switches[1].reason
    assert all(one.pause_ms is not None for one in last.switches)
    statuses = [
        beat.queries[0].backlog for beat in read_history(history_folder(live.settings.state_dir, "itself"))
    ]
    assert {True, False} <= set(statuses)


DYING = """
import os, signal, sys
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.run import supervised
from flowcore.spark.run.live_stage import LiveRun
from flowcore.spark.run.flow import open_context
from tests.kafka.test_supervision import passing

servers, state, source, out, dies = sys.argv[1:]
starts = 0

class Dying(supervised.RunningQuery):
    def __init__(self, *given, **options):
        global starts
        starts += 1
        if (starts, dies) == (2, "before"):
            os.killpg(0, signal.SIGKILL)
        super().__init__(*given, **options)
        if (starts, dies) == (2, "after"):
            os.killpg(0, signal.SIGKILL)

supervised.RunningQuery = Dying
settings = Settings.of(
    {
        "kafka.bootstrap.servers": servers, "state.dir": state, "execution.short-lived": "true",
        "backlog.enter": 500, "backlog.leave": 100, "execution.max-records-per-batch": 500,
    },
    environment={},
)
plan = plan_flow(passing(source, out), None, settings)
with open_context(plan, settings) as context, LiveRun(plan, context) as run:
    while not run.wait(0.1):
        pass
"""


def passing(source: str, out: str) -> Flow:
    """A flow that supports real-time mode."""
    flow = Flow("passing")
    flow.read("bids", KafkaTopic(source, schema=BID)).write("out", KafkaTopic(out))
    return flow


@pytest.mark.parametrize(
    "moments", [["before"], pytest.param(["before", "after"], marks=pytest.mark.thorough)], ids=["", "twice"]
)
def test_kill_during_a_switch_loses_nothing(live: Live, moments: list[str]) -> None:
    """The run is killed between the end of one mode and the start of the next, and right after it."""
    bids, out = live.topic("bids"), live.topic("out")
    given = [live.servers, str(live.settings.state_dir), bids.name, out.name]
    codes = []
    for number, dies in enumerate(moments):
        live.send(bids, *map(_bid, range(number * 2_000, (number + 1) * 2_000)), partitions=2)
        command = [sys.executable, "-c", DYING, *given, dies]
        codes.append(subprocess.run(command, check=False, timeout=200, start_new_session=True).returncode)
    count = 2_000 * len(moments) + 10
    live.send(bids, *map(_bid, range(count - 10, count)), partitions=2)

    live.run(
        passing(bids.name, out.name),
        None,
        lambda run: run_until(run, lambda: run.progress()[0].rows_out >= 10),
    )

    assert codes == [-signal.SIGKILL] * len(moments)
    found = {record.headers["flowcore-id"]: record.json["id"] for record in live.records(out)}
    assert sorted(found.values()) == list(range(count))


WITHOUT_JVM = """
import sys, os, signal
from pathlib import Path
from flowcore.errors import RunError
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.run.live_stage import LiveRun
from flowcore.spark.run.flow import open_context
from tests.kafka.test_supervision import passing
from pyspark import SparkContext

servers, state, source, out = sys.argv[1:]
settings = Settings.of(
    {"kafka.bootstrap.servers": servers, "state.dir": state, "execution.short-lived": "true"}, environment={}
)
plan = plan_flow(passing(source, out), None, settings)
try:
    with open_context(plan, settings) as context, LiveRun(plan, context) as run:
        os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
        run.wait(60)
except RunError as error:
    print(error)
lease = max((Path(state) / "passing/checkpoints").glob(".*.lease.*"))
print("released" if '"released": true' in lease.read_text() else lease.read_text())
"""


def test_killed_jvm_is_reported_and_releases_the_lease(live: Live, tmp_path: Path) -> None:
    """One error names the lost JVM, also in the history, and the lease is released at once."""
    bids, out = live.topic("bids"), live.topic("out")
    given = [live.servers, str(tmp_path / "killed"), bids.name, out.name]
    live.send(bids, *map(_bid, range(10)), partitions=2)

    command = [sys.executable, "-c", WITHOUT_JVM, *given]
    done = subprocess.run(command, check=False, timeout=200, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    error, lease = done.stdout.splitlines()
    assert "Spark's JVM is gone" in error
    last = last_progress(history_folder(tmp_path / "killed", "passing"))
    assert last is not None
    assert (last.state, last.error) == ("failed", error)
    assert lease == "released"


@pytest.mark.parametrize("mode", sample([None, "micro-batch"], None))
def test_running_stream_switches_to_a_committed_result(mode: Any, live: Live, tmp_path: Path) -> None:
    """Over two switches each output has the values of its header's version; none is lost or repeated."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    flow = Flow("fresh")
    shops = flow.read("shops", Parquet("shops", schema="id BIGINT, city STRING")).select(
        "*", name="shops_all"
    )
    flow.read("bids", bids).join(shops, on="id", how="left").write("out", out)
    live.settings = _settings(live)
    live.send(bids, *map(_bid, range(10)), partitions=2)
    folder = ResultStore(live.settings.state_dir, "fresh").folder("shops_all")
    versions: dict[str, str] = {}
    sent = 10

    def follow(run: Any) -> None:
        nonlocal sent
        for city in ("Bern", "Biel", "Brig"):
            if versions:
                _commit(live, flow, tmp_path, city)
            version = committed(folder)
            versions[version] = city
            while run.progress()[0].bounded != {"shops_all": version}:
                live.send(bids, *map(_bid, range(sent, sent + 20)), partitions=2)
                sent += 20
                assert not run.wait(0.3), "the queries have ended"
            live.send(bids, *map(_bid, range(sent, sent + 20)), partitions=2)
            sent += 20
            run_until(run, lambda total=sent: run.progress()[0].rows_out == total)  # type: ignore[misc]
        assert [path.name for path in folder.root.iterdir() if path.name in versions] == [version]
        switches = run.health().switches
        assert [f"version {one} of stage 'shops_all'" in each.reason for one, each in
                zip(list(versions)[1:], switches, strict=True)] == [True, True]  # fmt: skip

    _write_shops(tmp_path, "Bern")
    live.run(flow, mode, follow)

    records = live.records(out)
    assert Counter(record.json["id"] for record in records) == dict.fromkeys(range(sent), 1)
    found = Counter(
        (record.headers["flowcore-bounded-version"].decode(), record.json["city"]) for record in records
    )
    assert set(found) == set(versions.items())
    assert all(count >= 20 for count in found.values())


@pytest.mark.parametrize("damage", sample(["file", "column", "type"], "type"))
def test_stream_keeps_its_result_if_a_new_one_cannot_be_joined(
    damage: str, live: Live, tmp_path: Path
) -> None:
    """A result with damaged files, a missing column or an unknown type is skipped, also in backlog."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    flow = Flow("damaged")
    shops = flow.read("shops", Parquet("shops", schema="id BIGINT, city STRING")).select(
        "*", name="shops_all"
    )
    flow.read("bids", bids).join(shops, on="id", how="left").select("id", "city", SLOW).write("out", out)
    live.settings = _settings(live, **BAND)
    live.send(bids, _bid(0))
    folder = ResultStore(live.settings.state_dir, "damaged").folder("shops_all")

    def follow(run: Any) -> None:
        run_until(run, lambda: len(live.records(out)) == 1)
        good = folder.manifest()
        _write_shops(tmp_path, "Biel")
        bad = replace(_other(good, damage), version="29990101T000000-bad")
        bad.write(folder.manifest_path)
        run_until(run, lambda: any("bad" in one.reason for one in run.health().switches))
        live.send(bids, *map(_bid, range(1, 4_000)))
        run_until(run, lambda: run.modes == {"bids": "micro-batch"})
        run_until(run, lambda: run.modes == {"bids": "realtime"})
        assert run.progress()[0].bounded == {"shops_all": good.version}
        assert "cannot be joined" in run.health().switches[0].reason
        assert {record.headers["flowcore-bounded-version"].decode() for record in live.records(out)} == {
            good.version
        }

    _write_shops(tmp_path, "Bern")
    live.run(flow, None, follow)

    assert Counter(record.json["id"] for record in live.records(out)) == dict.fromkeys(range(4_000), 1)


def _other(good: Any, damage: str) -> Any:
    table = good.tables["shops_all"]
    if damage == "file":
        files = tuple(replace(file, sha256="0" * 64) for file in table.files)
        return replace(good, tables={"shops_all": replace(table, files=files)})
    if damage == "type":
        schema = tuple((name, "GEOGRAPHIC" if name == "city" else kind) for name, kind in table.schema)
    else:
        schema = tuple((name.replace("city", "town"), kind) for name, kind in table.schema)
    return replace(good, tables={"shops_all": replace(table, schema=schema)})


def committed(folder: StageFolder) -> str:
    """The committed version."""
    manifest = folder.manifest()
    assert manifest is not None
    return manifest.version


def _commit(live: Live, flow: Flow, tmp_path: Path, city: str) -> None:
    _write_shops(tmp_path, city)
    context = Context(live.spark, live.settings, flow.name)
    run_plan(replace(plan_flow(flow, None, live.settings), live=None), context)


def _write_shops(tmp_path: Path, city: str) -> None:
    (tmp_path / "shops").mkdir(exist_ok=True)
    table = pa.table({"id": list(range(5_000)), "city": [city] * 5_000})
    pq.write_table(table, tmp_path / "shops" / "p.parquet")


def _bid(number: int) -> dict[str, Any]:
    return {"id": number, "price": float(number)}


def _settings(live: Live, **settings: Any) -> Any:
    quick = {"metrics_interval": timedelta(milliseconds=500), "realtime_batch": timedelta(seconds=5)}
    return replace(live.settings, **quick, **settings)


def test_clock_that_is_set_back_does_not_stop_a_stream(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would begin the next batch when the clock is there again: here in ten minutes."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, _bid(0))
    live.settings = _settings(live, trigger_interval=timedelta(minutes=10))
    flow = Flow("clock")
    flow.read("bids", bids).write("out", out)
    set_back_s = 0.0
    clock = partial(WallClock, lambda: time.time() - set_back_s)
    monkeypatch.setattr(running_query, "WallClock", clock)

    def follow(run: Any) -> None:
        nonlocal set_back_s
        run_until(run, lambda: len(live.records(out)) == 1)
        sent, began = 1, time.monotonic()
        while time.monotonic() < began + 5:  # until the query waits for its next batch
            if len(live.records(out)) == sent:
                live.send(bids, _bid(sent))
                sent, began = sent + 1, time.monotonic()
            assert not run.wait(0.1)
        set_back_s = 600.0
        run_until(run, lambda: len(live.records(out)) == sent)
        set_back_s = 0.0

    live.run(flow, "micro-batch", follow)

    last = last_progress(history_folder(live.settings.state_dir, "clock"))
    assert last is not None
    assert any("clock was set back" in each.reason for each in last.switches)
