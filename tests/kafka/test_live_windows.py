"""Windows of live queries over Kafka topics, with restarts and lagging partitions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from flowcore import Flow, KafkaTopic, Sliding, Tumbling
from flowcore.spark.run.live_stage import LiveRun
from flowcore.spark.run.session import live_session
from flowcore.watermarks import bounded_out_of_orderness, monotonous
from tests.kafka.conftest import Live

SCHEMA = "user STRING, price BIGINT, at BIGINT"
HOUR_MS = 3_600_000


def clicks(live: Live, delay_ms: int = 0) -> KafkaTopic:
    return live.topic(
        "clicks",
        schema=SCHEMA,
        event_time="at",
        watermark=bounded_out_of_orderness(timedelta(milliseconds=delay_ms)),
    )


def click(user: str, price: int, at: int) -> dict[str, Any]:
    return {"user": user, "price": price, "at": at}


def totals(live: Live, topic: KafkaTopic) -> list[tuple[Any, ...]]:
    return sorted(
        (row["user"], row["window_start"], row["total"], row["n"], row["firing"], row["is_late"])
        for row in live.values(topic)
    )


def test_window_emits_when_complete_and_continues_after_a_restart(live: Live) -> None:
    """Three runs on one checkpoint give results, late firings and the late topic."""
    source, out, late = clicks(live, 1000), live.topic("totals"), live.topic("late")
    flow = Flow("totals")
    windows = (
        flow.read("clicks", source)
        .where("price > 0")
        .window(Tumbling(10), by="user", allowed_lateness=5, late="side-output", name="per_user")
    )
    found = windows.aggregate(total="sum(price)", n="count(*)")
    found.write("totals", out)
    found.late.write("late", late)
    live.send(source, click("a", 1, 2000), click("b", 2, 9000), click("a", 3, 10_999))

    live.run(flow)

    assert totals(live, out) == []
    live.send(source, click("a", 4, 3000), click("c", -1, 11_000))
    live.run(flow)
    # A record that `where` drops advances event time: 11000 - 1000 - 1 is the window's last millisecond.
    first = [
        ("a", "1970-01-01T00:00:00.000000Z", 5, 2, 1, False),
        ("b", "1970-01-01T00:00:00.000000Z", 2, 1, 1, False),
    ]
    assert totals(live, out) == first
    live.send(source, click("b", 5, 9999), click("a", 6, 16_000))
    live.run(flow)
    assert totals(live, out) == [*first, ("b", "1970-01-01T00:00:00.000000Z", 7, 2, 2, True)]
    live.send(source, click("a", 7, 9999), click("a", 8, 1))
    live.run(flow)
    assert [(row["user"], row["price"]) for row in live.values(late)] == [("a", 7), ("a", 8)]


@pytest.mark.thorough
def test_code_of_a_batch_is_not_compiled_again(live: Live) -> None:
    """No number of a batch, such as its time, is in the code that Spark generates."""
    source = clicks(live)
    flow = Flow("compiled")
    windows = flow.read("clicks", source).window(Tumbling(10), by="user", name="per_user")
    windows.aggregate(total="sum(price)").write("totals", live.topic("totals"))
    metrics: Any = live.spark.sparkContext._jvm.org.apache.spark.metrics.source.CodegenMetrics  # type: ignore[union-attr]
    compiled = []
    for number in range(3):
        live.send(source, click("a", 1, 20_000 * number))
        live.run(flow)
        compiled.append(metrics.METRIC_COMPILATION_TIME().getCount())

    assert compiled[2] == compiled[1] > 0


def test_ingestion_time_is_that_of_the_batch_also_when_it_is_repeated(live: Live) -> None:
    """Spark logs the time of a batch before it runs, so a repeated record stays in its window."""
    source = live.topic(
        "clicks", schema="user STRING", event_time="current_timestamp()", watermark=monotonous()
    )
    out = live.topic("totals")
    flow = Flow("ingested")
    windows = flow.read("clicks", source).window(Tumbling(timedelta(milliseconds=10)), by="user")
    windows.aggregate(n="count(*)").write("totals", out)
    began_ms = time.time_ns() // 1_000_000
    live.send(source, {"user": "a"}, {"user": "a"})
    live.run(flow)
    ended_ms = time.time_ns() // 1_000_000

    live.forget_last_batch("ingested", "clicks-batches")
    time.sleep(0.1)
    live.send(source, {"user": "b"})
    live.run(flow)

    (found,) = live.values(out)
    assert (found["user"], found["n"]) == ("a", 2)
    start_ms = datetime.fromisoformat(found["window_start"]).timestamp() * 1_000
    assert began_ms - 10 <= start_ms <= ended_ms


@pytest.mark.thorough
def test_windows_and_bad_messages_share_one_query(live: Live) -> None:
    """One query reads the topic; late records and bad messages keep their own coordinates."""
    source, out, late = clicks(live), live.topic("totals"), live.topic("late")
    flow = Flow("with_bad")
    windows = flow.read("clicks", source).window(Tumbling(10), by="user", late="side-output")
    found = windows.aggregate(n="count(*)")
    found.write("totals", out)
    found.late.write("late", late)
    queries: list[str] = []
    for values in (
        [click("a", 1, 1000), b"bad 1", click("a", 1, 2000), click("b", 1, 30_000), b"bad 2"],
        [b"bad 3", click("b", 1, 40_000), click("a", 1, 3000), b"bad 4"],
    ):
        live.send(source, *values)
        live.run(flow, "slice", lambda run: (queries.extend(run.running), run.wait(180)))

    assert queries == ["clicks-batches", "clicks-batches"]
    assert [(row["user"], row["n"]) for row in live.values(out)] == [("a", 2), ("b", 1)]
    (record,) = live.records(late)
    assert record.id == f"with_bad/late:{live.topic_id(source)}:0:7:0"
    dead_letters = live.records(source.dead_letter)
    assert [(r.value, int(r.headers["flowcore-offset"])) for r in dead_letters] == [
        (b"bad 1", 1), (b"bad 2", 4), (b"bad 3", 5), (b"bad 4", 8),
    ]  # fmt: skip
    assert {r.headers["flowcore-topic"].decode() for r in dead_letters} == {source.name}
    assert all(b"does not fit" in r.headers["flowcore-reason"] for r in dead_letters)


@pytest.mark.thorough
def test_partition_that_lags_an_hour_loses_nothing(live: Live, tmp_path: Path) -> None:
    """Event time is the minimum of the partitions, while Spark's watermark is the maximum."""
    source, out = clicks(live), live.topic("totals")
    flow = Flow("lagging")
    flow.read("clicks", source).window(Sliding(10, slide=5), by="user").aggregate(n="count(*)").write(
        "totals", out
    )
    leading = [click("a", 1, HOUR_MS + second * 1000) for second in range(36)]
    lagging = [click("a", 1, second * 1000) for second in range(36)]
    both = [row for pair in zip(leading, lagging, strict=True) for row in pair]
    native: dict[int, int] = {}
    dropped = 0
    # Spark drops by the watermark of the batch before the last one, so that it shows in the third.
    for part in (both[:24], both[24:48], both[48:]):
        live.send(source, *part, partitions=2)
        live.run(flow)
        dropped += _counted_by_spark(live, source, tmp_path / "native", native)

    counts = {
        row["window_start"][14:19]: row["n"] for row in live.values(out) if row["window_start"] > "1970"
    }

    assert counts == {f"00:{start:02}": 10 for start in (0, 5, 10, 15, 20, 25)}
    assert native[0] == 10
    assert native[20] < 10
    assert dropped > 0


