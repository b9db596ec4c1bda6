"""Connectors: where does a flow read from and write to?

Plain descriptions; nothing here opens a file or a socket. Relative paths are taken from the
setting ``data.dir``, broker addresses from ``kafka.bootstrap.servers``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from flowcore.errors import ConfigurationError
from flowcore.graph.schema import Schema

__all__ = [
    "Csv",
    "Frame",
    "Json",
    "KafkaTopic",
    "Parquet",
    "Position",
    "Sink",
    "Source",
    "from_frame",
]

Position = Literal["earliest", "latest"] | datetime | Mapping[int, int]
"""A place in a topic: an end of it, a time (with its zone), or an offset per partition."""


@dataclass(frozen=True, slots=True)
class Parquet:
    """A Parquet file or a folder of them. As a source it is bounded.

    Args:
        path: File or folder.
        schema: The columns to read, as Spark DDL; needed to read, not to write.
    """

    path: str
    schema: Schema | str | None = None


@dataclass(frozen=True, slots=True)
class Csv:
    """A CSV file or a folder of them. As a source it is bounded.

    A line that does not fit the schema fails the stage and is shown: nothing is dropped.

    Args:
        path: File or folder.
        schema: The columns in the file's order, as Spark DDL; needed to read, not to write.
        header: The first line of each file holds the names.
        delimiter: What stands between two fields.
        options: Further options of Spark's CSV reader or writer, for instance ``timestampFormat``.
    """

    path: str
    schema: Schema | str | None = None
    header: bool = True
    delimiter: str = ","
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Json:
    """A file or folder of JSON lines (one object a line). As a source it is bounded.

    A line that does not fit the schema fails the stage and is shown: nothing is dropped.

    Args:
        path: File or folder.
        schema: The fields to read, as Spark DDL; needed to read, not to write.
        options: Further options of Spark's JSON reader or writer, for instance ``timestampFormat``.
    """

    path: str
    schema: Schema | str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A Kafka topic of JSON values. Unbounded, unless ``until`` says where it ends.

    A record that does not fit the schema (not JSON, a field of another type, a ``NOT NULL`` field
    without value) goes to the topic ``<name>.dead-letter`` with its bytes and coordinates.

    Args:
        name: The topic.
        schema: The fields of a value, as Spark DDL; needed to read, not to write.
        start: Where a first run begins; later runs of a stream go on where it stopped.
        until: Where reading ends, which makes the topic a bounded source. ``"latest"`` is the end
            as it is when the stage starts.
        key: Sinks only: the columns of the Kafka key. Default: the key of what is written, if any.
        partitions: Create the topic with this many partitions where it does not exist. A sink is
            always created; a source only if this is given.
        servers: ``host:port[,host:port]`` of its broker, where it is not the setting's.
        on_error: ``"dead-letter"``, or ``"fail"`` to stop at the first bad record.

    Raises:
        ConfigurationError: The name is empty, ``start`` is after the end, or a time has no zone.
    """

    name: str
    schema: Schema | str | None = None
    start: Position = "earliest"
    until: Position | None = None
    key: str | tuple[str, ...] | None = None
    partitions: int | None = None
    servers: str | None = None
    on_error: Literal["dead-letter", "fail"] = "dead-letter"

    def __post_init__(self) -> None:
        if not self.name:
            msg = "KafkaTopic name='' names no topic; pass the topic's name"
            raise ConfigurationError(msg)
        if self.on_error not in ("dead-letter", "fail"):
            msg = f"on_error={self.on_error!r} of topic {self.name!r} is not 'dead-letter' or 'fail'"
            raise ConfigurationError(msg)
        for what, place in (("start", self.start), ("until", self.until)):
            _check_position(self.name, what, place)
        if self.until == "earliest":
            msg = f"until='earliest' of topic {self.name!r} ends before its first record; pass 'latest'"
            raise ConfigurationError(msg)

    @property
    def dead_letter(self) -> str:
        """The topic that takes its bad records."""
        return f"{self.name}.dead-letter"


@dataclass(frozen=True, slots=True)
class Frame:
    """A bounded source made by a function; see `from_frame`."""

    function: Callable[..., Any]
    schema: Schema | str


def from_frame(function: Callable[..., Any], schema: Schema | str) -> Frame:
    """A bounded source from any function that takes a SparkSession and returns a DataFrame.

    Args:
        function: ``spark -> DataFrame``; called when the stage runs, not when it is declared.
        schema: The columns the frame will have, as Spark DDL; checked when it runs.
    """
    return Frame(function, schema)


Source = Parquet | Csv | Json | KafkaTopic | Frame
Sink = Parquet | Csv | Json | KafkaTopic


def _check_position(topic: str, what: str, place: object) -> None:
    match place:
        case None | "earliest" | "latest" | Mapping():
            return
        case datetime() if place.tzinfo is not None:
            return
        case datetime():
            msg = (
                f"{what}={place} of topic {topic!r} has no time zone: it would mean another moment on "
                "another machine; pass datetime(..., tzinfo=UTC)"
            )
        case _:
            msg = (
                f"{what}={place!r} of topic {topic!r} is not a place in a topic; pass 'earliest', "
                "'latest', a datetime with its zone, or {partition: offset}"
            )
    raise ConfigurationError(msg)
