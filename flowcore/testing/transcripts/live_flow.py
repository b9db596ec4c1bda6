"""A flow on the live path, of which each step is one micro-batch.

The flow is planned, compiled and started as `flowcore run` does it. Its input is written to Kafka topics and
its output is read from them. Only processing time is different: it is moved by hand.
"""

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Self

from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

from flowcore import elements
from flowcore.api.connectors import KafkaTopic
from flowcore.api.flow import Flow
from flowcore.errors import RunError
from flowcore.kafka.elements import CHANNEL_HEADER
from flowcore.kafka.topics import ensure_topics, partition_counts
from flowcore.metrics.progress import QueryProgress
from flowcore.planner import plan_flow
from flowcore.serializers import LatencyMarkerEventSerializer, TaggedSerializer
from flowcore.serializers.formats import RawFormat
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.operators.key_groups import WORKER_POOL
from flowcore.spark.run.live_runs import LiveRuns
from flowcore.testing.manual_time import ManualTime

__all__ = ["Input", "LiveEngine", "LiveFlow", "Output"]

_TIMEOUT_S = 30.0
_starting = Lock()
"""Held by a start, which starts Python processes: Spark waits at most 10 s for one."""
_POLL_S = 0.05
_ELEMENTS: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())
_EVENTS = LatencyMarkerEventSerializer()


class Input(NamedTuple):
    """One element of a step's input, as it is written to a source's topic.

    Attributes:
        element: The element, with the value of a record as bytes. Latency markers go to the companion topic.
        channel: The sender of a control element.
        topic: The suffix of the topic's name.
    """

    element: elements.StreamElement[bytes]
    partition: int = 0
    channel: str = "replay"
    topic: str = "in"


class Output(NamedTuple):
    """One message that a step has written.

    Attributes:
        topic: The suffix of the topic's name: that of a sink, ``in.dead-letter`` or ``out.events``.
    """

    topic: str
    value: bytes
    headers: Mapping[str, bytes]

    @property
    def element(self) -> elements.StreamElement[bytes]:
        """The element of a tagged topic, or the latency marker of a companion topic."""
        if self.topic.endswith(".events"):
            return _EVENTS.decode(self.value).to_marker()
        return _ELEMENTS.decode(self.value)


@dataclass(frozen=True, slots=True)
class LiveEngine:
    """What the flows of a replay share: a Spark session, a broker, and the folder of checkpoints."""

    spark: SparkSession
    servers: str
    folder: Path

    @contextmanager
    def shared_workers(self) -> Iterator[Self]:
        """All flows share Python workers, since starting them takes longer than the steps of a transcript.

        If the Spark context names a pool of workers, they share that one.
        """
        context = self.spark.sparkContext
        before = context.environment
        context.environment = {WORKER_POOL: "replay", **before}
        try:
            yield self
        finally:
            context.environment = before

    def topic(self, flow: str, name: str, **options: Any) -> KafkaTopic:
        """A topic of one flow; a tagged source declares the channel of `Input`, so that it can end."""
        if options.get("elements") == "tagged" and "schema" in options:
            options["channels"] = (Input._field_defaults["channel"],)
        return KafkaTopic(f"{flow}.{name}", **options)

    def new_name(self) -> str:
        """A flow name that no other transcript has."""
        return f"replay-{secrets.token_hex(6)}"

    def settings(self, changes: Mapping[str, Any]) -> Settings:
        """Settings with which a step is one micro-batch and one poll of watermarks."""
        chosen = {
            "kafka.bootstrap.servers": self.servers,
            "state.dir": self.folder,
            "execution.trigger-interval": "1 ms",
            "pipeline.auto-watermark-interval": "1 ms",
            # Transcripts have times of years, and a clock that begins at zero.
            "watermark.max-ahead": 0,
            "execution.shuffle-partitions": 1,
            "state.key-groups": 2,
            **changes,
        }
        return Settings.of(chosen, environment={})