def _counted_by_spark(live: Live, source: KafkaTopic, checkpoint: Path, counts: dict[int, int]) -> int:
    """Update the counts of the same windows with Spark's own watermark; return how many rows it dropped."""

    def take(batch: DataFrame, _number: int) -> None:
        counts.update({row.start: row.n for row in batch.collect()})

    records = F.from_json(F.col("value").cast("string"), SCHEMA)
    frame = (
        live_session(live.spark, live.settings)
        .readStream.format("kafka")
        .options(**{"kafka.bootstrap.servers": live.servers, "subscribe": source.name})
        .option("startingOffsets", "earliest")
        .load()
        .select(F.timestamp_millis(records.at).alias("time"))
        .withWatermark("time", "0 seconds")
        .groupBy(F.window("time", "10 seconds", "5 seconds"))
        .agg(F.count("*").alias("n"))
        .select(F.unix_seconds("window.start").alias("start"), "n")
    )
    query = (
        frame.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .outputMode("update")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return sum(
        operator["numRowsDroppedByWatermark"]
        for progress in query.recentProgress
        for operator in progress["stateOperators"]
    )


def test_windows_ignore_an_idle_partition_and_pass_markers(live: Live) -> None:
    """Processing time marks the partition idle; latency markers reach the sink's companion topic."""
    live.settings = replace(live.settings, latency_interval=timedelta(milliseconds=200))
    source = live.topic(
        "clicks", schema=SCHEMA, event_time="at", watermark=monotonous().with_idleness(timedelta(seconds=1))
    )
    out = live.topic("totals")
    flow = Flow("idle")
    flow.read("clicks", source).window(Tumbling(10), by="user").aggregate(n="count(*)").write("totals", out)
    live.send(source, click("a", 1, 1000), click("b", 1, 2000), partitions=2)

    def until(run: LiveRun) -> None:
        for attempt in range(200):
            live.send(source, click("a", 1, 20_000 + attempt))  # to the first partition
            if live.values(out) and live.records(f"{out.name}.events"):
                return
            assert not run.wait(0.2)

    live.run(flow, None, until)

    assert {(row["user"], row["n"]) for row in live.values(out)} == {("a", 1), ("b", 1)}
    assert live.records(f"{out.name}.events")


def _added(kept: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    if new["price"] < 0:
        raise ValueError(new["price"])
    return {**kept, "price": kept["price"] + new["price"]}


def _shown(_context: Any, values: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    (value,) = values
    if value["price"] == 13:
        raise LookupError(value["price"])
    return [{"total": value["price"]}]


def test_record_or_window_whose_function_raises_is_a_dead_letter(live: Live) -> None:
    """A failing record is in no window, a dead window has its values, and late records are unchanged."""
    source, out, late = clicks(live), live.topic("totals"), live.topic("late")
    flow = Flow("picky")
    windows = flow.read("clicks", source).window(Tumbling(10), by="user", late="side-output", name="per_user")
    found = windows.reduce(_added, then=_shown, schema="total BIGINT")
    found.write("totals", out)
    found.late.write("late", late)
    live.send(
        source, click("a", 5, 1000), click("a", -1, 2000), b"bad", click("a", 6, 3000), click("b", 6, 1000),
        click("b", 7, 2000), click("c", 1, 20_000),
    )  # fmt: skip
    live.run(flow)
    live.send(source, click("a", 9, 5000))
    live.run(flow)

    assert [(each["user"], each["total"]) for each in live.values(out)] == [("a", 11)]
    (too_late,) = live.records(late)
    assert too_late.id == f"picky/late:{live.topic_id(source)}:0:7:0"
    dead_letters = {each.headers["flowcore-offset"]: each for each in live.records(source.dead_letter)}
    assert sorted(dead_letters) == [b"", b"1", b"2"]
    assert dead_letters[b"1"].json == click("a", -1, 2000)
    assert dead_letters[b"1"].headers["flowcore-operator"] == b"per_user"
    assert b"raised ValueError: -1 for key 'a', record {" in dead_letters[b"1"].headers["flowcore-reason"]
    assert dead_letters[b""].json == {
        "key": {"user": "b"}, "window_start_ms": 0, "window_end_ms": 10_000, "firing": 1,
        "values": [{"user": "b", "price": 13, "at": 1000}],
    }  # fmt: skip
