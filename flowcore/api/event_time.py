"""Event time of a source or in the middle of a flow: its expressions, and the checks of their types.

They are checked from names and types alone, with no JVM. If sqlglot cannot derive the type of an
expression, it is checked when the flow runs.
"""

from collections.abc import Container, Mapping
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from flowcore.api.checks import refuse
from flowcore.api.connectors import RECORD_ID_HEADER
from flowcore.api.expressions import Expression
from flowcore.api.operators import Deduplicate, MapBatches, Operator, Read, WithEventTime, WithHistory
from flowcore.api.resolution import parse_row
from flowcore.api.updating_rows import find_deleted
from flowcore.watermarks.strategies import Periodic, Punctuated, WatermarkStrategy

__all__ = [
    "build_event_time",
    "event_time_expression",
    "marker_condition",
    "parse_row_time",
    "require_event_time",
    "watermark_expression",
]

_Type = exp.DataType.Type
_TIMES = {_Type.BIGINT, _Type.TIMESTAMP, _Type.TIMESTAMPTZ, _Type.TIMESTAMPLTZ, _Type.UNKNOWN}
_MILLISECONDS = {_Type.BIGINT, _Type.UNKNOWN}
_CONDITIONS = {_Type.BOOLEAN, _Type.UNKNOWN}
_NO_TIME = (
    "neither BIGINT (milliseconds since 1970) nor TIMESTAMP, so no record would have a time; cast it, for "
    "instance {}"
)


def event_time_expression(node: Read | WithEventTime) -> Expression | None:
    """The expression for a record's timestamp: BIGINT milliseconds or TIMESTAMP; None for Kafka's own."""
    if isinstance(node, WithEventTime):
        return node.event_time
    topic = node.topic
    text = topic.event_time if topic else None
    return None if text is None else parse_row(node, node.name, text, where=f"event_time={text!r}")


def marker_condition(node: Read | WithEventTime) -> Expression | None:
    """The condition under which a record is a marker; None unless the watermarks are punctuated."""
    return _generator_expression(node, Punctuated)


def watermark_expression(node: Read | WithEventTime) -> Expression | None:
    """The watermark that a record carries, BIGINT milliseconds; None unless the strategy is `periodic`."""
    return _generator_expression(node, Periodic)


def require_event_time(read: Read) -> None:
    """Check that event time and watermarks can be computed from the columns of a source.

    Raises:
        PlanError: A column does not exist, or an expression is of the wrong type.
    """
    _require_types(read, {column.name: column.type for column in read.schema.columns})


def parse_row_time(node: Operator, name: str, text: str, parameter: str = "timestamp") -> Expression:
    """Parse an expression for the time of a bounded row: BIGINT milliseconds or TIMESTAMP.

    Raises:
        PlanError: A column does not exist, or the expression is of another type.
    """
    time = parse_row(node, name, text, where=f"{parameter}={text!r}")
    problem = _NO_TIME.format("'cast(... as TIMESTAMP)'")
    _require_type(name, node.types(), parameter, time, _TIMES, problem)
    return time


def build_event_time(
    node: Operator, name: str, fields: Mapping[str, Any], event_time: str, watermark: WatermarkStrategy
) -> WithEventTime:
    """Check event time that is assigned downstream of ``node``, and make the operator.

    Args:
        fields: The fields of any operator.

    Raises:
        PlanError: A column does not exist, an expression is of the wrong type, ``watermark`` is not a
            strategy, or the source partition of records is unknown.
    """
    _require_strategy(name, watermark)
    _require_final_rows(node, name)
    _require_partitions(node, name)
    generator = watermark.generator
    text = generator.expression if isinstance(generator, (Punctuated, Periodic)) else None
    found = WithEventTime(
        **fields,
        event_time=parse_row(node, name, event_time, where=f"event_time={event_time!r}"),
        strategy=watermark,
        generator=None if text is None else parse_row(node, name, text),
    )
    schema = getattr(node, "schema", None)
    _require_types(found, {each.name: each.type for each in schema.columns} if schema is not None else {})
    return found


def _require_strategy(name: str, watermark: object) -> None:
    if not isinstance(watermark, WatermarkStrategy):
        refuse(
            f"operator {name!r}: watermark={watermark!r} is not a strategy: event time would not advance; "
            "pass for instance bounded_out_of_orderness(timedelta(seconds=4))"
        )
    if watermark.max_drift_ms is not None:
        refuse(
            f"operator {name!r}: watermark={watermark}: only a source can read one partition more slowly "
            "than others; leave out with_alignment(...), or give it to the topic"
        )


