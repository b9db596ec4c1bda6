"""Sinks: in what form does a record leave, and how do files appear whole?

A Kafka value is a JSON object of the columns; the key is the text of one column, or a JSON object of
several. A bad record leaves with its own bytes, and its coordinates and the reason as headers.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from flowcore.errors import PlanError
from flowcore.graph.connectors import Csv, Json, KafkaTopic, Parquet, Sink
from flowcore.graph.operators import Read, Write
from flowcore.kafka.topics import ensure_topics
from flowcore.spark.context import Context

__all__ = [
    "bad_record_headers",
    "headers",
    "kafka_key",
    "kafka_value",
    "start_files",
    "write_bad_records",
    "write_files",
    "write_topic",
]

_DEFAULT_PARTITIONS = 1


def kafka_value(columns: Mapping[str, Column]) -> Column:
    """The JSON object of some columns; fields that are null are left out."""
    return F.to_json(F.struct([column.alias(name) for name, column in columns.items()]))


def kafka_key(names: Sequence[str] | None, columns: Mapping[str, Column]) -> Column:
    """The key as text: null without a key, one column's text, a JSON object of several or none."""
    if names is None:
        return F.lit(None).cast("string")
    if len(names) == 1:
        return columns[names[0]].cast("string")
    return F.to_json(F.struct([columns[name].alias(name) for name in names])) if names else F.lit("{}")


def headers(values: Mapping[str, Column]) -> Column:
    """Kafka headers as the sink takes them."""
    if not values:
        return F.lit(None).cast("array<struct<key: string, value: binary>>")
    return F.array(
        [
            F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))
            for name, value in values.items()
        ]
    )


def bad_record_headers(node: Read) -> Column:
    """Where a bad record was, and why it is bad."""
    return headers(
        {
            "flowcore-topic": F.col("topic"),
            "flowcore-partition": F.col("partition").cast("string"),
            "flowcore-offset": F.col("offset").cast("string"),
            "flowcore-operator": F.lit(node.name),
            "flowcore-reason": F.lit(f"the value is no JSON object of the schema {node.schema}"),
        }
    )


def write_topic(sink: Write, topic: KafkaTopic, frame: DataFrame, context: Context) -> None:
    """Write a bounded frame to a topic, which is created if it does not exist."""
    columns = {column: F.col(f"`{column}`") for column in sink.columns}
    records = frame.select(kafka_key(sink.key, columns).alias("key"), kafka_value(columns).alias("value"))
    _send(records, topic.name, topic, context)


def write_bad_records(node: Read, topic: KafkaTopic, bad: DataFrame, context: Context) -> int:
    """Write bad records to their dead-letter topic; returns how many there were."""
    bad = bad.persist()
    count = bad.count()
    if count:
        _send(
            bad.select("value", bad_record_headers(node).alias("headers")), topic.dead_letter, topic, context
        )
    bad.unpersist()
    return count


def write_files(sink: Parquet | Csv | Json, frame: DataFrame, context: Context) -> None:
    """Write a bounded frame to a folder, which holds the old files until the new ones are complete."""
    target = context.path(sink.path)
    part = (
        target
        if "://" in target
        else str(Path(target).with_name(f".{Path(target).name}.{secrets.token_hex(4)}"))
    )
    writer = frame.write.mode("overwrite")
    try:
        match sink:
            case Parquet():
                writer.parquet(part)
            case Csv():
                options = {"header": str(sink.header).lower(), "sep": sink.delimiter, **sink.options}
                writer.options(**options).csv(part)
            case Json():
                writer.options(**sink.options).json(part)
        if part != target:
            shutil.rmtree(target, ignore_errors=True)
            Path(part).replace(target)
    finally:
        if part != target:
            shutil.rmtree(part, ignore_errors=True)


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


def _send(records: DataFrame, name: str, topic: KafkaTopic, context: Context) -> None:
    servers = context.servers(topic)
    ensure_topics(servers, {name: topic.partitions or _DEFAULT_PARTITIONS})
    options = {"kafka.bootstrap.servers": servers, "topic": name}
    records.write.format("kafka").options(**options).save()
