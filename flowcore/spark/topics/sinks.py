"""Sinks: write bounded frames to topics and files, and configure the sinks of live queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from flowcore.api.connectors import Csv, Files, Json, KafkaTopic, Parquet, Sink
from flowcore.api.operators import Read, Write
from flowcore.durations import MILLISECOND
from flowcore.errors import PlanError, StateError
from flowcore.kafka.security import spark_login
from flowcore.kafka.topics import TopicLimits, ensure_topics, topic_limits
from flowcore.planner.model import LiveQuery
from flowcore.spark.context import Context
from flowcore.spark.frame.rows import BAD_REASON
from flowcore.spark.frame.sql import TIME_FORMATS, literal, quote
from flowcore.spark.topics.messages import (
    LARGEST_BYTES,
    NULL_TEXT,
    bad_record_headers,
    bounded_key,
    headers,
    kafka_key,
    tag,
)
from flowcore.spark.topics.values import write_message

__all__ = [
    "DEAD_LETTER_CONFIGS",
    "largest_batch_bytes",
    "sink_options",
    "start_files",
    "write_bad_records",
    "write_files",
    "write_topic",
]

_BULK_BATCH_BYTES = 512 << 10
_DEFAULT_PARTITIONS = 1
_NTH = "_nth"

DEAD_LETTER_CONFIGS = {"max.message.bytes": str(LARGEST_BYTES)}
"""A dead letter is larger than its message, which may have been as large as the source's topic accepts."""


