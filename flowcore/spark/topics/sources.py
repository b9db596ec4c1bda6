"""Sources: read bounded sources as tables, with their versions, and topics as streams."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from flowcore.api.connectors import Csv, Frame, Json, KafkaTopic, Parquet
from flowcore.api.operators import Read
from flowcore.api.schema import Column
from flowcore.durations import MILLISECOND
from flowcore.errors import PlanError
from flowcore.kafka.security import spark_login
from flowcore.kafka.topics import end_offsets, identify_topics
from flowcore.planner.model import LiveQuery
from flowcore.settings import Settings
from flowcore.spark.context import Context, broker_of, path_of
from flowcore.spark.frame.sql import STRICT_TIMES
from flowcore.spark.topics.incoming import Incoming
from flowcore.spark.topics.offsets import OffsetRange, offset_range, offsets_json, start_offsets
from flowcore.spark.topics.source_files import files_version

__all__ = [
    "BoundedInput",
    "columns_ddl",
    "read_bounded",
    "read_files",
    "read_stream",
    "source_offsets",
    "source_version",
]


_ATTEMPTS = 3
_ISOLATION = "kafka.isolation.level"
_HELD = {"minOffsetsPerTrigger": str(1 << 62), "maxTriggerDelay": "365000d"}
"""A batch waits for more messages than there will ever be."""
_BULK_READ = {
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    # A batch reads records that exist. A client that has read them all asks for more and waits, by default
    # for 500 ms; until then Spark's request for the end of the partition is not answered.
    "kafka.fetch.max.wait.ms": "10",
}
_NO_TEXT = "\0flowcore: null"
"""A text that no CSV file has. By default an empty text, in quotes, is the same null as an empty field."""
_POLLED = "kafka.max.poll.records"
"""How many messages a task unpacks at once."""


@dataclass(frozen=True, slots=True)
class BoundedInput:
    """A bounded source as frames.

    Attributes:
        frame: The good records, with exactly the declared columns.
        bad: Bad messages, with the reason; None if the first bad message fails the stage.
    """

    frame: DataFrame
    bad: DataFrame | None = None


def source_offsets(node: Read, settings: Settings) -> OffsetRange:
    """The offsets that a bounded topic has now; those of other sources are empty.

    Raises:
        PlanError: The topic does not have these offsets.
        BrokerError: A broker cannot be reached.
    """
    topic = node.topic
    return ({}, {}) if topic is None else offset_range(topic, broker_of(topic, settings))


def source_version(node: Read, settings: Settings, offsets: OffsetRange) -> str:
    """The current version of a bounded source: text that changes when the content may have changed.

    It is empty if no version is known, as for a function. ``offsets`` are those of `source_offsets`.

    Raises:
        RunError: The source does not exist, or leads to other files by a link of another user.
        BrokerError: A broker cannot be reached.
    """
    match node.source:
        case KafkaTopic() as topic:
            servers = broker_of(topic, settings)
            start, end = offsets
            found = identify_topics(servers, [topic.name])[topic.name]
            which = f"{topic.name} ({found.id if found else ''}) at {servers}"
            return f"{which} from {offsets_json(topic, start)} to {offsets_json(topic, end)}"
        case Frame():
            return ""
        case files:
            return files_version(node.name, path_of(files.path, settings))


def read_bounded(node: Read, context: Context, offsets: OffsetRange) -> BoundedInput:
    """Read a bounded source; ``offsets`` are those of `source_offsets`."""
    match node.source:
        case KafkaTopic() as topic:
            return _read_topic(node, topic, context, offsets)
        case Frame(function=function):
            frame = function(context.spark)
            _require_columns(node, frame.columns, "its function returned")
        case Parquet(path=path):
            frame = context.spark.read.parquet(context.path(path))
            _require_columns(node, frame.columns, f"{path} has")
        case files:
            frame = read_files(files, columns_ddl(node), context, mode="FAILFAST")
    return BoundedInput(_cast_columns(node, frame))


def read_files(source: Csv | Json, ddl: str, context: Context, *, mode: str, **options: str) -> DataFrame:
    """Read files with a schema; ``mode`` says what becomes of a line that does not fit it."""
    path = context.path(source.path)
    if isinstance(source, Json):
        options |= {"mode": mode, **STRICT_TIMES}
        return context.spark.read.options(**options).options(**source.options).schema(ddl).json(path)
    options |= {"header": str(source.header).lower(), "sep": source.delimiter, "enforceSchema": "false"}
    options |= {"nullValue": _NO_TEXT, "dateFormat": STRICT_TIMES["dateFormat"]}
    return context.spark.read.options(mode=mode, **options).options(**source.options).schema(ddl).csv(path)


def read_stream(
    topic: KafkaTopic, query: LiveQuery, context: Context, *, events: bool, held: bool = False
) -> DataFrame:
    """The messages of a topic and, if ``events``, of its companion topic, as Spark's source returns them.

    Only a new checkpoint uses the start position; later runs continue where the last one stopped. If
    ``held``, no message is read: the start position of a new checkpoint is logged, and waits.
    """
    servers = context.servers(topic)
    options = {
        **spark_login(servers),
        _ISOLATION: topic.isolation,
        "subscribe": f"{topic.name},{topic.events}" if events else topic.name,
        "startingOffsets": topic.start
        if isinstance(topic.start, str)
        else offsets_json(topic, start_offsets(topic, servers), _latest_of(topic, servers) if events else ()),
    }
    options |= _patience(context.settings)
    if _has_headers(topic):
        options["includeHeaders"] = "true"
    if query.mode.value != "realtime":
        options |= _bulk_read(topic)
    if held:
        options |= _HELD
    elif query.mode.value != "realtime" and query.batch_interval_ms is None:
        # If results are emitted once in an interval, a batch reads all input: with bounded batches results
        # would be emitted more often, or input would arrive faster than it is read.
        options["maxOffsetsPerTrigger"] = str(context.settings.max_batch_records)
    return context.spark.readStream.format("kafka").options(**options).load()


def _latest_of(topic: KafkaTopic, servers: str) -> list[int]:
    """The partitions of its companion topic, whose markers before a start at some offsets mean nothing."""
    return [*end_offsets(servers, topic.events)]


def _has_headers(topic: KafkaTopic) -> bool:
    """Whether headers of its messages are read."""
    return topic.elements == "tagged" or topic.deduplicate


def _bulk_read(topic: KafkaTopic) -> dict[str, str]:
    """Options with which a batch reads many messages at once.

    Each may have a megabyte when it is unpacked, and channels and ids are easily forged, so a topic with
    headers keeps Kafka's own number of messages. Others are read faster with more.
    """
    return _BULK_READ | {_POLLED: "500" if _has_headers(topic) else "5000"}


def _patience(settings: Settings) -> dict[str, str]:
    """How long a batch waits for the broker: the driver for offsets, and tasks for records."""
    timeout_ms = settings.answer_timeout // MILLISECOND
    attempt_ms = timeout_ms // _ATTEMPTS
    return {
        "fetchOffset.numRetries": str(_ATTEMPTS),
        "kafka.default.api.timeout.ms": str(attempt_ms),
        "kafka.request.timeout.ms": str(min(attempt_ms, 30_000)),
        "kafkaConsumer.pollTimeoutMs": str(timeout_ms),
    }


def _read_topic(node: Read, topic: KafkaTopic, context: Context, offsets: OffsetRange) -> BoundedInput:
    servers, (start, end) = context.servers(topic), offsets
    messages = (
        context.spark.read.format("kafka")
        .options(**spark_login(servers), **{_ISOLATION: topic.isolation}, subscribe=topic.name)
        .option("startingOffsets", offsets_json(topic, start))
        .option("endingOffsets", offsets_json(topic, end))
        .options(includeHeaders=str(_has_headers(topic)).lower(), **_bulk_read(topic))
        .load()
    )
    # The registry is asked after the end is known: until then each record's schema was registered.
    found = context.schemas.bounded(topic, context.settings)
    return BoundedInput(*Incoming.bounded(node, found).split(messages))


def _cast_columns(node: Read, frame: DataFrame) -> DataFrame:
    """The declared columns in their declared types; a null in a NOT NULL column fails the stage."""
    found = []
    for column in node.schema.columns:
        value = F.col(f"`{column.name}`")
        if _is_wider(node, column):
            msg = f"source '{node.name}': column '{column.name}' is declared {column.type} and holds "
            fits = value.isNull() | value.between(-128, 127)
            value = F.when(fits, value).otherwise(F.raise_error(F.concat(F.lit(msg), value)))
        value = value.cast(column.type)
        if not column.nullable:
            msg = f"source '{node.name}': column '{column.name}' is declared NOT NULL and holds a null"
            value = F.coalesce(value, F.raise_error(F.lit(msg)).cast(column.type))
        found.append(value.alias(column.name))
    return frame.select(found)


def _require_columns(node: Read, found: list[str], what: str) -> None:
    known = {column.lower() for column in found}
    missing = [column.name for column in node.schema.columns if column.name.lower() not in known]
    if missing:
        msg = (
            f"source {node.name!r} declares the column {missing[0]!r}, and {what} {', '.join(found)}: it "
            "would be null in every row; correct the schema"
        )
        raise PlanError(msg)


def columns_ddl(node: Read) -> str:
    """The columns of a source as Spark's readers of files get them: as DDL, without NOT NULL."""
    types = {each: "SMALLINT" if _is_wider(node, each) else each.type for each in node.schema.columns}
    return ", ".join(f"`{column.name}` {kind}" for column, kind in types.items())


def _is_wider(node: Read, column: Column) -> bool:
    """Whether a column is read as SMALLINT, since Spark's reader of JSON makes -56 of a TINYINT of 200."""
    return isinstance(node.source, Json) and column.type == "TINYINT"