def _require_final_rows(node: Operator, name: str) -> None:
    """Check that no row deletes another one: its columns, and so its event time, may be null."""
    deleted = find_deleted(node)
    if deleted is not None:
        refuse(
            f"operator {name!r}: where {deleted} is true, a row of {node.name!r} deletes its key, and its "
            "other columns may be null: without event time it would be a dead letter, and what it deletes "
            "would still be counted; leave it out, and give the topic of the source watermark=, which then "
            "goes by Kafka's own timestamps"
        )


def _require_partitions(node: Operator, name: str) -> None:
    """Check that the source partition of each record is known."""
    if node.bounded:
        refuse(
            f"operator {name!r}: event time over the bounded {node.name!r}: rows of a table carry no "
            "timestamps from operator to operator; pass timestamp= to window(...), process(...) or "
            "deduplicate(...)"
        )
    live = [each for each in node.upstream if not each.bounded]
    for each in live:
        _require_passing(each, name)
    sources = [each.name for each in live if isinstance(each, Read)]
    if len(sources) > 1:
        refuse(
            f"operator {name!r}: event time is assigned to records of several sources, "
            f"{' and '.join(sources)}: each partition of each of them needs a watermark of its own; assign "
            "it to each of them, upstream of the union"
        )


def _require_passing(node: Operator, name: str) -> None:
    """Check that an operator passes records of a partition in their order, without event time of its own."""
    why, change = None, f"assign event time upstream of {node.name!r}"
    if isinstance(node, WithEventTime):
        refuse(
            f"operator {name!r}: event time is assigned downstream of {node.name!r}, which assigns it "
            f"too: what {node.name!r} assigns would have no effect; leave one of them out"
        )
    if isinstance(node, WithHistory) and event_time_expression(node.live) is None:
        refuse(
            f"operator {name!r}: event time is assigned downstream of {node.name!r}, whose history is in "
            "no order of time, since its topic has no event_time=: most of it would be late; give the "
            "topic event_time= and watermark= instead"
        )
    if isinstance(node, Deduplicate) and node.by == (RECORD_ID_HEADER,):
        change = f"give the topic of {node.inputs[0].name!r} event_time= and watermark="
    if node.keeps_state:
        why = "keeps state, and emits what it makes of records of several partitions"
    elif node.takes_whole_frame:
        why = "is a DataFrame function"
    elif isinstance(node, MapBatches):
        why = "gets batches"
    if why is not None:
        refuse(
            f"operator {name!r}: event time is assigned downstream of {node.name!r}, which {why}: it is "
            "not known from which partition a record is, so that no watermark could be made; "
            f"{change}, or cut the flow there with .through('topic')"
        )


def _generator_expression(node: Read | WithEventTime, kind: type[Punctuated | Periodic]) -> Expression | None:
    generator = node.watermark.generator if node.watermark else None
    if not isinstance(generator, kind):
        return None
    if isinstance(node, WithEventTime):
        return node.generator
    return parse_row(node, node.name, generator.expression, where=f"watermark={generator.expression!r}")


def _require_types(node: Read | WithEventTime, types: Mapping[str, str]) -> None:
    """Check the types of the expressions; a column without a known type may have any."""
    _require_type(
        node.name, types, "event_time", event_time_expression(node), _TIMES,
        _NO_TIME.format("event_time='cast(... as TIMESTAMP)'"),
    )  # fmt: skip
    _require_type(
        node.name, types, "watermark", watermark_expression(node), _MILLISECONDS,
        "not BIGINT (milliseconds since 1970), so it would not be a watermark; pass for instance "
        "periodic('unix_millis(at) - 4000')",
    )  # fmt: skip
    _require_type(
        node.name, types, "watermark", marker_condition(node), _CONDITIONS,
        "not a condition, so no record could be recognised as a marker; pass for instance "
        "punctuated(\"kind = 'end-of-hour'\")",
    )  # fmt: skip


def _require_type(  # noqa: PLR0917 - the expression, then what is said of it
    name: str,
    types: Mapping[str, str],
    what: str,
    expression: Expression | None,
    allowed: Container[exp.DType],
    problem: str,
) -> None:
    if expression is None:
        return
    from sqlglot.optimizer.annotate_types import annotate_types  # noqa: PLC0415 - half of sqlglot
    from sqlglot.optimizer.qualify import qualify  # noqa: PLC0415

    columns: dict[str, object] = {"t": dict(types)}
    try:
        value = sqlglot.parse_one(expression.text, dialect="spark")
        query = exp.select(exp.alias_(value, "x")).from_("t")
        known = qualify(query, schema=columns, dialect="spark", validate_qualify_columns=False)
        found = annotate_types(known, schema=columns, dialect="spark").expressions[0].type
    except (SqlglotError, LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return
    if found and found.this not in allowed:
        refuse(f"operator {name!r}: {what} {expression.text!r} is {found.sql('spark')}: {problem}")
