"""DeadLetters: how do dead letters leave a query's key groups?

In the branch of bad records, with the columns of those: from there they go to the dead-letter topic of their
source. What was made of no single record goes to that of the first source, without partition and offset.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from flowcore.keyed.dead_letters import CONTENT, OPERATOR, DeadLetters
from flowcore.keyed.dead_letters import REASON as WHY
from flowcore.planner.rules.failures import select_dead_letter_sources
from flowcore.spark.frame.rows import BAD_REASON, FAILED_OPERATOR, KAFKA_MS, SOURCE, VALUE
from flowcore.spark.frame.sql import literal
from flowcore.spark.operators.by_key import OF, ByKey, coordinates, topic_case

__all__ = ["letter_columns", "letters_for"]


def letters_for(of: ByKey, shown: Sequence[str]) -> DeadLetters | None:
    """Which failures leave the key groups of a query; None if each stops it.

    Args:
        of: The query.
        shown: The columns of a record that functions see.
    """
    routed = select_dead_letter_sources(of.query)
    if not routed:
        return None
    sources = tuple(source in routed for source in of.query.sources)
    return DeadLetters(sources=sources, shown=tuple(shown), places=tuple(coordinates(of)))


def letter_columns(
    found: Mapping[str, str], of: ByKey, before: Mapping[str, str], there: Collection[str]
) -> dict[str, str]:
    """SQL text of the columns of bad records, for rows some of which are letters.

    Args:
        found: What the columns of letters are called.
        of: The query.
        before: SQL text of columns that other rows have already.
        there: The columns of the rows, among them those of bad messages if any have passed by.
    """
    first = next(topic.name for source in select_dead_letter_sources(of.query) if (topic := source.topic))
    name = f"coalesce({topic_case(found[OF + SOURCE], of)}, {literal(first)})"
    mine = f"{found[WHY]} IS NOT NULL"
    types = {
        "topic": "STRING",
        "partition": "INT",
        "offset": "BIGINT",
        BAD_REASON: "STRING",
        KAFKA_MS: "BIGINT",
    }
    known = {
        column: before.get(column, column if column in there else f"CAST(NULL AS {kind})")
        for column, kind in types.items()
    }
    return {
        "topic": f"CASE WHEN {mine} THEN {name} ELSE {known['topic']} END",
        "partition": f"CASE WHEN {mine} THEN {found[OF + 'partition']} ELSE {known['partition']} END",
        "offset": f"CASE WHEN {mine} THEN {found[OF + 'offset']} ELSE {known['offset']} END",
        VALUE: f"CASE WHEN {mine} THEN CAST({found[CONTENT]} AS BINARY) ELSE {VALUE} END",
        BAD_REASON: f"coalesce({found[WHY]}, {known[BAD_REASON]})",
        FAILED_OPERATOR: found[OPERATOR],
        KAFKA_MS: known[KAFKA_MS],
    }