def sink_options(query: LiveQuery, limits: Iterable[TopicLimits], timeout: timedelta) -> dict[str, str]:
    """Options of a live query's Kafka sink.

    Args:
        limits: Those of the topics that it writes to.
        timeout: The longest time until the broker has accepted a record.
    """
    timeout_ms = timeout // MILLISECOND
    patience = {
        "kafka.delivery.timeout.ms": str(timeout_ms),
        "kafka.max.block.ms": str(min(timeout_ms, 60_000)),
        "kafka.request.timeout.ms": str(min(timeout_ms // 2, 30_000)),
    }
    if query.mode.value == "realtime":
        return {**patience, **_client_options(limits), "kafka.linger.ms": "0"}
    return {**patience, **_client_options(limits, _BULK_BATCH_BYTES), "kafka.linger.ms": "50"}


def largest_batch_bytes(limits: Iterable[TopicLimits], wanted: int = _BULK_BATCH_BYTES) -> int:
    """The size of a client's batches of messages, at most the smallest limit of the topics.

    The client would split a refused batch into batches of the same size, and wait for minutes until it gives
    up.
    """
    return min([wanted, *(one.max_message_bytes for one in limits)])


def write_topic(sink: Write, topic: KafkaTopic, frame: DataFrame, context: Context, version: str) -> None:
    """Write a bounded frame to a topic; create the topic if it does not exist.

    Rows of a table have no timestamp, so tagged elements are records without one. The record id of a row is
    made of ``version``, which stands for the stage's input, of the message, and of its number among equal
    messages. So a stage that runs again over the same input gives equal rows the same ids.
    """
    columns = {column: quote(column) for column in sink.columns}
    value, misfit = write_message(sink, context.writable(topic), columns, frame)
    if misfit is not None:
        stop = f"raise_error(concat({literal(f'a row for topic {topic.name} ')}, {misfit}))"
        value = f"CASE WHEN {misfit} IS NULL THEN {value} ELSE CAST({stop} AS BINARY) END"
    found: dict[str, str] = {}
    if topic.elements == "tagged":
        value, found = tag(topic, None, value)
    messages = frame.selectExpr(
        f"{kafka_key(sink.key, columns)} AS key",
        f"{value} AS value",
        *(f"{text} AS {quote(name)}" for name, text in found.items()),
    )
    found = {name: quote(name) for name in found}
    same = Window.partitionBy(F.expr("xxhash64(key, value)")).orderBy("key", "value")
    numbered = messages.withColumn(_NTH, F.row_number().over(same) - 1)
    head = literal(f"{context.flow}/{sink.name}:{version}:")
    record_id = f"concat({head}, lower(hex(xxhash64(key, value))), ':', {_NTH})"
    records = numbered.selectExpr(
        "key", "value", f"{headers({'flowcore-id': record_id, **found})} AS headers"
    )
    _send(records, topic.name, topic, context)


def write_bad_records(node: Read, topic: KafkaTopic, bad: DataFrame, context: Context) -> int:
    """Write bad records to their dead-letter topic and return their number."""
    bad = bad.persist()
    count = bad.count()
    if count:
        key = bounded_key("key", LARGEST_BYTES) if "key" in bad.columns else NULL_TEXT
        found = bad_record_headers(node, BAD_REASON, "unix_millis(timestamp)")
        records = bad.selectExpr(f"{key} AS key", "value", f"{found} AS headers")
        _send(records, topic.dead_letter, topic, context, DEAD_LETTER_CONFIGS)
    bad.unpersist()
    return count


def write_files(sink: Files, frame: DataFrame, folder: str) -> None:
    """Write a bounded frame to the files of a folder."""
    kind, options = _file_format(sink)
    if isinstance(sink, Csv):
        frame = frame.selectExpr(*_csv_columns(sink, frame))
    writer = frame.write.mode("overwrite").format(kind).options(**options)
    writer.partitionBy(*sink.partition_by).save(folder)


def start_files(
    query: LiveQuery, sink: Sink, writer: DataStreamWriter, context: Context, batches: Iterable[int]
) -> StreamingQuery:
    """Start a query that appends files to a folder. Spark's own log in the folder makes each batch atomic.

    Args:
        batches: The numbers of the batches that the query's checkpoint has planned.

    Raises:
        StateError: The folder has batches of another checkpoint.
    """
    if isinstance(sink, KafkaTopic):
        msg = f"topic {sink.name!r} is not a folder of files"
        raise PlanError(msg)
    kind, options = _file_format(sink)
    folder = context.path(sink.path)
    written = max(_batches_in(folder, context.spark), default=-1)
    if written > max(batches, default=-1):
        msg = (
            f"sink folder {folder} has the batches up to {written} of another checkpoint than that of query "
            f"{query.name!r}: Spark would take batches with these numbers for written and drop their "
            "records; write to a new folder, or remove this one"
        )
        raise StateError(msg)
    return writer.format(kind).options(**options).partitionBy(*sink.partition_by).start(folder)


def _batches_in(folder: str, spark: SparkSession) -> Iterator[int]:
    """The numbers of the batches in the log of Spark's file sink; none if the folder has no log."""
    java: Any = spark._jvm  # noqa: SLF001 - PySpark shows no file systems
    log = java.org.apache.hadoop.fs.Path(folder, "_spark_metadata")
    files = log.getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001
    for each in files.listStatus(log) if files.exists(log) else ():
        number = each.getPath().getName().removesuffix(".compact")
        if number.isdigit():
            yield int(number)


def _csv_columns(sink: Csv, frame: DataFrame) -> Iterator[str]:
    """The columns of CSV files; a value that would not be read again as it is fails the stage."""
    in_lines = [name for name in frame.columns if name not in sink.partition_by]
    keeps_lines = {"multiline", "linesep"}.isdisjoint(name.lower() for name in sink.options)
    for name, kind in frame.dtypes:
        value, where = quote(name), f"column {name!r} of the CSV files in {sink.path}"
        cases = []
        if [name] == in_lines:
            msg = (
                f"{where} is null, and there is no other column: the row would be an empty line, which is "
                "skipped; write another column with it"
            )
            cases.append(f"WHEN {value} IS NULL THEN raise_error({literal(msg)})")
        if kind == "string" and keeps_lines and name in in_lines:
            msg = (
                f"{where} holds a line break, which a reader of lines takes for the end of the row: pass "
                "options={'multiLine': 'true'} to the sink and to its sources, or replace it in a select"
            )
            line_break = literal(r"[\r\n]")
            cases.append(f"WHEN {value} RLIKE {line_break} THEN raise_error({literal(msg)})")
        yield f"CASE {' '.join(cases)} ELSE {value} END AS {value}" if cases else value


def _file_format(sink: Files) -> tuple[str, Mapping[str, str]]:
    match sink:
        case Parquet():
            return "parquet", {}
        case Csv():
            return "csv", {
                "header": str(sink.header).lower(),
                "sep": sink.delimiter,
                "ignoreLeadingWhiteSpace": "false",  # by default Spark trims texts when it writes them
                "ignoreTrailingWhiteSpace": "false",
                **TIME_FORMATS,
                **sink.options,
            }
        case Json():
            return "json", {**TIME_FORMATS, **sink.options}


def _client_options(limits: Iterable[TopicLimits], batch_bytes: int = 16 << 10) -> dict[str, str]:
    """Options of a Kafka client that writes messages as large as its topics accept."""
    return {
        "kafka.max.request.size": str(LARGEST_BYTES),
        "kafka.buffer.memory": str(2 * LARGEST_BYTES),
        "kafka.batch.size": str(largest_batch_bytes(limits, batch_bytes)),
    }


def _send(
    records: DataFrame,
    name: str,
    topic: KafkaTopic,
    context: Context,
    configs: Mapping[str, str] | None = None,
) -> None:
    servers = context.servers(topic)
    ensure_topics(servers, {name: topic.partitions or _DEFAULT_PARTITIONS}, configs)
    limits = topic_limits(servers, [name]).values()
    options = {**spark_login(servers), "topic": name, **_client_options(limits)}
    records.write.format("kafka").options(**options).save()
