"""Three windows of one topic, live: the branches of one flow against a flow for each window.

Bids are sent at random moments (a Poisson process). The delay of a result is the time from the end of its
window to the moment at which the broker appends it to its topic, so it includes the wait for the watermark.
Each micro-batch is a checkpoint. Both contenders run the same windows in one session, in turn. The branches
read the topic once, the three flows read it three times. A first run of each contender, and the first third
of each run, are verified too, but not timed.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flowcore import Flow, KafkaTopic, Sliding, Tumbling
from flowcore.errors import RunError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import ensure_topics
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.run.flow import open_context
from flowcore.spark.run.live_stage import LiveRun
from flowcore.watermarks import monotonous
from pipelines.auctions.readers import read_messages, read_rows
from pipelines.auctions.verify import rows_from_json
from pipelines.benchmark import Figures, Report
from pipelines.nexmark import feed, generator
from tests.benchmarks._answers import count_differences
from tests.benchmarks._delays import Delays, figures_of_delays, summarize_delays
from tests.benchmarks._rounds import run_rounds

__all__ = ["measure_branches"]

PARTITIONS = 2
RESULT: Mapping[str, pa.DataType] = {
    "id": pa.int64(), "value": pa.float64(), "window_end": pa.timestamp("us")
}  # fmt: skip
BID = "auction_id BIGINT, bidder BIGINT, price DOUBLE, sent_us BIGINT"
SENT: list[tuple[str, pa.DataType]] = [
    ("auction_id", pa.int64()), ("bidder", pa.int64()), ("price", pa.float64()), ("sent_us", pa.int64())
]  # fmt: skip
WAIT_S = 600.0
FLUSH_MS = 5_000
"""Windows that end in the last seconds of the feed are verified, if they are there, but not awaited."""


@dataclass(frozen=True, slots=True)
class Window:
    """One of the three windows."""

    by: str
    size_s: int
    slide_s: int
    output: str
    sql: str

    @property
    def answer(self) -> str:
        """DuckDB's query for the same results."""
        size, slide = self.size_s * 1000, self.slide_s * 1000
        ends = f"sent_ms // {slide} * {slide} + unnest(range({slide}, {size + slide}, {slide}))"
        return (
            f"SELECT {self.by} AS id, end_ms, {self.sql} AS value FROM "  # noqa: S608 - our own SQL
            f"(SELECT *, {ends} AS end_ms FROM (SELECT *, sent_us // 1000 AS sent_ms FROM bids)) GROUP BY ALL"
        )


WINDOWS: Mapping[str, Window] = {
    "counts": Window("auction_id", 1, 1, "count(*)", "count(*)::DOUBLE"),
    "bidders": Window("bidder", 2, 2, "max(price)", "max(price)"),
    "prices": Window("auction_id", 4, 2, "max(price)", "max(price)"),
}


def measure_branches(rate: float, seconds: float, rounds: int) -> Report:
    """Measure the delay of results at ``rate`` bids a second; a third of each run is its warm-up."""
    with (
        tempfile.TemporaryDirectory(prefix="flowcore-bench-", ignore_cleanup_errors=True) as folder,
        EmbeddedBroker() as broker,
    ):
        settings = Settings.of(
            {
                "kafka.bootstrap.servers": broker.bootstrap_servers,
                "state.dir": Path(folder) / "state",
                "spark.sql.shuffle.partitions": "2",
            }
        )
        ensure_topics(broker.bootstrap_servers, {"warm": PARTITIONS})
        plan = plan_flow(_flow("warm", "warm", WINDOWS), "micro-batch", settings)
        with open_context(plan, settings) as context:
            bench = _Bench(context, broker.bootstrap_servers, Path(folder), rate, seconds)
            contenders = {name: partial(bench.run, name) for name in bench.runs}
            costs = run_rounds(rounds, contenders, "ms")
    figures = []
    for cost in costs:
        checkpoints = [run.checkpoints for run in bench.runs[cost.name][1:]]
        p50, *others = figures_of_delays(cost.name, [run.delays for run in bench.runs[cost.name][1:]])
        figures += [replace(p50, cpu_s=cost.cpu_s, peak_mb=cost.peak_mb), *others]
        figures.append(Figures(f"{cost.name}, checkpoints", "timed", checkpoints))
    by_name = {figure.name: figure.median for figure in figures}
    return Report(
        name="chain --case branches",
        workload=f"{rate:,.0f} bids a second at random moments for {seconds:.0f} s, three windows by two "
        "keys; the delay of results from the end of their window, after a third of the time",
        figures=figures,
        ratios={
            f"delay_p{percentile}_to_three_flows": by_name[f"one flow, p{percentile}"]
            / by_name[f"three flows, p{percentile}"]
            for percentile in (50, 99)
        },
        verified="every result of every round, warm-up included, against DuckDB over the same bids",
        details={
            "results": {name: [run.results for run in runs[1:]] for name, runs in bench.runs.items()},
        },
    )


def _flow(source: str, run: str, windows: Mapping[str, Window]) -> Flow:
    flow = Flow(f"bench-{run}")
    topic = KafkaTopic(source, schema=BID, event_time="sent_us DIV 1000", watermark=monotonous())
    bids = flow.read("bids", topic)
    for name, each in windows.items():
        assigner = (
            Tumbling(each.size_s) if each.size_s == each.slide_s else Sliding(each.size_s, slide=each.slide_s)
        )
        found = bids.window(assigner, by=each.by, name=name).aggregate(value=each.output)
        found.select(f"{each.by} AS id", "value", "window_end").write(
            f"to_{name}", KafkaTopic(f"{name}-{source}")
        )
    return flow


