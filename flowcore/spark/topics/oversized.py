"""Refused: what becomes of a record that its sink's topic would not take?

A good record may grow on its way until it is larger than the topic takes, or lose the key that a compacted
topic needs. The broker's refusal would fail the query, at each restart again. So such a message is held back
before it is sent: it goes to the dead-letter topic of its source, or stops the query with its coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from flowcore.api.connectors import KafkaTopic
from flowcore.api.operators import Write
from flowcore.kafka.limits import TopicLimits
from flowcore.spark.frame.sql import literal
from flowcore.spark.topics.sinks import headers

__all__ = ["divert_oversized"]

_AROUND_BYTES = 512
"""Of a batch: its head, and the headers of a record, whose longest part is the name of a topic."""
_ID = "CAST(filter(headers, h -> h.key = 'flowcore-id')[0].value AS STRING)"


def divert_oversized(
    messages: DataFrame,
    sinks: Sequence[tuple[Write, KafkaTopic]],
    sources: Sequence[KafkaTopic],
    limits: Mapping[str, TopicLimits],
) -> DataFrame:
    """Messages as Spark's sink takes them, none of which its topic would refuse.

    Args:
        messages: With the columns topic, key, value and headers.
        sinks: What they are written to.
        sources: What they were read from. What becomes of no single record, such as the output of an
            aggregate, goes to the dead letters of the first.
        limits: What the sinks' topics take.
    """
    reason = f"CASE {' '.join(_reasons(topic, limits[topic.name]) for _, topic in sinks)} END"
    if any(source.on_error == "fail" for source in sources):
        instead = {"topic": _stop(reason)}
    else:
        instead = _letter(reason, sinks, sources[0])
    # In the columns and not in a filter: that one Spark would push below them, and make each value twice.
    return messages.selectExpr(
        *(
            f"CASE WHEN {reason} IS NULL THEN {column} ELSE {instead[column]} END AS {column}"
            if column in instead
            else column
            for column in messages.columns
        )
    )


def _stop(reason: str) -> str:
    text = literal("a record for topic %s %s and on_error='fail'; it was made of %s")
    return f"CAST(raise_error(format_string({text}, topic, {reason}, coalesce({_ID}, 'several'))) AS STRING)"


def _letter(reason: str, sinks: Sequence[tuple[Write, KafkaTopic]], source: KafkaTopic) -> dict[str, str]:
    operators = " ".join(f"WHEN {literal(topic.name)} THEN {literal(sink.name)}" for sink, topic in sinks)
    origin = (f"split_part({_ID}, ':', {place})" for place in (1, 2, 3))
    names = ("flowcore-topic", "flowcore-partition", "flowcore-offset")
    found = {
        **dict(zip(names, origin, strict=True)),
        "flowcore-operator": f"CASE topic {operators} END",
        "flowcore-stage": "'sink'",
        "flowcore-reason": reason,
    }
    topic = f"concat(coalesce(split_part({_ID}, ':', 1), {literal(source.name)}), '.dead-letter')"
    return {"topic": topic, "headers": headers(found)}


def _reasons(topic: KafkaTopic, limits: TopicLimits) -> str:
    mine = f"topic = {literal(topic.name)}"
    size = "coalesce(octet_length(value), 0) + coalesce(octet_length(key), 0)"
    large = literal(
        f"becomes a message of %d bytes, and the topic takes {limits.max_message_bytes} with "
        f"{_AROUND_BYTES} around it (max.message.bytes)"
    )
    is_large = f"{size} > {limits.max_message_bytes - _AROUND_BYTES}"
    cases = f"WHEN {mine} AND {is_large} THEN format_string({large}, {size})"
    if limits.needs_key:
        unkeyed = literal("has no key, which a compacted topic needs (cleanup.policy)")
        cases += f" WHEN {mine} AND key IS NULL THEN {unkeyed}"
    return cases
