"""Windows from Kafka to Kafka, against Spark's native window aggregate and its per-key state in Python.

Every case runs in slice mode in one session: flowcore, the native aggregate where there is one, and the same
logic in `transformWithState`, a key at a time, over fewer records since it is slow. Records come two seconds
out of order; where a case has late ones, they come up to twenty seconds late.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from flowcore import Flow, KafkaTopic, Session, Sliding, Tumbling
from flowcore.errors import RunError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import end_offsets, ensure_topics
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.live import LiveRun
from flowcore.spark.run import open_context
from flowcore.spark.session import live_session
from flowcore.testing.benchmark import Figures, Report, in_turn
from flowcore.watermarks import bounded_out_of_orderness
from pipelines.auctions import feed

PARTITIONS = 2
BATCH = 500_000
BEGIN_MS = 1_700_000_000_000
DELAY_MS, SPAN_MS = 2000, 100_000
SCHEMA = "auction_id BIGINT, price BIGINT, at BIGINT"
TUNED_READ = {"kafka.max.poll.records": "5000", "kafka.max.partition.fetch.bytes": str(8 << 20)}
TUNED_WRITE = {
    "kafka.linger.ms": "50",
    "kafka.batch.size": str(512 << 10),
    "kafka.buffer.memory": str(128 << 20),
}
HELD, TOUCHED, TOUCHING_BATCHES = (10_000, 1_000_000), 10_000, 12


@dataclass(frozen=True)
class Case:
    """One workload: windows over records of so many keys."""

    windows: str
    keys: int
    late: bool = False

    @property
    def name(self) -> str:
        """As it is asked for and shown."""
        return f"{self.windows}-{self.keys}{'-late' if self.late else ''}"

    @property
    def declared(self) -> Tumbling | Sliding | Session:
        """In flowcore's words."""
        return {"tumbling": Tumbling(10), "sliding": Sliding(10, slide=1), "session": Session(5)}[
            self.windows
        ]

    @property
    def native(self) -> Any:
        """In Spark's words."""
        time_of = F.timestamp_millis("at")
        return {
            "tumbling": F.window(time_of, "10 seconds"),
            "sliding": F.window(time_of, "10 seconds", "1 second"),
            "session": F.session_window(time_of, "5 seconds"),
        }[self.windows]


CASES = [
    Case(windows, keys, late)
    for late in (False, True)
    for windows in ("tumbling", "sliding", "session")
    for keys in (10_000, 1_000_000)
]


