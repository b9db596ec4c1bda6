"""The operators at the ends of a flow: sources and sinks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from flowcore.api.connectors import ADDED_LATER, KafkaTopic, Position, Sink, Source
from flowcore.api.decisions import Decision, Obstacle
from flowcore.api.node import Operator, Origins
from flowcore.api.schema import Schema
from flowcore.api.stateful import IS_DELETED
from flowcore.api.value_formats import runs_in_python
from flowcore.watermarks.strategies import WatermarkStrategy

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
    """A source.

    Attributes:
        written_by: The sink of the same flow that writes its topic, if a cut joins them.
        row_key: The columns of the Kafka key by which messages replace each other; None if messages are
            final.
    """

    source: Source
    schema: Schema
    written_by: Write | None = field(default=None, metadata=ADDED_LATER)
    row_key: tuple[str, ...] | None = field(default=None, metadata=ADDED_LATER)

    @property
    def connector(self) -> Source:
        return self.source

    @property
    def dead_letter(self) -> str:
        """The topic of its bad records."""
        assert self.topic is not None  # noqa: S101 - only messages of Kafka become dead letters
        return self.topic.dead_letter

    @property
    def watermark(self) -> WatermarkStrategy | None:
        return self.topic.watermark if self.topic is not None else None

    @property
    def deleted(self) -> str | None:
        """The column that is true where a message deletes its key; None if no message does."""
        return IS_DELETED if self.updating and self.row_key is not None else None

    def types(self) -> Mapping[str, str]:
        return {**self.schema.types, **({} if self.deleted is None else {self.deleted: "BOOLEAN"})}

    def describe(self) -> str:
        text = f"read {self._connector_text()}{', a cut' if self.written_by else ''}"
        topic = self.topic
        if topic is None:
            return text
        if self.written_by is None:
            until = "" if topic.until is None else f" until {_show_position(topic.until)}"
            text += f" from {_show_position(topic.start)}{until}"
        if self.row_key is not None:
            text += (
                ", the last row of each key" if self.bounded else ", deletions where a record has no value"
            )
        if topic.channels is not None:
            text += f", control elements of {', '.join(topic.channels)} only"
        if topic.signed:
            text += ", signed control elements only"
        if topic.event_time is None and topic.watermark is None:
            return text
        watermarks = f", {topic.watermark}" if topic.watermark else ""
        return f"{text}, event time {topic.event_time or 'as Kafka keeps it'}{watermarks}"

    def realtime_obstacles(self) -> Iterator[Obstacle]:
        yield from _End.realtime_obstacles(self)
        if self.topic is not None and self.topic.signed:
            yield Obstacle(
                f"signatures of {self.name} are checked in Python",
                f"declare {self.name} without signed=True",
            )

    def lineage(self, known: Mapping[Operator, Origins]) -> Origins:  # noqa: ARG002 - it has no inputs
        return {column.lower(): frozenset({(self.name, column)}) for column in self.columns}

    def alignment(self) -> Decision | None:
        strategy = self.watermark
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
        is_cut: A source of the same flow reads its topic.
    """

    sink: Sink
    deleted: str | None = field(default=None, metadata=ADDED_LATER)
    is_cut: bool = field(default=False, metadata=ADDED_LATER)

    @property
    def connector(self) -> Sink:
        return self.sink

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns that name the folders of its files."""
        return () if isinstance(self.sink, KafkaTopic) else tuple(self.sink.partition_by)

    @property
    def exactly_once(self) -> bool:
        """Readers of committed records see each of its records once."""
        return self.topic is not None and self.topic.delivery == "exactly-once"

    def describe(self) -> str:
        key = ""
        if self.topic is not None and self.key is not None:  # files have no keys
            key = f", key {', '.join(self.key) or 'constant'}"
        deleted = f", tombstones where {self.deleted}" if self.deleted is not None else ""
        delivery = ", exactly once" if self.exactly_once else ""
        cut = ", a cut" if self.is_cut else ""
        folders = f", a folder for each {', '.join(self.partition_by)}" if self.partition_by else ""
        return f"write {self._connector_text()}{cut}{key}{folders}{deleted}{delivery}"

    def realtime_obstacles(self) -> Iterator[Obstacle]:
        yield from _End.realtime_obstacles(self)
        if self.exactly_once:
            yield Obstacle(
                f"{self.name} is written exactly once, a batch in a transaction, and real-time mode emits "
                "records before their batch is known",
                f"give {self.name} delivery='at-least-once', and let its readers drop repeats by flowcore-id",
            )

    def reads(self, used: Collection[str]) -> Collection[str]:  # noqa: ARG002 - it writes all
        return self.inputs[0].columns

    def emission(self) -> Decision:
        return Decision("none", ("it is a sink",))

    def flush_obstacle(self) -> Obstacle:
        return Obstacle("it is a sink")


def _show_position(position: Position) -> str:
    """A position in a topic as text.

    >>> _show_position({1: 7, 0: 5})
    '0@5, 1@7'
    """
    if isinstance(position, datetime):
        return position.isoformat()
    if isinstance(position, str):
        return position
    return ", ".join(f"{partition}@{offset}" for partition, offset in sorted(position.items()))
