"""Sinks: in what form does a record leave, and how do files appear whole?

A Kafka value is a JSON object of the columns; the key is the text of one column, or a JSON object of
several. A bad record leaves with its own bytes, and its coordinates and the reason as headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from flowcore.api.connectors import Csv, Json, KafkaTopic, Parquet, Sink
from flowcore.api.operators import Read, Write
from flowcore.errors import PlanError
from flowcore.kafka.elements import ELEMENT_HEADER
from flowcore.kafka.limits import TopicLimits, topic_limits
from flowcore.kafka.security import spark_login
from flowcore.kafka.topics import ensure_topics
from flowcore.spark.context import Context
from flowcore.spark.frame.rows import BAD_REASON
from flowcore.spark.frame.sql import literal, quote, struct
from flowcore.spark.topics import elements
from flowcore.spark.topics.values import written

__all__ = [
    "DEAD_LETTER_CONFIGS",
    "bad_record_headers",
    "headers",
    "kafka_key",
    "kafka_value",
    "start_files",
    "write_bad_records",
    "write_files",
    "write_options",
    "write_topic",
]

_DEFAULT_PARTITIONS = 1
_LARGEST_BYTES = 64 << 20
_NULL = "CAST(NULL AS STRING)"

# A dead letter is larger than the message that it was, which may have been as large as its topic takes.
DEAD_LETTER_CONFIGS = {"max.message.bytes": str(_LARGEST_BYTES)}


def write_options(limits: Iterable[TopicLimits], batch_bytes: int = 16 << 10) -> dict[str, str]:
    """Options of a Kafka client that writes messages as large as its topics take.

    No batch is larger than the smallest topic takes: the client would split a batch that is refused into
    batches of the same size, and wait for minutes for them to be taken.
    """
    return {
        "kafka.max.request.size": str(_LARGEST_BYTES),
        "kafka.buffer.memory": str(2 * _LARGEST_BYTES),
        "kafka.batch.size": str(min([batch_bytes, *(one.max_message_bytes for one in limits)])),
    }


def kafka_value(topic: KafkaTopic, columns: Mapping[str, str], frame: DataFrame) -> str:
    """The value of some columns of a frame, by name, as bytes; fields that are null are left out of JSON."""
    return written(topic, columns, frame)


def kafka_key(names: Sequence[str] | None, columns: Mapping[str, str]) -> str:
    """The key as text: null without a key, one column's text, a JSON object of several or none."""
    if names is None:
        return "CAST(NULL AS STRING)"
    if len(names) == 1:
        return f"CAST({columns[names[0]]} AS STRING)"
    return f"to_json({struct({name: columns[name] for name in names})})" if names else "'{}'"


def headers(values: Mapping[str, str]) -> str:
    """Kafka headers as the sink takes them."""
    if not values:
        return "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>)"
    pairs = (
        struct({"key": literal(name), "value": f"CAST({value} AS BINARY)"}) for name, value in values.items()
    )
    return f"array({', '.join(pairs)})"


def bad_record_headers(node: Read, reason: str, timestamp_ms: str | None = None, failed: str = _NULL) -> str:
    """Where a bad message was, at which operator it was found to be bad, and why.

    Args:
        node: The source.
        reason: SQL text of the reason.
        timestamp_ms: SQL text of the time that Kafka keeps, where it is known.
        failed: SQL text of the operator whose function failed for it, null where it could not be read.
    """
    found = {
        "flowcore-topic": "topic",
        "flowcore-partition": "CAST(partition AS STRING)",
        "flowcore-offset": "CAST(offset AS STRING)",
        "flowcore-operator": f"coalesce({failed}, {literal(node.name)})",
        "flowcore-stage": f"CASE WHEN {failed} IS NULL THEN 'read' ELSE 'function' END",
        "flowcore-reason": reason,
    }
    if timestamp_ms is not None:
        found["flowcore-timestamp"] = f"CAST({timestamp_ms} AS STRING)"
    return headers(found)


def write_topic(sink: Write, topic: KafkaTopic, frame: DataFrame, context: Context) -> None:
    """Write a bounded frame to a topic, which is created if it does not exist.

    Rows of a table have no timestamp: as tagged elements they are records without one.
    """
    columns = {column: quote(column) for column in sink.columns}
    value, found = kafka_value(topic, columns, frame), {}
    if topic.elements == "tagged" and topic.headers:
        found[ELEMENT_HEADER] = elements.tagged_record(None, "X''")
    elif topic.elements == "tagged":
        value = elements.tagged_record(None, value)
    records = frame.selectExpr(
        f"{kafka_key(sink.key, columns)} AS key", f"{value} AS value", f"{headers(found)} AS headers"
    )
    _send(records, topic.name, topic, context)


def write_bad_records(node: Read, topic: KafkaTopic, bad: DataFrame, context: Context) -> int:
    """Write bad records to their dead-letter topic; returns how many there were."""
    bad = bad.persist()
    count = bad.count()
    if count:
        records = bad.selectExpr(
            "value", f"{bad_record_headers(node, BAD_REASON, 'unix_millis(timestamp)')} AS headers"
        )
        _send(records, topic.dead_letter, topic, context, DEAD_LETTER_CONFIGS)
    bad.unpersist()
    return count


def write_files(sink: Parquet | Csv | Json, frame: DataFrame, folder: str) -> None:
    """Write a bounded frame to the files of a folder."""
    writer = frame.write.mode("overwrite")
    match sink:
        case Parquet():
            writer.parquet(folder)
        case Csv():
            options = {"header": str(sink.header).lower(), "sep": sink.delimiter, **sink.options}
            writer.options(**options).csv(folder)
        case Json():
            writer.options(**sink.options).json(folder)


def start_files(sink: Sink, writer: DataStreamWriter, context: Context) -> StreamingQuery:
    """Start a query that appends files to a folder; Spark's own log in it makes each batch whole."""
    match sink:
        case Csv():
            options = {"header": str(sink.header).lower(), "sep": sink.delimiter, **sink.options}
            return writer.format("csv").options(**options).start(context.path(sink.path))
        case Json():
            return writer.format("json").options(**sink.options).start(context.path(sink.path))
        case Parquet():
            return writer.format("parquet").start(context.path(sink.path))
        case KafkaTopic():
            msg = f"topic {sink.name!r} is no folder of files"
            raise PlanError(msg)


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
    options = {**spark_login(servers), "topic": name, **write_options(limits)}
    records.write.format("kafka").options(**options).save()