@click.command()
@click.option("--records", default=2_000_000, show_default=True, help="Records in the topic.")
@click.option("--per-key-records", default=100_000, show_default=True, help="Records of the per-key rival.")
@click.option("--case", "names", multiple=True, help="Only these, for instance tumbling-10000, or held.")
@click.option("--rounds", default=1, show_default=True, help="Counted runs of each contender.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    records: int, per_key_records: int, names: tuple[str, ...], rounds: int, *, as_json: bool
) -> None:
    """Throughput of windows over records already in Kafka, against Spark's own."""
    cases = [case for case in CASES if not names or case.name in names]
    folder = Path(tempfile.mkdtemp(prefix="flowcore-bench-"))
    try:
        with EmbeddedBroker() as broker:
            held = not names or "held" in names
            report = _measure(
                folder, broker.bootstrap_servers, cases, records, per_key_records, rounds, held=held
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report.show(as_json=as_json)


def _measure(  # noqa: PLR0917 - what was asked for
    folder: Path,
    servers: str,
    cases: list[Case],
    records: int,
    per_key_records: int,
    rounds: int,
    *,
    held: bool,
) -> Report:
    settings = Settings.of(
        {
            "kafka.bootstrap.servers": servers,
            "state.dir": folder / "state",
            "execution.max-records-per-batch": BATCH,
        }
    )
    figures: list[Figures] = []
    to_native: dict[str, float] = {}
    to_per_key: dict[str, float] = {}
    ensure_topics(servers, {"first": PARTITIONS})
    ratios: dict[str, float] = {}
    plan = plan_flow(_flow(CASES[0], "first", "out"), "slice", settings)
    with open_context(plan, settings) as context:
        bench = _Bench(servers, context, folder)
        if held:
            few_s, many_s = (bench.held(keys) for keys in HELD)
            ratios["ratio_of_keys_held"] = sorted(many_s)[len(many_s) // 2] / sorted(few_s)[len(few_s) // 2]
            figures += [
                Figures(f"{keys:,} keys held, {TOUCHED:,} touched", "s a batch", seconds)
                for keys, seconds in zip(HELD, (few_s, many_s), strict=True)
            ]
        if cases:
            bench.warm_up()
        for case in cases:
            sent = bench.fill(case, records)
            few = bench.fill(case, per_key_records)
            contenders: list[Callable[[int], float]] = [partial(bench.ours, case, sent)]
            labels = ["flowcore"]
            if not case.late:
                contenders.append(partial(bench.native, case, sent))
                labels.append("native")
            found = dict(zip(labels, in_turn(rounds, *contenders), strict=True))
            found["per key"] = [bench.per_key(case, few, 0)]
            figures += [Figures(f"{case.name} {label}", "records/s", rates) for label, rates in found.items()]
            median = {label: sorted(rates)[len(rates) // 2] for label, rates in found.items()}
            to_per_key[case.name] = median["flowcore"] / median["per key"]
            if "native" in median:
                to_native[case.name] = median["flowcore"] / median["native"]
    ratios |= {"ratio_to_per_key_state": min(to_per_key.values())} if to_per_key else {}
    ratios |= {"ratio_to_native": min(to_native.values())} if to_native else {}
    ratios |= {f"{name} to native": ratio for name, ratio in to_native.items()}
    ratios |= {f"{name} to per key": ratio for name, ratio in to_per_key.items()}
    return Report(
        name="windows",
        workload=f"{records:,} records of {PARTITIONS} partitions ({per_key_records:,} per key), "
        f"sum and count per window, batches of {BATCH:,}",
        figures=figures,
        ratios=ratios,
        verified="every result of flowcore and of the native aggregate, against pandas over the same records",
    )


@dataclass(frozen=True)
class Sent:
    """A topic that has been filled, and what is in it."""

    topic: str
    columns: pa.Table


class _Bench:
    def __init__(self, servers: str, context: Any, folder: Path) -> None:
        self.servers, self.context, self.folder = servers, context, folder
        self.spark: SparkSession = live_session(context.spark, context.settings)
        self.spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")
        self.numbers = itertools.count()

    def warm_up(self) -> None:
        """Code generation and class loading are not what is measured."""
        case = Case("tumbling", 1000)
        sent = self.fill(case, 100_000)
        for work in (self.ours, self.native):
            work(case, sent, 0)
        self.per_key(case, self.fill(case, 5_000), 0)

    def fill(self, case: Case, records: int) -> Sent:
        """A topic with records of a case."""
        random = np.random.default_rng(7)
        late_ms = np.where(random.random(records) < 0.05, random.integers(0, 20_000, records), 0)
        at = BEGIN_MS + np.arange(records) * SPAN_MS // records - random.integers(0, DELAY_MS, records)
        table = pa.table(
            {
                "auction_id": random.integers(0, case.keys, records),
                "price": random.integers(1, 1000, records),
                "at": at - late_ms if case.late else at,
            }
        )
        topic = f"in-{case.name}-{next(self.numbers)}"
        ensure_topics(self.servers, {topic: PARTITIONS})
        feed.feed(self.servers, topic, (table.slice(start, 100_000) for start in range(0, records, 100_000)))
        return Sent(topic, table)

    def ours(self, case: Case, sent: Sent, _round: int) -> float:
        """Records a second of flowcore."""
        out = f"out-{next(self.numbers)}"
        ensure_topics(self.servers, {out: PARTITIONS})
        settings = replace(self.context.settings, state_dir=self.folder / f"state-{out}")
        plan = plan_flow(_flow(case, sent.topic, out), "slice", settings)
        context = Context(self.context.spark, settings, plan.flow)
        began = time.monotonic()
        with LiveRun(plan, context) as run:
            run.wait()
        seconds = time.monotonic() - began
        rows = pd.DataFrame(_read(self.servers, out))
        _check(case, sent, rows, "flowcore")
        return len(sent.columns) / seconds

    def held(self, keys: int) -> list[float]:
        """Seconds of each batch that touches some keys of those that are held; no window ends."""
        number = next(self.numbers)
        topic, out = f"in-held-{number}", f"out-held-{number}"
        ensure_topics(self.servers, {topic: PARTITIONS, out: PARTITIONS})
        random = np.random.default_rng(7)
        flow = Flow(f"bench-{topic}")
        source = KafkaTopic(
            topic, schema=SCHEMA, event_time="at", watermark=bounded_out_of_orderness(timedelta(seconds=2))
        )
        windows = flow.read("records", source).window(Tumbling(100_000), by="auction_id")
        windows.aggregate(total="sum(price)", n="count(*)").write("out", KafkaTopic(out))

        def run(touched: np.ndarray[Any, Any], batch: int) -> list[float]:
            table = pa.table(
                {
                    "auction_id": touched,
                    "price": np.ones(len(touched), np.int64),
                    "at": np.full(len(touched), BEGIN_MS),
                }
            )
            parts = (table.slice(start, 100_000) for start in range(0, len(touched), 100_000))
            feed.feed(self.servers, topic, parts)
            settings = replace(
                self.context.settings, state_dir=self.folder / f"state-{out}", max_records_per_batch=batch
            )
            plan = plan_flow(flow, "slice", settings)
            with LiveRun(plan, Context(self.context.spark, settings, plan.flow)) as live:
                (query,) = self.context.spark.streams.active
                live.wait()
                return [
                    each["durationMs"]["triggerExecution"] / 1000
                    for each in query.recentProgress
                    if each["numInputRows"]
                ]

        run(np.arange(keys), BATCH)
        touching = [random.choice(keys, TOUCHED, replace=False) for _ in range(TOUCHING_BATCHES)]
        return run(np.concatenate(touching), TOUCHED)[2:]

    def native(self, case: Case, sent: Sent, _round: int) -> float:
        """Records a second of Spark's own aggregate."""
        columns = [F.col(f"w.{name}").alias(f"window_{name}") for name in ("start", "end")]
        frame = self._records(sent).withWatermark("time", f"{DELAY_MS} milliseconds")
        frame = frame.groupBy(_over(case, "time").alias("w"), "auction_id").agg(
            F.sum("price").alias("total"), F.count("*").alias("n")
        )
        return self._run(case, sent, frame.select("auction_id", "total", "n", *columns), "append", "native")

    def per_key(self, case: Case, sent: Sent, _round: int) -> float:
        """Records a second of the same logic, a key at a time."""
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a benchmark
        frame = self._records(sent).withWatermark("time", f"{DELAY_MS} milliseconds")
        found = frame.groupBy("auction_id").transformWithState(
            PerKey(case.windows, 30_000 if case.late else 0),
            outputStructType="auction_id BIGINT, total BIGINT, n BIGINT, "
            "window_start TIMESTAMP, window_end TIMESTAMP",
            outputMode="Update",
            timeMode="EventTime",
        )
        return self._run(case, sent, found, "update", None)

    def _records(self, sent: Sent) -> DataFrame:
        source = {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": sent.topic,
            "startingOffsets": "earliest",
        }
        return (
            self.spark.readStream.format("kafka")
            .options(**source, **TUNED_READ, maxOffsetsPerTrigger=str(BATCH))
            .load()
            .select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("r"))
            .select("r.*", F.timestamp_millis("r.at").alias("time"))
        )

    def _run(self, case: Case, sent: Sent, frame: DataFrame, mode: str, checked: str | None) -> float:
        out = f"out-{next(self.numbers)}"
        ensure_topics(self.servers, {out: PARTITIONS})
        value = F.to_json(F.struct(*frame.columns)).alias("value")
        began = time.monotonic()
        query = (
            frame.select(F.col("auction_id").cast("string").alias("key"), value)
            .writeStream.format("kafka")
            .options(**{"kafka.bootstrap.servers": self.servers, "topic": out, **TUNED_WRITE})
            .option("checkpointLocation", str(self.folder / out))
            .outputMode(mode)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = time.monotonic() - began
        if checked:
            _check(case, sent, pd.DataFrame(_read(self.servers, out)), checked)
        return len(sent.columns) / seconds


class PerKey(StatefulProcessor):
    """What windows do, with Spark's state of one key at a time."""

    def __init__(self, windows: str, lateness_ms: int) -> None:
        self.windows, self.lateness_ms = windows, lateness_ms

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.open = handle.getMapState("windows", "start BIGINT, end BIGINT", "total BIGINT, n BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        kept = {tuple(window): list(value) for window, value in self.open.iterator()}
        touched, out = set(), []
        for row in rows:
            for window in self._windows_of(row.at, kept):
                total = kept.setdefault(window, [0, 0])
                total[0] += row.price
                total[1] += 1
                touched.add(window)
                if window[1] - 1 <= watermark_ms:
                    out.append(self._row(key, window, total))
        for window in touched & kept.keys():
            self.open.updateValue(window, tuple(kept[window]))
            self.handle.registerTimer(window[1] - 1)
        yield from out

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        due_ms = expiredTimerInfo.getExpiryTimeInMs()
        for window, total in [(tuple(window), value) for window, value in self.open.iterator()]:
            if window[1] - 1 == due_ms:
                yield self._row(key, window, total)
                if self.lateness_ms:
                    self.handle.registerTimer(due_ms + self.lateness_ms)
            if window[1] - 1 + self.lateness_ms <= timerValues.getCurrentWatermarkInMs():
                self.open.removeKey(window)

    def _windows_of(self, at: int, kept: dict[Any, Any]) -> list[tuple[int, int]]:
        if self.windows == "tumbling":
            return [(at - at % 10_000, at - at % 10_000 + 10_000)]
        if self.windows == "sliding":
            last = at - at % 1000
            return [(start, start + 10_000) for start in range(last - 9000, last + 1, 1000)]
        merged, total = (at, at + 5000), [0, 0]
        for window in [each for each in kept if each[0] <= merged[1] and merged[0] <= each[1]]:
            value = kept.pop(window)
            self.open.removeKey(window)
            total = [total[0] + value[0], total[1] + value[1]]
            merged = (min(merged[0], window[0]), max(merged[1], window[1]))
        kept[merged] = total
        return [merged]

    def _row(self, key: Any, window: tuple[int, int], total: Any) -> Row:
        return Row(
            auction_id=key[0], total=total[0], n=total[1],
            window_start=pd.Timestamp(window[0], unit="ms"), window_end=pd.Timestamp(window[1], unit="ms"),
        )  # fmt: skip


def _over(case: Case, time: str) -> Any:
    return {
        "tumbling": F.window(time, "10 seconds"),
        "sliding": F.window(time, "10 seconds", "1 second"),
        "session": F.session_window(time, "5 seconds"),
    }[case.windows]


def _flow(case: Case, source: str, out: str) -> Flow:
    flow = Flow(f"bench-{source}-{out}")
    topic = KafkaTopic(
        source, schema=SCHEMA, event_time="at",
        watermark=bounded_out_of_orderness(timedelta(milliseconds=DELAY_MS)),
    )  # fmt: skip
    records = flow.read("records", topic)
    windows = records.window(case.declared, by="auction_id", allowed_lateness=30 if case.late else 0)
    windows.aggregate(total="sum(price)", n="count(*)").write("out", KafkaTopic(out))
    return flow


def _check(case: Case, sent: Sent, rows: pd.DataFrame, who: str) -> None:
    """Every window that is complete is there, with the right sum and count; others may be."""
    records = sent.columns.to_pandas()
    if case.windows == "session":
        expected = _sessions(records)
    else:
        slide = 10_000 if case.windows == "tumbling" else 1000
        parts = []
        for back in range(0, 10_000, slide):
            start = records["at"] // slide * slide - back
            parts.append(
                pd.DataFrame({"key": records["auction_id"], "start": start, "price": records["price"]})
            )
        groups = pd.concat(parts).groupby(["key", "start"])["price"]
        expected = pd.DataFrame({"total": groups.sum(), "n": groups.count()}).reset_index()
        expected["end"] = expected["start"] + 10_000
    last_ms = (
        min(records["at"][partition::PARTITIONS].max() for partition in range(PARTITIONS)) - DELAY_MS - 5000
    )
    expected = expected[expected["end"] < last_ms]
    rows = rows.rename(columns={"auction_id": "key"})
    for name in ("start", "end"):
        rows[name] = pd.to_datetime(rows[f"window_{name}"]).astype("int64") // (
            1_000_000
            if str(pd.to_datetime(rows[f"window_{name}"]).dtype).startswith("datetime64[ns")
            else 1000
        )
    if "firing" in rows:
        rows = rows.sort_values("firing").drop_duplicates(["key", "start", "end"], keep="last")
    both = expected.merge(rows, on=["key", "start", "end"], how="left", suffixes=("", "_found"))
    wrong = both[(both["total"] != both["total_found"]) | (both["n"] != both["n_found"])]
    if len(wrong) or not len(expected):
        msg = f"{case.name}: {len(wrong)} of {len(expected)} windows of {who} are wrong:\n{wrong.head()}"
        raise RunError(msg)


def _sessions(records: pd.DataFrame) -> pd.DataFrame:
    ordered = records.sort_values(["auction_id", "at"])
    new = (ordered["auction_id"].diff() != 0) | (ordered["at"].diff() > 5000)
    groups = ordered.groupby(new.cumsum())
    return pd.DataFrame(
        {
            "key": groups["auction_id"].first(),
            "start": groups["at"].min(),
            "end": groups["at"].max() + 5000,
            "total": groups["price"].sum(),
            "n": groups["price"].count(),
        }
    )


def _read(servers: str, topic: str) -> list[Mapping[str, Any]]:
    end = end_offsets(servers, topic)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in end])
    left, found = sum(end.values()), []
    while len(found) < left:
        found += [
            json.loads(message.value())
            for message in consumer.consume(50_000, timeout=10.0)
            if not message.error()
        ]
    consumer.close()
    return found
