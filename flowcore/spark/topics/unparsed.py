"""Which messages Python can read while it packs them, and why those that it refuses are bad.

Python reads what `flowcore.serializers.formats.json_arrow` reads: values of JSON with plain types. The reason
why a message is bad is Spark's, as for any other message, found when it has passed the exchange.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from flowcore.api.event_time import event_time_expression, marker_condition, watermark_expression
from flowcore.api.operators import Read
from flowcore.api.schema import Schema
from flowcore.errors import FormatError
from flowcore.keyed.arrow_expressions import Constant, Field
from flowcore.keyed.control import PARTITION_BITS
from flowcore.keyed.message_reader import READ_OFFSET, READ_PARTITION, READ_TIME, MessageSource
from flowcore.serializers.formats.json_arrow import JsonArrowFormat
from flowcore.serializers.formats.json_text import JsonFormat
from flowcore.spark.frame.arrow_sql import NULL, TypedExpression
from flowcore.spark.frame.branches import Branch, BranchedFrame
from flowcore.spark.frame.rows import (
    BAD_REASON,
    BRANCH,
    KAFKA_MS,
    KEY_GROUP,
    NEWEST,
    POSITION,
    RECORD_ID,
    RECORD_ORDINAL,
    SOURCE,
    TIMESTAMP_MS,
    VALUE,
    RowKind,
)
from flowcore.spark.frame.sql import literal, quote
from flowcore.spark.frame.unparsed import MESSAGE_COLUMNS, UnparsedRows, UnparsedSource
from flowcore.spark.topics.event_times import WRITTEN_MS
from flowcore.spark.topics.incoming import Incoming

__all__ = ["find_unparsed"]

_NEVER_MS = (1 << 63) - 1
_UNREAD = "_unread"
_REFUSED = literal("is not a value of its topic")
"""Where Spark finds no reason: the message is kept all the same."""


def find_unparsed(
    incoming: Incoming, messages: DataFrame, branch: Branch, branched: BranchedFrame
) -> UnparsedRows | None:
    """The messages of a source if Python can read them; None if only Spark can.

    Args:
        messages: What Spark reads of the topic.
        branched: What it makes of it, with the records in the branch.
    """
    value_format = _format_of(incoming.node.schema)
    if value_format is None or not _is_plain(incoming):
        return None
    field = _time_field(incoming.node, value_format.value_format)
    if field is None and event_time_expression(incoming.node) is not None:
        return None
    carried, strategy = incoming.side_channels, incoming.topic.watermark
    generates = strategy is not None and strategy.generates
    limit = carried.max_ahead_ms if generates else 0
    columns = MESSAGE_COLUMNS
    frame = messages.selectExpr(
        f"{incoming.number << PARTITION_BITS}L + partition AS {columns.channel}",
        f"offset AS {columns.offset}",
        f"value AS {columns.value}",
        f"unix_millis(timestamp) AS {columns.written_ms}",
        f"{f'{WRITTEN_MS} + {limit}' if limit else f'{_NEVER_MS}L'} AS {columns.latest_ms}",
    )
    bad = {
        BRANCH: int(RowKind.BAD), "topic": incoming.topic.name, SOURCE: incoming.number, RECORD_ORDINAL: "0",
    }  # fmt: skip
    reader = MessageSource(
        value_format=value_format,
        time=field,
        needs_time=incoming.missing_time is not None,
        limits_time=limit > 0,
        bad=bad if incoming.keeps_bad else None,
        coordinates=("partition", "offset", KAFKA_MS),
    )
    types = {column.name: column.type for column in value_format.value_format.columns}
    time: TypedExpression = (Field(READ_TIME), "BIGINT") if incoming.timed else NULL
    engine: dict[str, TypedExpression] = {
        "topic": (Constant(incoming.topic.name), "STRING"),
        "partition": (Field(READ_PARTITION), "INT"),
        "offset": (Field(READ_OFFSET), "BIGINT"),
        SOURCE: (Constant(incoming.number), "INT"),
        RECORD_ORDINAL: (Constant("0"), "STRING"),
        TIMESTAMP_MS: time,
        NEWEST: time if generates else NULL,
        **dict.fromkeys((KEY_GROUP, POSITION, RECORD_ID), NULL),
    }
    source = UnparsedSource(
        reader=reader,
        number=incoming.number,
        branch=branch.number,
        columns={
            **engine,
            **{physical: (Field(name), types[name]) for name, physical in branch.columns.items()},
        },
    )
    reasons = [lambda found: _find_reasons(found, incoming)] if incoming.keeps_bad else []
    return UnparsedRows(frame=frame, parsed=branched.frame, sources=[source], reasons=reasons)


def _format_of(schema: Schema) -> JsonArrowFormat | None:
    if any(column.type == "FLOAT" for column in schema.columns):
        return None  # Java rounds a text once, Python a double
    try:
        return JsonArrowFormat(JsonFormat.of(schema.columns))
    except FormatError:  # it has columns of another type
        return None


def _is_plain(incoming: Incoming) -> bool:
    """Whether a frame of its messages has only records, bad messages and event time."""
    topic, carried = incoming.topic, incoming.side_channels
    others = (
        topic.format != "json", incoming.tagged, topic.deduplicate, incoming.row_key is not None,
        incoming.place is not None, incoming.may_fail, incoming.counts_bad, carried.has_markers,
        carried.reads_attributes, carried.writes_watermarks, incoming.node in carried.untimed_sources,
        not incoming.keeps_bad and topic.on_error == "fail", watermark_expression(incoming.node) is not None,
        marker_condition(incoming.node) is not None, not carried.has_key_groups,
    )  # fmt: skip
    return not any(others)


def _time_field(node: Read, value_format: JsonFormat) -> str | None:
    """The field that is the event time of a record; None if there is no such field."""
    time = event_time_expression(node)
    found = "" if time is None else time.text.strip("`").lower()
    fields = (each.name for each in value_format.columns if each.type == "BIGINT")
    return next((name for name in fields if name.lower() == found), None)


def _find_reasons(rows: DataFrame, incoming: Incoming) -> DataFrame:
    """Add to the bad messages of a topic why they are bad, if they have no reason yet."""
    names = {name: f"_kept{place}" for place, name in enumerate(rows.columns)}
    is_unread = (
        f"{BRANCH} = {RowKind.BAD} AND {BAD_REASON} IS NULL AND topic = {literal(incoming.topic.name)}"
    )
    judged = incoming.judge(
        rows.selectExpr(
            *(f"{quote(name)} AS {now}" for name, now in names.items()),
            f"{is_unread} AS {_UNREAD}",
            f"CASE WHEN {is_unread} THEN {VALUE} END AS value",
            f"timestamp_millis({KAFKA_MS}) AS timestamp",
        ),
        "value",
        _UNREAD,
    )
    reason = f"CASE WHEN {_UNREAD} THEN coalesce({BAD_REASON}, {_REFUSED}) ELSE {names[BAD_REASON]} END"
    texts = {**names, BAD_REASON: reason}
    return judged.selectExpr(*(f"{text} AS {quote(name)}" for name, text in texts.items()))