class LiveFlow:
    """A flow during one transcript.

    Args:
        flow: A flow whose topics are those of `LiveEngine.topic`.
        partitions: The number of partitions of each source's topic.
        changes: Settings that differ from those of `LiveEngine.settings`.

    Raises:
        FlowcoreError: The flow cannot be planned or started.
    """

    def __init__(
        self, engine: LiveEngine, flow: Flow, *, partitions: int = 1, changes: Mapping[str, Any] | None = None
    ) -> None:
        self._engine = engine
        self._flow = flow
        self._settings = engine.settings(changes or {})
        self._plan = plan_flow(flow, "micro-batch", self._settings)
        sources = (source.topic for query in self._plan.live_queries for source in query.sources)
        self._sources = {topic.name: topic.elements == "tagged" for topic in sources if topic}
        ensure_topics(engine.servers, dict.fromkeys(self._sources, partitions))
        self._clock = ManualTime()
        self._started = ExitStack()
        self._last: dict[tuple[str, type], elements.StreamElement[bytes]] = {}
        self._repeats: dict[tuple[str, type], elements.StreamElement[bytes]] = {}
        sinks = (sink.topic for query in self._plan.live_queries for sink in query.sinks)
        self._sinks = {topic.name: topic.elements == "tagged" for topic in sinks if topic}
        self._producer = Producer({"bootstrap.servers": engine.servers, "linger.ms": 0, "log_level": 0})
        self._start()
        self._consumer, self._ends = self._follow_outputs()

    @property
    def now_ms(self) -> int:
        """Processing time."""
        return self._clock.now_ms()

    @property
    def progress(self) -> QueryProgress:
        """The progress of the flow's only query."""
        (progress,) = self._runs.progress()
        return progress

    def step(self, inputs: Iterable[Input] = (), now_ms: int | None = None) -> list[Output]:
        """Write the input of a step, run its micro-batch, and return what has been written.

        Raises:
            RunError: The query has failed.
        """
        for each in inputs:
            self._produce(each)
        if self._producer.flush(_TIMEOUT_S):
            names = " or ".join(self._sources)
            msg = f"topic {names} takes no messages: the step has no input; see the broker's log"
            raise RunError(msg)
        self._clock.step(self.now_ms if now_ms is None else now_ms)
        self._require_running()
        return self._read()

    def restart(self) -> list[Output]:
        """Stop the run and start it again on its checkpoint; return what that has written.

        A restarted run writes its last watermark, status and attributes again. These are not returned.
        """
        self._started.close()
        self._start()
        active = elements.WatermarkStatus(idle=False)  # which a channel without a status is
        names = (name.removeprefix(f"{self._flow.name}.") for name in self._sinks)
        self._repeats = {(name, type(active)): active for name in names} | self._last
        return self._read()

    def close(self) -> None:
        """Stop the run."""
        self._started.close()
        self._consumer.close()

    def _start(self) -> None:
        context = Context(self._engine.spark, self._settings, self._flow.name, self._clock)
        self._runs = self._started.enter_context(LiveRuns(self._plan, context))
        with _starting:
            self._runs.start(())
            self._clock.wait()
            self._require_running()

    def _require_running(self) -> None:
        """Wait for the first batch of queries that were started again, because a Python process was slow."""
        self._runs.check()
        while self._clock.running < len(self._plan.live_queries):
            time.sleep(_POLL_S)
            self._runs.check()
            self._clock.wait()
            self._clock.work()

    def _produce(self, each: Input) -> None:
        element, topic = each.element, f"{self._flow.name}.{each.topic}"
        if isinstance(element, elements.LatencyMarker):
            content = _EVENTS.encode(elements.LatencyMarkerEvent.from_marker(element))
            self._producer.produce(f"{topic}.events", content, partition=each.partition)
            return
        self._producer.produce(
            topic,
            element.value
            if isinstance(element, elements.Record) and not self._sources[topic]
            else _ELEMENTS.encode(element),
            partition=each.partition,
            headers=[(CHANNEL_HEADER, each.channel.encode())],
        )

    def _follow_outputs(self) -> tuple[Consumer, dict[TopicPartition, int]]:
        names = [*self._sinks, *(f"{name}.events" for name in self._sinks)]
        names += [f"{name}.dead-letter" for name in self._sources]
        counts = partition_counts(self._engine.servers, names)
        places = [TopicPartition(name, number, 0) for name in names for number in range(counts[name] or 0)]
        consumer = Consumer(
            {
                "bootstrap.servers": self._engine.servers,
                "group.id": self._flow.name,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
                "log_level": 0,
            }
        )
        consumer.assign(places)
        return consumer, dict.fromkeys(places, 0)

    def _read(self) -> list[Output]:
        found: list[Output] = []
        missing = 0
        for place, before in self._ends.items():
            _, self._ends[place] = self._consumer.get_watermark_offsets(place, _TIMEOUT_S)
            missing += self._ends[place] - before
        while len(found) < missing:
            message = self._consumer.poll(_TIMEOUT_S)
            if message is None or message.error():
                msg = f"the output of flow {self._flow.name} cannot be read: see the broker's log"
                raise RunError(msg)
            pairs: Any = message.headers() or ()
            headers = {name: content for name, content in pairs if content is not None}
            suffix = (message.topic() or "").removeprefix(f"{self._flow.name}.")
            found.append(Output(suffix, message.value() or b"", headers))
        return [each for each in found if not self._is_repeat(each)]

    def _is_repeat(self, output: Output) -> bool:
        element = output.element if self._sinks.get(f"{self._flow.name}.{output.topic}") else None
        if not isinstance(element, elements.Watermark | elements.WatermarkStatus | elements.RecordAttributes):
            return False
        place = output.topic, type(element)
        self._last[place] = element
        return self._repeats.pop(place, None) == element
