"""The operators at the ends of a flow: sources and sinks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from flowcore.api.connectors import KafkaTopic, Sink, Source
from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.lineage import Origins
from flowcore.api.node import Operator
from flowcore.api.schema import Schema
from flowcore.api.value_formats import runs_in_python

__all__ = ["Read", "Write"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Read(Operator):
    """A source."""

    source: Source
    schema: Schema

    @property
    def connector(self) -> Source:
        """The source, as `Write.connector` is the sink."""
        return self.source

    @property
    def topic(self) -> KafkaTopic | None:
        return self.source if isinstance(self.source, KafkaTopic) else None

    def describe(self) -> str:
        text = f"read {_connector_text(self.source)}"
        topic = self.topic
        if topic is None or (topic.event_time is None and topic.watermark is None):
            return text
        watermarks = f", {topic.watermark}" if topic.watermark else ""
        return f"{text}, event time {topic.event_time or 'as Kafka keeps it'}{watermarks}"

    def lineage(self, known: Mapping[Operator, Origins]) -> Origins:  # noqa: ARG002 - it has no inputs
        return {column.lower(): frozenset({(self.name, column)}) for column in self.columns}

    def compiled(self) -> Decision:
        return _format_compiled(self.topic) or Operator.compiled(self)

    def alignment(self) -> Decision | None:
        strategy = self.topic.watermark if self.topic is not None else None
        if strategy is None or strategy.max_drift_ms is None:
            return None
        reasons = (
            "Spark's Kafka source cannot pause single partitions",
            "a batch takes of each as much as its share of all that is unread",
        )
        change = "set execution.max-records-per-batch, so that a backlog is read in small steps"
        return Decision("in proportion", reasons, (change,))

    def realtime_obstacles(self) -> Iterator[Obstacle]:
        return _connector_obstacles(self)

    def flush_obstacle(self) -> Obstacle:
        return Obstacle("it is a source")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Write(Operator):
    """A sink."""

    sink: Sink

    @property
    def connector(self) -> Sink:
        """The sink, as `Read.connector` is the source."""
        return self.sink

    @property
    def topic(self) -> KafkaTopic | None:
        return self.sink if isinstance(self.sink, KafkaTopic) else None

    def describe(self) -> str:
        key = f", key {', '.join(self.key) or 'constant'}" if self.key is not None else ""
        return f"write {_connector_text(self.sink)}{key}"

    def reads(self, used: Collection[str]) -> Collection[str]:  # noqa: ARG002 - it writes all
        return self.inputs[0].columns

    def compiled(self) -> Decision:
        return _format_compiled(self.topic) or Operator.compiled(self)

    def emission(self) -> Decision:
        return Decision("none", ("it is a sink",))

    def realtime_obstacles(self) -> Iterator[Obstacle]:
        return _connector_obstacles(self)

    def flush_obstacle(self) -> Obstacle:
        return Obstacle("it is a sink")


def _connector_text(connector: Source | Sink) -> str:
    name = next(
        (found for each in ("name", "path", "function") if (found := getattr(connector, each, None))),
        connector,
    )
    return f"{type(connector).__name__} {getattr(name, '__qualname__', name)}"


def _connector_obstacles(node: Read | Write) -> Iterator[Obstacle]:
    topic = node.topic
    if topic is None:
        yield Obstacle(f"{node.name} is not a Kafka topic", f"let {node.name} be a KafkaTopic")
    elif runs_in_python(topic):
        yield Obstacle(
            f"format {topic.format!r} of {node.name} runs in Python",
            f"give {node.name} a format that Spark has itself, such as json, avro or raw",
        )


def _format_compiled(topic: KafkaTopic | None) -> Decision | None:
    if topic is None or not runs_in_python(topic):
        return None
    return Decision(
        "python",
        (f"Spark has no expression for the format {topic.format!r}",),
        ("use a format that Spark has itself, such as json, avro or raw",),
    )
