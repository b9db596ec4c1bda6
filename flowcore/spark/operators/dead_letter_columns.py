"""Columns of the dead letters that leave an exchange; from there on they are rows like bad messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from flowcore.keyed.dead_letters import CONTENT, OPERATOR, REASON
from flowcore.spark.frame.rows import (
    BAD_COLUMNS,
    BAD_REASON,
    FAILED_OPERATOR,
    INPUT_ID,
    KAFKA_MS,
    RECORD_ID,
    SOURCE,
    VALUE,
)
from flowcore.spark.frame.sql import literal
from flowcore.spark.operators.key_group_context import COORDINATE_PREFIX, KeyGroupContext

__all__ = ["dead_letter_columns"]


def dead_letter_columns(
    found: Mapping[str, str], context: KeyGroupContext, before: Mapping[str, str], existing: Collection[str]
) -> dict[str, str]:
    """SQL texts of the columns of bad records, for rows some of which are dead letters.

    Args:
        found: The names of the dead letters' columns.
        before: SQL texts of columns that other rows have.
        existing: The columns of the rows, with those of bad messages if there are any.
    """
    first = next(topic.name for source in context.query.key_group_dead_letters if (topic := source.topic))
    source = found[COORDINATE_PREFIX + SOURCE]
    name = f"coalesce(CASE {source} {context.topic_cases} END, {literal(first)})"
    is_dead_letter = f"{found[REASON]} IS NOT NULL"
    others = {
        column: before.get(column, column if column in existing else f"CAST(NULL AS {kind})")
        for column, kind in {**BAD_COLUMNS, RECORD_ID: "STRING"}.items()
    }
    own = {
        "topic": name,
        "partition": found.get(COORDINATE_PREFIX + "partition", "CAST(NULL AS INT)"),
        "offset": found.get(COORDINATE_PREFIX + "offset", "CAST(NULL AS BIGINT)"),
        RECORD_ID: found.get(COORDINATE_PREFIX + INPUT_ID, "CAST(NULL AS STRING)"),
    }
    return {
        **{
            column: f"CASE WHEN {is_dead_letter} THEN {text} ELSE {others[column]} END"
            for column, text in own.items()
        },
        VALUE: f"CASE WHEN {is_dead_letter} THEN CAST({found[CONTENT]} AS BINARY) "
        f"ELSE {before.get(VALUE, VALUE)} END",
        BAD_REASON: f"coalesce({found[REASON]}, {others[BAD_REASON]})",
        FAILED_OPERATOR: f"coalesce({found[OPERATOR]}, {others[FAILED_OPERATOR]})",
        KAFKA_MS: others[KAFKA_MS],
    }
