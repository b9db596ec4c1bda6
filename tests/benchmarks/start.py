"""Where the seconds of a start go: a slice of three records, each run in a new process.

A flow without state, and one with a window, whose difference is what one exchange costs. The result's seconds
are those until the broker has appended it. In a live run the result comes as soon.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from confluent_kafka import Producer

from flowcore.errors import RunError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import end_offsets, ensure_topics
from pipelines.auctions.readers import read_messages
from pipelines.benchmark import Figures, Report, in_turn
from tests.benchmarks._start_phases import INPUT, KINDS, OUTPUT

_RECORDS = (("a", 0), ("a", 999), ("b", 5_000))
_RESULTS = {KINDS[0]: 3, KINDS[1]: 1}
"""How many there are: of two windows one is complete."""


@click.command()
@click.option("--rounds", default=3, show_default=True, help="Counted runs of each flow.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(rounds: int, *, as_json: bool) -> None:
    """Where the seconds of a start go, without state and with a window."""
    with (
        tempfile.TemporaryDirectory(prefix="flowcore-bench-", ignore_cleanup_errors=True) as folder,
        EmbeddedBroker() as broker,
    ):
        servers = broker.bootstrap_servers
        ensure_topics(servers, {INPUT: 1})
        ensure_topics(servers, {OUTPUT: 1}, {"message.timestamp.type": "LogAppendTime"})
        producer = Producer({"bootstrap.servers": servers})
        for key, at_ms in _RECORDS:
            value = {"key": key, "at": f"2026-01-01T00:00:{at_ms / 1_000:06.3f}Z"}
            producer.produce(INPUT, json.dumps(value))
        producer.flush()
        starts = [partial(_start, kind, servers, Path(folder)) for kind in KINDS]
        in_turn(1, *starts)  # warm up: caches of files
        found = dict(zip(KINDS, in_turn(rounds, *starts), strict=True))
    _report(found).show(as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Start:
    """Seconds since the process began: at the end of each phase, and at the first result."""

    ends: Mapping[str, float]
    batch_ms: Mapping[str, float]
    result_s: float

    @property
    def phases(self) -> dict[str, float]:
        """The seconds of each phase; the slice is divided by what Spark says of its batch."""
        ends = {"": 0.0, **self.ends}
        found = {phase: ends[phase] - ends[before] for before, phase in pairwise(ends)}
        planning, work = (self.batch_ms[name] / 1_000 for name in ("queryPlanning", "addBatch"))
        rest = found.pop("slice") - planning - work
        stop = found.pop("stop")
        return {
            **found, "planning of the batch": planning, "the batch": work, "rest of the slice": rest,
            "stop": stop,
        }  # fmt: skip


def _start(kind: str, servers: str, folder: Path, _round: int) -> _Start:
    """Run the slice.

    Raises:
        RunError: It failed, or another number of results is there.
    """
    since = end_offsets(servers, OUTPUT)
    state = tempfile.mkdtemp(dir=folder)
    began_s = time.time()
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks._start_phases", kind, servers, state, str(began_s)],
        capture_output=True, text=True, check=False,
        # Installed packages are compiled.
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
    )  # fmt: skip
    if done.returncode:
        msg = f"the slice {kind!r} failed: {done.stderr}"
        raise RunError(msg)
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    appended_ms = [each.timestamp()[1] for part in read_messages(servers, OUTPUT, since) for each in part]
    if len(appended_ms) != _RESULTS[kind]:
        msg = (
            f"the slice {kind!r} has {len(appended_ms)} results, not {_RESULTS[kind]}: its time means nothing"
        )
        raise RunError(msg)
    return _Start(said["ends"], said["batch_ms"], min(appended_ms) / 1_000 - began_s)


def _report(found: Mapping[str, list[_Start]]) -> Report:
    figures = [
        Figures(f"{kind}: {phase}", "s", [start.phases[phase] for start in starts])
        for kind, starts in found.items()
        for phase in starts[0].phases
    ]
    results = [
        Figures(f"{kind}: first result", "s", [start.result_s for start in starts])
        for kind, starts in found.items()
    ]
    return Report(
        name="start",
        workload="a slice of three records of one partition, from a new state folder, in a new process",
        figures=[*figures, *results],
        ratios={},
        verified="the number of results of each run",
    )
