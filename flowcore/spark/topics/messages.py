"""Parts of a Kafka message in SQL text: its key, its headers, its tag, and the headers of a dead letter."""

from collections.abc import Mapping, Sequence

from flowcore.api.connectors import KafkaTopic
from flowcore.api.operators import Read
from flowcore.kafka.elements import ELEMENT_HEADER
from flowcore.spark.frame.sql import json_object, literal, struct
from flowcore.spark.topics import elements

__all__ = [
    "LARGEST_BYTES", "NULL_TEXT", "bad_record_headers", "bounded_key", "headers", "kafka_key", "tag",
]  # fmt: skip

NULL_TEXT = "CAST(NULL AS STRING)"
LARGEST_BYTES = 64 << 20
"""The largest message that a client sends; a topic may accept less."""


def kafka_key(names: Sequence[str] | None, columns: Mapping[str, str]) -> str:
    """The key as text: null without key columns, the text of one column, or a JSON object of several."""
    if names is None:
        return NULL_TEXT
    if len(names) == 1:
        return f"CAST({columns[names[0]]} AS STRING)"
    return json_object({name: columns[name] for name in names}) if names else "'{}'"


def bounded_key(key: str, largest: int) -> str:
    """The key of a dead letter as text, null if it takes more than a quarter of the largest message."""
    return f"CASE WHEN octet_length({key}) <= {largest // 4} THEN CAST({key} AS STRING) END"


def tag(
    topic: KafkaTopic, time: str | None, value: str, misfit: str | None = None
) -> tuple[str, dict[str, str]]:
    """Value and headers of a record as a tagged element, whose tag precedes the value or is a header.

    ``misfit`` is SQL text that is not null if the value is JSON for a dead letter, which has no tag.
    """
    if topic.headers:
        return value, {ELEMENT_HEADER: elements.tagged_record(time, "X''")}
    if misfit is None:
        return elements.tagged_record(time, value), {}
    head = elements.tagged_record(time, "X''")
    return f"concat(CASE WHEN {misfit} IS NULL THEN {head} ELSE X'' END, {value})", {}


def headers(values: Mapping[str, str]) -> str:
    """The column of headers for Spark's Kafka sink."""
    if not values:
        return "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>)"
    pairs = (
        struct({"key": literal(name), "value": f"CAST({value} AS BINARY)"}) for name, value in values.items()
    )
    return f"array({', '.join(pairs)})"


def bad_record_headers(
    node: Read,
    reason: str,
    timestamp_ms: str | None = None,
    failed: str = NULL_TEXT,
    record_id: str | None = None,
    *,
    assigners: Sequence[str] = (),
) -> str:
    """Headers of a dead letter: where the message was, which operator refused it, and why.

    ``failed`` is the operator whose function failed as SQL text, null if the message could not be read.
    ``record_id`` is the id of the record that it failed for, where records may have one; null for another.
    ``assigners`` are the operators among ``failed`` that assign event time, and call no function.
    """
    names = ", ".join(map(literal, assigners))
    timed = f"WHEN {failed} IN ({names}) THEN 'event-time' " if names else ""
    found = {
        "flowcore-topic": "topic",
        "flowcore-partition": "CAST(partition AS STRING)",
        "flowcore-offset": "CAST(offset AS STRING)",
        "flowcore-operator": f"coalesce({failed}, {literal(node.name)})",
        "flowcore-stage": f"CASE WHEN {failed} IS NULL THEN 'read' {timed}ELSE 'function' END",
        "flowcore-reason": reason,
    }
    if timestamp_ms is not None:
        found["flowcore-timestamp"] = f"CAST({timestamp_ms} AS STRING)"
    if record_id is not None:
        identified = headers({**found, "flowcore-id": record_id})
        return f"CASE WHEN {record_id} IS NULL THEN {headers(found)} ELSE {identified} END"
    return headers(found)
