"""The operators at the ends of a flow: sources and sinks."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from flowcore.api.connectors import ADDED_LATER, KafkaTopic, Sink, Source
from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.node import Operator, Origins
from flowcore.api.schema import Schema
from flowcore.api.value_formats import runs_in_python

__all__ = ["Read", "Write"]


class _End(Operator):
    """An operator with a connector."""

    __slots__ = ()

    @property
    def connector(self) -> Source:
        raise NotImplementedError

    @property
    def topic(self) -> KafkaTopic | None:
        return self.connector if isinstance(self.connector, KafkaTopic) else None

    def compiled(self) -> Decision:
        if self.topic is None or not runs_in_python(self.topic):
            return Operator.compiled(self)
        return Decision(
            "python",
            (f"Spark has no expression for the format {self.topic.format!r}",),
            ("use a format that Spark has itself, such as json, avro or raw",),
        )

    def realtime_obstacles(self) -> Iterator[Obstacle]:
        if self.topic is None:
            yield Obstacle(f"{self.name} is not a Kafka topic", f"let {self.name} be a KafkaTopic")
        elif runs_in_python(self.topic):
            yield Obstacle(
                f"format {self.topic.format!r} of {self.name} runs in Python",
                f"give {self.name} a format that Spark has itself, such as json, avro or raw",
            )

    def _connector_text(self) -> str:
        names = (getattr(self.connector, each, None) for each in ("name", "path", "function"))
        name = next(filter(None, names), self.connector)
        return f"{type(self.connector).__name__} {getattr(name, '__qualname__', name)}"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Read(_End):
    """A source."""

    source: Source
    schema: Schema

    @property
    def connector(self) -> Source:
        return self.source

    def describe(self) -> str:
        text = f"read {self._connector_text()}"
        topic = self.topic
        if topic is None or (topic.event_time is None and topic.watermark is None):
            return text
        watermarks = f", {topic.watermark}" if topic.watermark else ""
        return f"{text}, event time {topic.event_time or 'as Kafka keeps it'}{watermarks}"

    def lineage(self, known: Mapping[Operator, Origins]) -> Origins:  # noqa: ARG002 - it has no inputs
        return {column.lower(): frozenset({(self.name, column)}) for column in self.columns}

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

    def flush_obstacle(self) -> Obstacle:
        return Obstacle("it is a source")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Write(_End):
    """A sink.

    Attributes:
        deleted: The column that is true where a record deletes its key; it is not written.
    """

    sink: Sink
    deleted: str | None = field(default=None, metadata=ADDED_LATER)

    @property
    def connector(self) -> Sink:
        return self.sink

    def describe(self) -> str:
        key = f", key {', '.join(self.key) or 'constant'}" if self.key is not None else ""
        deleted = f", tombstones where {self.deleted}" if self.deleted is not None else ""
        return f"write {self._connector_text()}{key}{deleted}"

    def reads(self, used: Collection[str]) -> Collection[str]:  # noqa: ARG002 - it writes all
        return self.inputs[0].columns

    def emission(self) -> Decision:
        return Decision("none", ("it is a sink",))

    def flush_obstacle(self) -> Obstacle:
        return Obstacle("it is a sink")
