"""Event time: is what a source declares about time something that its records have?

Checked from names and types alone, with no JVM. The type of an expression is worked out where
sqlglot can; where it cannot, the check is left to the run.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NoReturn

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

from flowcore.api.checks import row_expression
from flowcore.api.expressions import Expression
from flowcore.api.operators import Read, topic_of
from flowcore.api.schema import Schema
from flowcore.errors import PlanError
from flowcore.watermarks.strategies import Periodic, Punctuated

__all__ = ["event_time_expression", "marker_condition", "require_event_time", "watermark_expression"]

_Type = exp.DataType.Type
_TIMES = {_Type.BIGINT, _Type.TIMESTAMP, _Type.TIMESTAMPTZ, _Type.TIMESTAMPLTZ, _Type.UNKNOWN}
_MILLISECONDS = {_Type.BIGINT, _Type.UNKNOWN}
_CONDITIONS = {_Type.BOOLEAN, _Type.UNKNOWN}


def event_time_expression(read: Read) -> Expression | None:
    """The expression for a record's timestamp: BIGINT milliseconds or TIMESTAMP; None for Kafka's own."""
    topic = topic_of(read)
    return None if topic is None or topic.event_time is None else _expression(read, topic.event_time)


def marker_condition(read: Read) -> Expression | None:
    """The condition that makes a record a marker, None unless the source's watermarks are punctuated."""
    topic = topic_of(read)
    strategy = topic.watermark if topic else None
    if strategy is None or not isinstance(strategy.generator, Punctuated):
        return None
    return _expression(read, strategy.generator.expression)


def watermark_expression(read: Read) -> Expression | None:
    """What a record says of event time, BIGINT milliseconds; None unless watermarks are so computed."""
    topic = topic_of(read)
    strategy = topic.watermark if topic else None
    if strategy is None or not isinstance(strategy.generator, Periodic):
        return None
    return _expression(read, strategy.generator.expression)


def require_event_time(read: Read) -> None:
    """A source whose event time and watermarks can be computed from its columns.

    Raises:
        PlanError: A column does not exist, or an expression is of the wrong type.
    """
    time, marker, said = event_time_expression(read), marker_condition(read), watermark_expression(read)
    if time is not None:
        _require_type(
            read, "event_time", time, _TIMES,
            "neither BIGINT (milliseconds since 1970) nor TIMESTAMP, so no record would have a time; cast "
            "it, for instance event_time='cast(... as TIMESTAMP)'",
        )  # fmt: skip
    if said is not None:
        _require_type(
            read, "watermark", said, _MILLISECONDS,
            "not BIGINT (milliseconds since 1970), so it would be no watermark; pass for instance "
            "periodic('unix_millis(at) - 4000')",
        )  # fmt: skip
    if marker is not None:
        _require_type(
            read, "watermark", marker, _CONDITIONS,
            "no condition, so it could not be told which record is a marker; pass for instance "
            "punctuated(\"kind = 'end-of-hour'\")",
        )  # fmt: skip


def _expression(read: Read, text: str) -> Expression:
    return row_expression(read, read.name, text)


def _require_type(
    read: Read, what: str, expression: Expression, allowed: Container[exp.DType], problem: str
) -> None:
    found = _type_of(expression, read.schema)
    if found.this not in allowed:
        _refuse(f"operator {read.name!r}: {what} {expression.text!r} is {found.sql('spark')}: {problem}")


def _type_of(expression: Expression, schema: Schema) -> exp.DataType:
    columns: dict[str, object] = {"t": {column.name: column.type for column in schema.columns}}
    try:
        value = sqlglot.parse_one(expression.text, dialect="spark")
        query = exp.select(exp.alias_(value, "x")).from_("t")
        known = qualify(query, schema=columns, dialect="spark", validate_qualify_columns=False)
        found = annotate_types(known, schema=columns, dialect="spark").expressions[0].type
    except (SqlglotError, LookupError, ValueError, TypeError, AttributeError, RecursionError):
        found = None
    return found or exp.DataType(this=_Type.UNKNOWN)


def _refuse(msg: str) -> NoReturn:
    raise PlanError(msg)
