"""Event time of a source: the expressions that it declares, and the checks of their types.

They are checked from names and types alone, with no JVM. If sqlglot cannot derive the type of an
expression, it is checked when the flow runs.
"""

from collections.abc import Container

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

from flowcore.api.checks import refuse
from flowcore.api.expressions import Expression
from flowcore.api.operators import Read
from flowcore.api.resolution import parse_row
from flowcore.watermarks.strategies import Periodic, Punctuated

__all__ = ["event_time_expression", "marker_condition", "require_event_time", "watermark_expression"]

_Type = exp.DataType.Type
_TIMES = {_Type.BIGINT, _Type.TIMESTAMP, _Type.TIMESTAMPTZ, _Type.TIMESTAMPLTZ, _Type.UNKNOWN}
_MILLISECONDS = {_Type.BIGINT, _Type.UNKNOWN}
_CONDITIONS = {_Type.BOOLEAN, _Type.UNKNOWN}


def event_time_expression(read: Read) -> Expression | None:
    """The expression for a record's timestamp: BIGINT milliseconds or TIMESTAMP; None for Kafka's own."""
    topic = read.topic
    text = topic.event_time if topic else None
    return None if text is None else parse_row(read, read.name, text)


def marker_condition(read: Read) -> Expression | None:
    """The condition under which a record is a marker; None unless the source's watermarks are punctuated."""
    return _generator_expression(read, Punctuated)


def watermark_expression(read: Read) -> Expression | None:
    """The watermark that a record carries, BIGINT milliseconds; None unless the strategy is `periodic`."""
    return _generator_expression(read, Periodic)


def require_event_time(read: Read) -> None:
    """Check that event time and watermarks can be computed from the columns of a source.

    Raises:
        PlanError: A column does not exist, or an expression is of the wrong type.
    """
    _require_type(
        read, "event_time", event_time_expression(read), _TIMES,
        "neither BIGINT (milliseconds since 1970) nor TIMESTAMP, so no record would have a time; cast "
        "it, for instance event_time='cast(... as TIMESTAMP)'",
    )  # fmt: skip
    _require_type(
        read, "watermark", watermark_expression(read), _MILLISECONDS,
        "not BIGINT (milliseconds since 1970), so it would not be a watermark; pass for instance "
        "periodic('unix_millis(at) - 4000')",
    )  # fmt: skip
    _require_type(
        read, "watermark", marker_condition(read), _CONDITIONS,
        "not a condition, so no record could be recognised as a marker; pass for instance "
        "punctuated(\"kind = 'end-of-hour'\")",
    )  # fmt: skip


def _generator_expression(read: Read, kind: type[Punctuated | Periodic]) -> Expression | None:
    topic = read.topic
    generator = topic.watermark.generator if topic and topic.watermark else None
    return parse_row(read, read.name, generator.expression) if isinstance(generator, kind) else None


def _require_type(
    read: Read, what: str, expression: Expression | None, allowed: Container[exp.DType], problem: str
) -> None:
    if expression is None:
        return
    columns: dict[str, object] = {"t": {column.name: column.type for column in read.schema.columns}}
    try:
        value = sqlglot.parse_one(expression.text, dialect="spark")
        query = exp.select(exp.alias_(value, "x")).from_("t")
        known = qualify(query, schema=columns, dialect="spark", validate_qualify_columns=False)
        found = annotate_types(known, schema=columns, dialect="spark").expressions[0].type
    except (SqlglotError, LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return
    if found and found.this not in allowed:
        refuse(f"operator {read.name!r}: {what} {expression.text!r} is {found.sql('spark')}: {problem}")
