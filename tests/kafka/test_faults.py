"""Windows whose driver or Python workers are killed come to the same results."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from flowcore import Flow, KafkaTopic, Session
from flowcore.errors import RunError
from flowcore.spark.live import LiveRun
from flowcore.watermarks import monotonous
from tests.kafka.conftest import Live

SCHEMA = "user STRING, price BIGINT, at BIGINT"
FLOW = """
import sys
from pathlib import Path
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.live import LiveRun, prepare_topics
from flowcore.spark.run import open_context
from tests.kafka.test_window_faults import sessions

servers, state, source, out = sys.argv[1:]
settings = Settings.of(
    {
        "kafka.bootstrap.servers": servers, "state.dir": state, "execution.short-lived": "true",
        "execution.max-records-per-batch": 40,
    },
    environment={},
)
plan = plan_flow(sessions(source, out), "slice", settings)
with open_context(plan, settings) as context, LiveRun(plan, context) as run:
    print("running", flush=True)
    assert run.wait(240)
"""


def sessions(source: str, out: str) -> Flow:
    flow = Flow("sessions")
    clicks = KafkaTopic(source, schema=SCHEMA, event_time="at", watermark=monotonous())
    found = flow.read("clicks", clicks).window(Session(5), by="user", name="visits")
    found.aggregate(total="sum(price)", n="count(*)").write("out", KafkaTopic(out))
    return flow


def fill(live: Live, source: KafkaTopic, records: int) -> dict[tuple[str, int, int], int]:
    """Records of visits with pauses; the sum of each visit that is complete."""
    random.seed(3)
    rows, visits = [], defaultdict(list)
    for number in range(records):
        user, at = f"u{number % 7}", number * 1000
        if number // 7 % 5 < 3 or number // 7 % 5 == 4:
            rows.append({"user": user, "price": number, "at": at})
    for row in rows:
        mine = visits[row["user"]]
        if mine and row["at"] <= mine[-1][1]:
            mine[-1] = (mine[-1][0], row["at"] + 5000, mine[-1][2] + row["price"])
        else:
            mine.append((row["at"], row["at"] + 5000, row["price"]))
    live.send(source, *rows, partitions=2)
    behind = min(rows[-1]["at"], rows[-2]["at"])
    return {
        (user, start, end): total
        for user, found in visits.items()
        for start, end, total in found
        if end <= behind
    }


def outputs(live: Live, topic: KafkaTopic) -> dict[bytes, bytes]:
    """Each output by its identity; repeats are the same."""
    found: dict[bytes, bytes] = {}
    for record in live.records(topic):
        identity, value = record.headers["flowcore-id"], record.value or b""
        assert found.setdefault(identity, value) == value
    return found


def check(live: Live, topic: KafkaTopic, expected: dict[tuple[str, int, int], int]) -> None:
    found = {}
    for identity in outputs(live, topic):
        _, _, *rest = identity.decode().rsplit(":", 3)
        found[identity.decode()] = rest
    totals = {(row["user"], row["n"] > 0, row["total"]) for row in live.values(topic)}
    assert totals == {(user, True, total) for (user, _, _), total in expected.items()}
    assert len(found) == len(expected)


def test_a_killed_driver_goes_on_to_the_same_results(live: Live, tmp_path: Path) -> None:
    """Killed at three points of its run, which a fourth one brings to its end."""
    source, out = live.topic("clicks"), live.topic("visits")
    expected = fill(live, source, 400)
    script = [sys.executable, "-c", FLOW, live.servers, str(tmp_path / "state"), source.name, out.name]
    for seconds in (1.0, 4.0, 7.0):
        with subprocess.Popen(script, stdout=subprocess.PIPE, start_new_session=True) as run:
            assert run.stdout is not None
            run.stdout.readline()
            time.sleep(seconds)
            os.killpg(run.pid, signal.SIGKILL)

    subprocess.run(script, check=True, timeout=280)

    check(live, out, expected)


def test_a_killed_worker_fails_the_query_and_the_next_run_goes_on(live: Live) -> None:
    """Its memory of the state is gone, and what it had half done too."""
    source, out = live.topic("clicks"), live.topic("visits")
    expected = fill(live, source, 200)
    flow = sessions(source.name, out.name)

    def kill(run: LiveRun) -> None:
        for _ in range(400):
            for pid in workers(live.settings.state_dir):
                os.kill(pid, signal.SIGKILL)
            if run.wait(0.05):
                return

    with pytest.raises(RunError):
        live.run(flow, until=kill)
    live.run(flow)

    check(live, out, expected)


def workers(state_dir: Path) -> list[int]:
    """The Python workers that key groups of a checkpoint run in."""
    mine = f"FLOWCORE_KEY_GROUPS={state_dir.absolute()}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environment = (folder / "environ").read_bytes()
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if mine in environment and b"pyspark.daemon" in command:
                found.append(int(folder.name))
    return found
