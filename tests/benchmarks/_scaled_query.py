"""A query of windows whose size can be chosen in every direction, and the cost of its batches."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flowcore import Flow, KafkaTopic, Tumbling, bounded_out_of_orderness
from flowcore.errors import RunError
from flowcore.kafka.topics import ensure_topics
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.run.flow import open_context
from flowcore.spark.run.live_stage import LiveRun
from flowcore.spark.topics.reports import batches_after
from pipelines.auctions.readers import read_rows
from pipelines.nexmark import feed
from tests.benchmarks._answers import count_differences
from tests.benchmarks._process_memory import ProcessMemory

__all__ = ["TOUCHED", "Cost", "Held", "Scale", "ScaledQueries", "held_text", "touch_keys"]

BEGIN_MS, BATCH_MS, WINDOW_MS, HELD_MS = 1_700_000_000_000, 10_000, 1_000, 100_000_000
SAMPLE = 100
TOUCHED = 1_000
"""Held keys that a batch touches, however many are held."""
LOADED, LOADED_BYTES = 500_000, 50_000_000
_FED = 100_000
_DIGEST = 128
SCHEMA = "auction_id BIGINT, at BIGINT"
RESULT = pa.schema([("auction_id", pa.int64()), ("n", pa.int64()), ("window_end", pa.timestamp("us"))])


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a query.

    Attributes:
        value_bytes: A text of this length is held for each key; none if it is 0.
        branches: Windows that read the same records.
        depth: Windows in a row, of each branch.
        holds: All keys are loaded first, and their windows stay open.
    """

    partitions: int = 2
    key_groups: int = 16
    keys: int = 10_000
    value_bytes: int = 0
    branches: int = 1
    depth: int = 1
    holds: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """What it costs to hold keys.

    Attributes:
        restart_s: From a start of the query with its keys in the checkpoint to the end of its first batch.
        commit_s: What a batch's tasks take to commit their state, together.
        state_mb: The files of its checkpoint.
    """

    restart_s: float
    commit_s: float
    workers_mb: float
    jvm_mb: float
    state_mb: float

    @property
    def members(self) -> dict[str, float]:
        """By name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Cost:
    """What the batches of a query cost; `held` if it holds keys."""

    batches_s: list[float]
    held: Held | None


@dataclass
class ScaledQueries:
    """Runs queries of any scale in one session; a context manager.

    Args:
        settings: With a broker and a folder.
        folder: For the state of each query.
        records: The records of a batch.
        batches: How many batches a query has.
    """

    settings: Settings
    folder: Path
    records: int
    batches: int
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __enter__(self) -> Self:
        plan = plan_flow(_flow(Scale(), "opened", "none"), "slice", self.settings)
        ensure_topics(self._servers, {"opened": 1})
        with ExitStack() as opening:
            self._spark = opening.enter_context(open_context(plan, self.settings)).spark
            self.run(Scale())  # warm up: what all queries share is loaded and compiled
            self._closing = opening.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()

    @property
    def _servers(self) -> str:
        return self.settings.bootstrap_servers or ""

    def run(self, scale: Scale) -> Cost:
        """Run a query, and verify its results.

        Raises:
            RunError: A result differs from DuckDB's.
        """
        number = next(self._numbers)
        source, out = f"in-{number}", f"out-{number}"
        ensure_topics(self._servers, {source: scale.partitions, out: 2})
        plan_of = _Plans(_flow(scale, source, out), self._state_settings(scale, out))
        sent = []
        if scale.holds:
            sent.append(self._send(source, _loaded(scale.keys)))
            largest = min(LOADED, LOADED_BYTES // max(scale.value_bytes, 1))
            self._slice(plan_of, largest)
        sent.append(self._send(source, self._batches_of(scale)))
        with ProcessMemory() as memory:
            began = time.time()
            reports = self._slice(plan_of, self.records)
        held_bytes = _size(plan_of.settings.state_dir)
        self._send(source, _last(scale))
        self._slice(plan_of, LOADED)
        _verify(scale, pa.concat_tables(sent), read_rows(self._servers, out, RESULT))
        shutil.rmtree(plan_of.settings.state_dir, ignore_errors=True)
        batches_s = [each["durationMs"]["triggerExecution"] / 1000 for each in reports]
        if not scale.holds:
            return Cost(batches_s, None)
        first = datetime.fromisoformat(reports[0]["timestamp"]).timestamp() + batches_s[0]
        commits_ms = [sum(state["commitTimeMs"] for state in each["stateOperators"]) for each in reports]
        return Cost(
            batches_s,
            Held(
                restart_s=first - began,
                commit_s=float(np.median(commits_ms)) / 1000,
                workers_mb=max(memory.workers_kib) / 1000,
                jvm_mb=max(memory.jvm_kib) / 1000,
                state_mb=held_bytes / 1e6,
            ),
        )

    def _state_settings(self, scale: Scale, out: str) -> Settings:
        return replace(self.settings, state_dir=self.folder / f"state-{out}", key_groups=scale.key_groups)

    def _send(self, topic: str, table: pa.Table) -> pa.Table:
        parts = (table.slice(start, _FED) for start in range(0, len(table), _FED))
        feed.feed(self._servers, topic, parts)
        return table

    def _batches_of(self, scale: Scale) -> pa.Table:
        count = self.batches * self.records
        if scale.holds:
            return _table(touch_keys(scale.keys, self.records, self.batches), np.full(count, BEGIN_MS))
        keys = np.random.default_rng(7).integers(0, scale.keys, count)
        return _table(keys, BEGIN_MS + np.arange(count) * BATCH_MS // self.records)

    def _slice(self, plans: _Plans, batch: int) -> list[dict[str, Any]]:
        """Run a slice; Spark's reports of its batches with records."""
        settings = replace(plans.settings, max_batch_records=batch)
        plan = plan_flow(plans.flow, "slice", settings)
        with LiveRun(plan, Context(self._spark, settings, plan.flow)) as live:
            live.wait()
            (running,) = live.running.values()
            return [each for each in batches_after(-1, running) if each["numInputRows"]]


