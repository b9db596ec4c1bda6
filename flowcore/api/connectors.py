"""Connectors: where does a flow read from and write to?

Plain descriptions; nothing here opens a file or a socket. Relative paths are taken from the
setting ``data.dir``, broker addresses from ``kafka.bootstrap.servers``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

from flowcore.api.schema import Schema
from flowcore.api.value_formats import check_format
from flowcore.errors import ConfigurationError
from flowcore.watermarks.strategies import WatermarkStrategy

__all__ = [
    "ADDED_LATER",
    "Csv",
    "Elements",
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

Elements = Literal["plain", "tagged", "value-only", "auto"]
"""What a topic carries beside the values themselves; see `KafkaTopic`."""

ADDED_LATER = {"fingerprint": "unless default"}
"""Metadata of a field that older results know nothing of: left at its default it changes no fingerprint."""


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
    """A Kafka topic. Unbounded, unless ``until`` says where it ends.

    A record that does not fit format and schema (not JSON, a field of another type, a ``NOT NULL``
    field without value) goes to the topic ``<name>.dead-letter`` with its bytes and coordinates.

    Args:
        name: The topic.
        schema: The fields of a value, as Spark DDL; needed to read, and to write other formats than JSON.
        start: Where a first run begins; later runs of a stream go on where it stopped.
        until: Where reading ends, which makes the topic a bounded source. ``"latest"`` is the end
            as it is when the stage starts.
        key: Sinks only: the columns of the Kafka key. Default: the key of what is written, if any.
        partitions: Create the topic with this many partitions where it does not exist. A sink is
            always created; a source only if this is given.
        servers: ``host:port[,host:port]`` of its broker, where it is not the setting's.
        on_error: ``"dead-letter"``, or ``"fail"`` to stop at the first bad record.
        event_time: Sources only: column or Spark SQL expression of a record's timestamp, BIGINT
            milliseconds since 1970 or TIMESTAMP. Default: the timestamp that Kafka keeps.
        watermark: Sources only: how far the records move event time; see `flowcore.watermarks`. Where
            the topic is bounded, only the end of the input moves it.
        elements: What travels beside the values. ``"plain"``: nothing, a value is a JSON object.
            ``"tagged"``: timestamps and watermarks, in front of the value or in headers, for another
            flow to read. ``"value-only"``: stream elements of which only the values are written, byte
            for byte as ``"plain"``; a watermark that would have to be written is an error. ``"auto"``,
            sinks only: tagged or value-only, as the plan finds that the flow needs timestamps or not.
        headers: Of tagged elements, put tag and timestamp into Kafka headers, so that readers that know
            nothing of them find the value as it is.
        flushed: Sources only: whoever writes the topic holds results back, and lets them go once in this time
            (a flush interval). What is held back behind it then leaves right after them, and not an interval
            later.
        format: What a value looks like in bytes: ``json``, ``avro``, ``avro-confluent``, ``fixed``,
            ``protobuf``, ``raw``, or one that you `flowcore.serializers.formats.register`.
        format_options: What the format takes beside columns: ``schema`` and ``schema_id`` for Avro,
            ``message`` for Protobuf.

    Raises:
        ConfigurationError: The name is empty, ``start`` is after the end, a time has no zone, the
            watermark is no strategy, or headers are asked for where there is nothing to put in them.
        FormatError: The format is unknown, takes other options, or does not hold a column.
    """

    name: str
    schema: Schema | str | None = None
    start: Position = "earliest"
    until: Position | None = None
    key: str | tuple[str, ...] | None = None
    partitions: int | None = None
    servers: str | None = None
    on_error: Literal["dead-letter", "fail"] = "dead-letter"
    event_time: str | None = field(default=None, metadata=ADDED_LATER)
    watermark: WatermarkStrategy | None = field(default=None, metadata=ADDED_LATER)
    elements: Elements = field(default="plain", metadata=ADDED_LATER)
    headers: bool = field(default=False, metadata=ADDED_LATER)
    flushed: timedelta | None = field(default=None, metadata=ADDED_LATER)
    format: str = field(default="json", metadata=ADDED_LATER)
    format_options: Mapping[str, Any] = field(default_factory=dict, hash=False, metadata=ADDED_LATER)

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
        _check_elements(self)
        _check_flushed(self)
        check_format(self)

    @property
    def dead_letter(self) -> str:
        """The topic that takes its bad records."""
        return f"{self.name}.dead-letter"

    @property
    def events(self) -> str:
        """The companion topic: what travels beside its records, such as latency markers."""
        return f"{self.name}.events"


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


def _check_elements(topic: KafkaTopic) -> None:
    given: object = topic.watermark
    if given is not None and not isinstance(given, WatermarkStrategy):
        msg = (
            f"watermark={given!r} of topic {topic.name!r} is no strategy: event time would stand still; pass "
            "for instance bounded_out_of_orderness(timedelta(seconds=4))"
        )
    elif topic.elements not in get_args(Elements):
        msg = (
            f"elements={topic.elements!r} of topic {topic.name!r} is none of {', '.join(get_args(Elements))}"
        )
    elif topic.headers and topic.elements in ("plain", "value-only"):
        msg = (
            f"headers=True of topic {topic.name!r} with elements={topic.elements!r}: there is neither tag "
            "nor timestamp to put into headers; pass elements='tagged', or leave headers out"
        )
    else:
        return
    raise ConfigurationError(msg)


def _check_flushed(topic: KafkaTopic) -> None:
    length: object = topic.flushed
    if length is not None and (not isinstance(length, timedelta) or length <= timedelta(0)):
        msg = (
            f"flushed={length!r} of topic {topic.name!r} is no time between two flushes of its writer; pass "
            "for instance timedelta(minutes=2), or leave it out"
        )
        raise ConfigurationError(msg)


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
