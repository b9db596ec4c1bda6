"""Fixtures for tests that use one Kafka broker in a container."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from flowcore import Flow, KafkaTopic
from flowcore.kafka.topics import end_offsets, ensure_topics, identify_topics
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.testing.kafka_fixtures import kafka, kafka_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from flowcore.planner.model import Mode
    from flowcore.spark.run.live_stage import LiveRun

__all__ = ["kafka", "kafka_broker", "live"]

Value = dict[str, Any] | bytes | None


@dataclass(frozen=True)
class Record:
    """One Kafka message as a consumer reads it."""

    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]
    partition: int
    offset: int

    @property
    def id(self) -> str:
        """Its record id."""
        return self.headers["flowcore-id"].decode()

    @property
    def json(self) -> dict[str, Any]:
        """Value, decoded as a JSON object."""
        found: dict[str, Any] = json.loads(self.value or b"null")
        return found


class Live:
    """Topics of one test, and runs of flows in the shared Spark session."""

    def __init__(self, servers: str, settings: Settings, spark: SparkSession) -> None:
        self.servers = servers
        self.settings = settings
        self.spark = spark
        self.suffix = secrets.token_hex(4)

    def topic(self, name: str, **settings: Any) -> KafkaTopic:
        """Declare a topic with a name that no other test uses."""
        return KafkaTopic(f"{name}-{self.suffix}", **settings)

    def send(
        self, topic: KafkaTopic, *values: Value, partitions: int = 1, times_ms: Iterable[int] = ()
    ) -> None:
        """Send values, round robin over the partitions."""
        ensure_topics(self.servers, {topic.name: partitions})
        producer = Producer({"bootstrap.servers": self.servers, "log_level": 0})
        times = list(times_ms) or [0] * len(values)
        for number, (value, time_ms) in enumerate(zip(values, times, strict=True)):
            content = json.dumps(value).encode() if isinstance(value, dict) else value
            producer.produce(topic.name, content, partition=number % partitions, timestamp=time_ms)
        assert producer.flush(300) == 0

    def records(self, topic: KafkaTopic | str) -> list[Record]:
        """All committed records in a topic now, by partition and offset; empty if there is no topic."""
        name = topic if isinstance(topic, str) else topic.name
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "test",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
                "log_level": 0,
            }
        )
        found = []
        message: Any
        try:
            for partition, end in sorted(end_offsets(self.servers, name).items()):
                consumer.assign([TopicPartition(name, partition, 0)])
                last = -1
                while last < end - 1:
                    (message,) = consumer.consume(1, timeout=300)
                    if message.error():
                        assert message.error().name() == "_PARTITION_EOF"
                        break  # the last offsets are markers of transactions
                    headers = {key: value or b"" for key, value in message.headers() or ()}
                    found.append(Record(message.key(), message.value(), headers, partition, message.offset()))
                    last = message.offset()
        finally:
            consumer.close()
        return found

    def topic_id(self, topic: KafkaTopic) -> str:
        """Kafka's id of a topic, as it is in record ids."""
        found = identify_topics(self.servers, [topic.name])[topic.name]
        assert found is not None
        return found.id

    def values(self, topic: KafkaTopic) -> list[dict[str, Any]]:
        """Values of all records in a topic."""
        return [record.json for record in self.records(topic)]

    def latest(self, topic: KafkaTopic, column: str) -> dict[int, int]:
        """Value of a column in each shop's last record."""
        return {row["shop"]: row[column] for row in self.values(topic)}

    def wait_for(self, topic: KafkaTopic, column: str, wanted: dict[int, int]) -> None:
        """Wait until each shop's last record has the wanted value in a column."""
        end = time.monotonic() + 300
        while (found := self.latest(topic, column)) != wanted:
            assert time.monotonic() < end, (found, wanted)
            time.sleep(0.25)  # each poll of a topic is a new consumer

    def wait_for_records(self, run: LiveRun, topic: KafkaTopic, count: int) -> None:
        """Wait until a topic has that many records, while a run goes on, and their batch is committed.

        Else the next run would write them again.
        """
        from flowcore.spark.checkpoint.offset_log import has_unfinished_batch  # noqa: PLC0415 - as for `run`

        end = time.monotonic() + 300
        while len(found := self.records(topic)) < count:
            assert time.monotonic() < end, found
            run.wait(0.2)
        while any(map(has_unfinished_batch, self.settings.state_dir.glob("*/checkpoints/*"))):
            assert time.monotonic() < end
            run.wait(0.05)

    def forget_last_batch(self, flow: str, query: str) -> None:
        """Remove the commit of a query's last batch, so that the next run repeats the batch."""
        commits = self.settings.state_dir / flow / "checkpoints" / query / "commits"
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)

    def held_keys(self, flow: Flow, operator: str) -> list[Any]:
        """What the first query of a flow that writes keeps of each key of an operator."""
        from flowcore.spark.checkpoint.plan_file import checkpoint_folder  # noqa: PLC0415 - as for `run`
        from flowcore.spark.run.inspection import KeyGroupState, read_state  # noqa: PLC0415
        from flowcore.spark.run.session import live_session  # noqa: PLC0415

        query = next(each for each in plan_flow(flow, settings=self.settings).live_queries if each.sinks)
        checkpoint = checkpoint_folder(query, flow.name, self.settings)
        found = read_state(live_session(self.spark, self.settings), checkpoint)
        states = [each.held for each in found if isinstance(each, KeyGroupState)]
        return [key for held in states if held.operator == operator for key in held.keys or ()]

    def run(
        self, flow: Flow, mode: Mode | None = "slice", until: Callable[[LiveRun], object] | None = None
    ) -> None:
        """Run a flow's bounded stages, then its live queries until they end or ``until`` returns."""
        from flowcore.spark.context import Context  # noqa: PLC0415 - tests without Spark shall not import it
        from flowcore.spark.run.flow import run_plan  # noqa: PLC0415
        from flowcore.spark.run.live_stage import LiveRun  # noqa: PLC0415
        from flowcore.spark.run.live_topics import prepare_topics  # noqa: PLC0415

        plan = plan_flow(flow, mode, self.settings)
        context = Context(self.spark, self.settings, flow.name)
        prepare_topics(plan, self.settings)
        run_plan(replace(plan, live=None), context)
        if plan.live:
            with LiveRun(plan, context) as run:
                if until is None:
                    assert run.wait(600)
                else:
                    until(run)


@pytest.fixture
def live(kafka: str, tmp_path: Path, spark: SparkSession) -> Live:
    """Flows of one test on the shared broker and in the shared session."""
    settings = Settings.of(
        {"data.dir": tmp_path, "state.dir": tmp_path / "state", "kafka.bootstrap.servers": kafka},
        environment={},
    )
    return Live(kafka, settings, spark)