@dataclass(frozen=True, slots=True)
class _Plans:
    flow: Flow
    settings: Settings


def _flow(scale: Scale, source: str, out: str) -> Flow:
    flow = Flow(f"scale-{out}")
    topic = KafkaTopic(
        source, schema=SCHEMA, event_time="at", watermark=bounded_out_of_orderness(timedelta(0))
    )
    size = timedelta(milliseconds=HELD_MS if scale.holds else WINDOW_MS)
    records = flow.read("records", topic)
    if scale.value_bytes:
        records = records.with_columns(text=held_text(scale.value_bytes))
    for branch in range(scale.branches):
        found = records.window(Tumbling(size), by="auction_id", name=f"window-{branch}")
        counted = (
            found.aggregate(n="count(*)", text="max(text)")
            if scale.value_bytes
            else found.aggregate(n="count(*)")
        )
        for level in range(1, scale.depth):
            window = counted.window(Tumbling(size), by="auction_id", name=f"window-{branch}-{level}")
            counted = window.aggregate(n="sum(n)")
        if scale.value_bytes:
            counted = counted.where(f"length(text) = {scale.value_bytes}")  # others are then missing
        sampled = counted.where(f"auction_id % {SAMPLE} = 0").select("auction_id", "n", "window_end")
        sampled.write(f"out-{branch}", KafkaTopic(out))
    return flow


def held_text(size: int) -> str:
    """SQL of a text of this many characters, which differs from key to key and does not repeat itself."""
    digests = -(-size // _DIGEST)
    text = f"concat_ws('', transform(sequence(1, {digests}), i -> sha2(concat(auction_id, '-', i), 512)))"
    return f"substring({text}, 1, {size})"


def touch_keys(keys: int, records: int, batches: int) -> npt.NDArray[np.int64]:
    """Keys of the records of batches, each of which touches `TOUCHED` of all keys, or as many as there are.

    The keys of a batch are in order: wherever Spark divides the records of a partition into batches, a batch
    touches about as many keys.
    """
    random = np.random.default_rng(7)
    touched = min(TOUCHED, keys, records)
    places = np.arange(records) * touched // records
    drawn = [np.sort(random.choice(keys, touched, replace=False)) for _ in range(batches)]
    return np.concatenate([each[places] for each in drawn])


def _table(keys: Any, at: Any) -> pa.Table:
    return pa.table({"auction_id": pa.array(keys), "at": pa.array(at)})


def _loaded(keys: int) -> pa.Table:
    # Shuffled, so that every batch has keys of all key groups.
    return _table(np.random.default_rng(7).permutation(keys), np.full(keys, BEGIN_MS))


def _last(scale: Scale) -> pa.Table:
    """Records in all partitions that end all windows."""
    count = 32 * scale.partitions
    return _table(np.arange(count), np.full(count, BEGIN_MS + 20 * HELD_MS))


def _verify(scale: Scale, sent: pa.Table, found: pa.Table) -> None:
    size = HELD_MS if scale.holds else WINDOW_MS
    expected = (
        f'SELECT auction_id, "at" // {size} * {size} + {size} AS end_ms, count(*) AS n FROM sent '  # noqa: S608 - our own SQL
        f"WHERE auction_id % {SAMPLE} = 0 GROUP BY ALL"
    )
    result = "SELECT auction_id, epoch_ms(window_end) AS end_ms, n FROM found"
    copies = f"SELECT expected.* FROM ({expected}) expected, range({scale.branches})"  # noqa: S608 - our own SQL
    with duckdb.connect() as database:
        database.register("sent", sent)
        database.register("found", found)
        wrong = count_differences(database, copies, result)
    if wrong or not len(found):
        msg = f"{scale}: {wrong:,} results of {len(found):,} differ from DuckDB's: its cost is meaningless"
        raise RunError(msg)


def _size(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