@dataclass(frozen=True, slots=True)
class _Run:
    """One run: the delays of its results, and how many results and checkpoints were timed."""

    delays: Delays
    results: int
    checkpoints: int


@dataclass
class _Bench:
    context: Context
    servers: str
    folder: Path
    rate: float
    seconds: float
    runs: dict[str, list[_Run]] = field(default_factory=lambda: {"one flow": [], "three flows": []})
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def run(self, contender: str, _round: int) -> float:
        """Run one contender while bids are sent; keep the delays of its results, and return the median."""
        source = f"bids-{next(self.numbers)}"
        servers = self.servers
        ensure_topics(servers, {source: PARTITIONS})
        results = [f"{name}-{source}" for name in WINDOWS]
        appended = {"message.timestamp.type": "LogAppendTime"}
        ensure_topics(servers, dict.fromkeys(results, PARTITIONS), appended)
        parts = [WINDOWS] if contender == "one flow" else [{name: each} for name, each in WINDOWS.items()]
        running: list[LiveRun] = []
        with ExitStack() as closing:
            for number, windows in enumerate(parts):
                settings = replace(self.context.settings, state_dir=self.folder / f"state-{source}-{number}")
                plan = plan_flow(_flow(source, f"{source}-{number}", windows), "micro-batch", settings)
                own = Context(self.context.spark, settings, plan.flow)
                running.append(closing.enter_context(LiveRun(plan, own)))
            timed_ms = (time.time() + self.seconds / 3) * 1000
            self._feed(source)
            sent = read_rows(servers, source, pa.schema(SENT))
            complete_ms = int(sent["sent_us"].to_numpy().max()) // 1000 - FLUSH_MS
            _await(servers, source, sent, complete_ms)
            checkpoints = min(_batches(run, timed_ms) for run in running)
        ends_ms, delays_ms = self._verified(source, sent, complete_ms)
        timed = ends_ms > timed_ms
        delays = summarize_delays(delays_ms[timed], ((ends_ms + delays_ms)[timed] * 1_000).astype(np.int64))
        self.runs[contender].append(_Run(delays, int(timed.sum()), checkpoints))
        return delays.p50_ms

    def _feed(self, source: str) -> None:
        count = int(self.rate * self.seconds)
        bids = generator.live_batches(generator.NexmarkConfig(), 100_000, count)
        chosen = (table.select(["auction_id", "bidder", "price"]) for table in bids)
        feed.feed(self.servers, source, chosen, rate=self.rate, at_random=True)

    def _verified(
        self, source: str, sent: pa.Table, complete_ms: int
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The end of the window of each result, and its delay."""
        ends_ms, delays_ms = [], []
        for name, window in WINDOWS.items():
            found, appended_ms = _results(self.servers, f"{name}-{source}")
            with duckdb.connect() as database:
                database.register("bids", sent)
                database.register("found", found)
                limit = f"WHERE end_ms <= {complete_ms}"
                theirs = f"SELECT * FROM ({window.answer}) {limit}"  # noqa: S608 - our own SQL
                ours = f"SELECT id, end_ms, value FROM found {limit}"  # noqa: S608 - our own SQL
                wrong = count_differences(database, theirs, ours)
            if wrong or not len(found):
                msg = f"window {name!r}: {wrong:,} results differ from DuckDB's: their delay is meaningless"
                raise RunError(msg)
            ends_ms.append(found["end_ms"].to_numpy())
            delays_ms.append(appended_ms - ends_ms[-1])
        return np.concatenate(ends_ms).astype(np.float64), np.concatenate(delays_ms).astype(np.float64)


def _batches(run: LiveRun, since_ms: float) -> int:
    """Batches that have ended since then, of the query that has had the fewest."""
    ended_ms = (
        [
            datetime.fromisoformat(each.timestamp).timestamp() * 1000 + each.durationMs["triggerExecution"]
            for each in query.recentProgress
        ]
        for query in run.running.values()
    )
    return min(sum(each > since_ms for each in ended) for ended in ended_ms)


def _results(servers: str, topic: str) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    messages = [each for some in read_messages(servers, topic) for each in some]
    rows = rows_from_json([each.value() or b"" for each in messages], pa.schema(RESULT))
    ends = pa.array(rows["window_end"].cast(pa.int64()).to_numpy() // 1000)
    return rows.append_column("end_ms", ends), np.array([each.timestamp()[1] for each in messages], np.int64)


def _await(servers: str, source: str, sent: pa.Table, complete_ms: int) -> None:
    """Wait until each topic has as many results of windows that end by this time as there are."""
    deadline = time.monotonic() + WAIT_S
    for name, window in WINDOWS.items():
        with duckdb.connect() as database:
            database.register("bids", sent)
            counted = f"SELECT count(*) FROM ({window.answer}) WHERE end_ms <= {complete_ms}"  # noqa: S608 - our own SQL
            wanted = database.execute(counted).fetchall()[0][0]
        topic = f"{name}-{source}"
        while (
            found := int((_results(servers, topic)[0]["end_ms"].to_numpy() <= complete_ms).sum())
        ) < wanted:
            if time.monotonic() > deadline:
                msg = (
                    f"{topic!r} has {found:,} of {wanted:,} results after {WAIT_S:.0f} s: too slow, or wrong"
                )
                raise RunError(msg)
            time.sleep(1)
