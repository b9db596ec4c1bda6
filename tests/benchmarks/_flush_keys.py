"""Memory of a small driver that buffers the latest record of many keys in one flush interval.

A Python function emits ten million records with as many keys, and then newer ones for a fifth of the keys.
Key groups buffer them for an interval that never ends, so all keys are buffered at once unless a buffer in
memory is full. `_process_memory` samples memory. Each run is a session of its own. Sessions share the JVM,
whose memory does not shrink, so the memory of the JVM is that of all runs so far.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flowcore import Flow, KafkaTopic, RichFunction
from flowcore.errors import RunError
from flowcore.kafka.topics import end_offsets, ensure_topics
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.run.flow import open_context
from flowcore.spark.run.live_stage import LiveRun
from pipelines.auctions.readers import read_rows
from pipelines.benchmark import Figures, Report, in_turn
from pipelines.nexmark import feed
from tests.benchmarks._process_memory import ProcessMemory

__all__ = ["measure"]

PARTITIONS = 2
HEAP = "3g"
SCHEMA = "auction_id BIGINT, price BIGINT"
COLUMNS = pa.schema({"auction_id": pa.int64(), "price": pa.int64()})
NEWER = 5
"""One in this many keys gets a second record."""
CONTENDERS = {"state store": False, "memory only": True}
_ROWS, _WARM_UP_KEYS = 100_000, 50_000
Prices = npt.NDArray[np.int64]


def measure(folder: Path, servers: str, keys: int, rounds: int) -> Report:
    """Run the same flow with both values of ``execution.flush.memory-buffer-only``, after a warm-up."""
    sources = {"warm": min(keys, _WARM_UP_KEYS), "in": keys}
    ensure_topics(servers, dict.fromkeys(sources, PARTITIONS))
    for source, count in sources.items():
        feed.feed(servers, source, _records(count))
    numbers = itertools.count()

    def run(source: str, memory_only: bool, _round: int) -> _Run:
        name = f"{source}-{next(numbers)}"
        settings = Settings.of(
            {
                "kafka.bootstrap.servers": servers,
                "state.dir": folder / name,
                "execution.flush.memory-buffer-only": memory_only,
                "execution.max-records-per-batch": 2_000_000,
                "spark.driver.memory": HEAP,
            }
        )
        done = _run(settings, source, f"out-{name}", sources[source])
        shutil.rmtree(settings.state_dir, ignore_errors=True)
        return done

    in_turn(1, *(partial(run, "warm", each) for each in CONTENDERS.values()))
    found = in_turn(rounds, *(partial(run, "in", each) for each in CONTENDERS.values()))
    figures: list[Figures] = []
    for name, runs in zip(CONTENDERS, found, strict=True):
        figures += [
            Figures(name, "records/s", [each.records / each.seconds for each in runs]),
            Figures(f"{name} output", "records", [each.outputs for each in runs]),
            Figures(f"{name} JVM", "MiB at most", [max(each.memory.jvm_kib) / 1024 for each in runs]),
            Figures(f"{name} workers", "MiB at most", [max(each.memory.workers_kib) / 1024 for each in runs]),
        ]
    return Report(
        name="flush",
        workload=f"{keys:,} keys, of which every {NEWER}th has a second record, buffered for one interval; "
        f"driver with a heap of {HEAP}, a Python function upstream of the buffer, in a slice",
        figures=figures,
        ratios={},
        verified="the last value of every key in the output topic; one output for each key where the buffer "
        "may outgrow memory",
    )


@dataclass(frozen=True)
class _Run:
    seconds: float
    records: int
    outputs: int
    memory: ProcessMemory


def _run(settings: Settings, source: str, out: str, keys: int) -> _Run:
    flow = Flow("bench-keys")
    bids = flow.read("bids", KafkaTopic(source, schema=SCHEMA))
    latest = bids.map(_latest(), schema=SCHEMA, key="auction_id", flush=timedelta(days=1), name="latest")
    latest.write("tops", KafkaTopic(out, partitions=PARTITIONS))
    plan = plan_flow(flow, "slice", settings)
    with open_context(plan, settings) as context, ProcessMemory() as memory:
        began = time.monotonic()
        with LiveRun(plan, context) as run:
            run.wait()
        seconds = time.monotonic() - began
    servers = settings.bootstrap_servers or ""
    outputs = sum(end_offsets(servers, out).values())
    wrong = np.flatnonzero(_read(servers, out, keys) != _expected(keys))
    if len(wrong):
        msg = f"{len(wrong):,} of {keys:,} keys have a wrong last value, for example {wrong[:3]}"
        raise RunError(msg)
    if not settings.flush_memory_only and outputs != keys:
        msg = f"{outputs:,} outputs of {keys:,} keys in one interval: some were emitted more than once"
        raise RunError(msg)
    return _Run(seconds, keys + len(_second(keys)), outputs, memory)


def _latest() -> RichFunction:
    class Latest(RichFunction):  # local, so that workers do not import this module
        """Emits each record unchanged; the last one of a key counts."""

        def is_output_idempotent(self) -> bool:
            return True

        def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
            return record

    return Latest()


def _second(keys: int) -> Prices:
    return np.arange(0, keys, NEWER)


def _expected(keys: int) -> Prices:
    prices = np.ones(keys, np.int64)
    prices[_second(keys)] = 2
    return prices


def _records(keys: int) -> Iterator[pa.Table]:
    # Shuffled, so that every batch has keys of all key groups.
    all_keys = np.random.default_rng(7).permutation(keys)
    for price, chosen in ((1, all_keys), (2, _second(keys))):
        for start in range(0, len(chosen), _ROWS):
            part = chosen[start : start + _ROWS]
            yield pa.table({"auction_id": pa.array(part), "price": pa.array(np.full(len(part), price))})


def _read(servers: str, topic: str, keys: int) -> Prices:
    """The last value of each key, 0 if there is none."""
    found = np.zeros(keys, np.int64)
    rows = read_rows(servers, topic, COLUMNS)
    found[rows["auction_id"].to_numpy()] = rows["price"].to_numpy()
    return found
