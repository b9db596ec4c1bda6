"""Histories of topics: a bounded result as messages that a live query reads before those of the topic.

At the first start of a query, the result is written to a folder beside the checkpoint, in the order of
event time: a file for each batch, with values in the topic's format. The query reads the files with Spark's
file source, which logs in the checkpoint which files a batch reads, so that a killed query repeats exactly
its last batch. Meanwhile it reads nothing from its topics (`flowcore.spark.topics.sources.read_stream`).

A message of a history has a negative offset: the last one has -1, as if the history had been written to the
topic before its first record. Messages are in partition 0, so that they keep their order. Only the last
messages of each file are in the other partitions, one in each, so that event time advances in all partitions.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from flowcore.api.event_time import event_time_expression
from flowcore.api.operators import WithHistory
from flowcore.errors import StateError
from flowcore.spark.checkpoint.backlog_status import NO_LIMIT
from flowcore.spark.checkpoint.identity import start_anew
from flowcore.spark.checkpoint.offset_log import planned_batches
from flowcore.spark.context import Context
from flowcore.spark.frame.branches import Branch
from flowcore.spark.frame.rows import FIRST_BRANCH, UNWRITABLE
from flowcore.spark.frame.sql import displayable_timestamp, literal, quote
from flowcore.spark.topics.event_times import milliseconds
from flowcore.spark.topics.values import write_value

__all__ = ["end_histories", "histories_pending", "prepare_history", "read_history"]

_READ = "history-read"
"""The file in a checkpoint that marks its histories as read."""
_INDEX = "_index.json"
_SCHEMA = f"position BIGINT, timestamp TIMESTAMP, value BINARY, {UNWRITABLE} STRING"
_ROW_BITS = 33
"""The bits of Spark's `monotonically_increasing_id` that number the rows of a task."""


def histories_pending(checkpoint: Path) -> bool:
    """Whether a query with histories has not read all of them."""
    return not (checkpoint / _READ).exists()


def end_histories(checkpoint: Path) -> None:
    """Note that a query has read its histories, in a committed batch."""
    (checkpoint / _READ).touch()


def prepare_history(
    node: WithHistory, history: DataFrame, checkpoint: Path, context: Context, *, partitions: int
) -> None:
    """Write the messages of a history, unless a batch has been planned that may have read some.

    Args:
        partitions: The number of partitions of the topic.
    """
    folder = _folder(node, checkpoint)
    if planned_batches(checkpoint):
        return
    part = folder.with_name(f".{folder.name}.part")
    for each in (part, folder):
        shutil.rmtree(each, ignore_errors=True)
    rows, ordered = _messages(node, history, context)
    found = rows.count()
    files = max(1, -(-found // context.settings.max_batch_records))
    if ordered:
        rows = rows.repartitionByRange(files, "at_ms").sortWithinPartitions("at_ms")
    else:
        rows = rows.repartition(files)
    numbered = rows.selectExpr("monotonically_increasing_id() AS position", "timestamp", "value", UNWRITABLE)
    numbered.write.parquet(str(part))
    _index(part, partitions)
    part.replace(folder)


def read_history(node: WithHistory, checkpoint: Path, context: Context, names: list[str]) -> DataFrame:
    """The messages of a history as a stream, with columns of Spark's Kafka source and `UNWRITABLE`.

    Raises:
        StateError: The folder of the history is missing.
    """
    folder = _folder(node, checkpoint)
    if not (folder / _INDEX).exists():
        msg = (
            f"operator {node.name!r}: {folder} is missing, a source of checkpoint {checkpoint}: what was not "
            "read of it would be missing in the state; bring the folder back, or start anew: "
            f"{start_anew([checkpoint])}"
        )
        raise StateError(msg)
    index: Mapping[str, Any] = json.loads((folder / _INDEX).read_text())
    sizes, partitions = index["rows"], index["partitions"]
    # By task that wrote a file: the offset of its first row, and its number of rows.
    begins, at = [], -sum(sizes)
    for size in sizes:
        begins.append(at)
        at += size
    task = f"CAST(shiftright(position, {_ROW_BITS}) AS INT)"
    row = f"(position & {(1 << _ROW_BITS) - 1})"
    left = f"(get({_array(sizes)}, {task}) - 1 - {row})"
    texts = {
        "topic": literal(node.live_topic.name),
        "partition": f"CAST(greatest({partitions - 1} - {left}, 0) AS INT)",
        "offset": f"get({_array(begins)}, {task}) + {row}",
        "value": "value",
        "timestamp": "timestamp",
        "headers": "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>)",
        "key": "CAST(NULL AS BINARY)",
        "timestampType": "0",
    }
    stream = (
        context.spark.readStream.schema(_SCHEMA)
        .options(maxFilesPerTrigger=1, fileNameOnly=True, maxFileAge=NO_LIMIT)
        .parquet(str(folder))
    )
    return stream.selectExpr(*(f"{texts[name]} AS {name}" for name in names), UNWRITABLE)


def _messages(node: WithHistory, history: DataFrame, context: Context) -> tuple[DataFrame, bool]:
    """The values and timestamps of a history up to the seam, and whether they have an order."""
    topic, schema = context.readable(node.live_topic), node.live.schema
    names = {name.lower(): quote(name) for name in history.columns}
    rows = history.selectExpr(
        *(f"CAST({names[one.name.lower()]} AS {one.type}) AS {quote(one.name)}" for one in schema.columns)
    )
    columns = {each.name: quote(each.name) for each in schema.columns}
    expression = event_time_expression(node.live)
    time = "CAST(NULL AS BIGINT)"
    if expression is not None:
        own = Branch(FIRST_BRANCH, {each.name: each.name for each in schema.columns})
        time = milliseconds(rows, own.expression(expression))
    value, reason = write_value(topic, columns, rows)
    if reason is None or topic.format == "json":
        reason = "NULL"  # the reader finds out
    now = f"timestamp_millis({context.clock.now_ms()})"
    found = rows.selectExpr(
        f"CAST({value} AS BINARY) AS value",
        # The value is JSON then, of which the topic's format might make another row.
        f"CAST({reason} AS STRING) AS {UNWRITABLE}",
        f"{time} AS at_ms",
        f"coalesce({displayable_timestamp(time)}, {now}) AS timestamp",
    )
    if node.at_ms is not None:
        found = found.where(f"coalesce(at_ms < {node.at_ms}, true)")
    return found, expression is not None


def _index(folder: Path, partitions: int) -> None:
    """Give the files their order, and write their sizes by the number of the task that wrote them."""
    sizes: dict[int, int] = {}
    for file in sorted(folder.glob("part-*.parquet")):
        task = int(file.name.split("-")[1])
        sizes[task] = pq.read_metadata(file).num_rows
        file.rename(folder / f"{task:06}.parquet")
    for other in folder.glob(".*.crc"):
        other.unlink()
    for number, file in enumerate(sorted(folder.glob("*.parquet")), 1):
        os.utime(file, (number, number))  # Spark reads the oldest file first
    rows = [sizes.get(task, 0) for task in range(max(sizes, default=-1) + 1)]
    (folder / _INDEX).write_text(json.dumps({"rows": rows, "partitions": partitions}))


def _array(values: list[int]) -> str:
    return f"array({', '.join(f'{each}L' for each in values)})"


def _folder(node: WithHistory, checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}.history") / node.live.name
