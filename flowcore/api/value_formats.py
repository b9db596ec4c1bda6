"""Value formats in a flow: does a topic's declaration make sense, and what does a sink write?

Which formats there are is told by `flowcore.serializers.formats`, which is loaded for other formats than
JSON only. Spark has some of them natively; the others run in Python, which real-time mode does not take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from flowcore.api.schema import Schema
from flowcore.errors import FormatError, PlanError

__all__ = ["Formatted", "check_format", "check_written", "runs_in_python", "value_schema"]

_NATIVE = ("json", "avro", "avro-confluent", "raw")


class Formatted(Protocol):
    """What a topic tells of its values."""

    @property
    def name(self) -> str: ...
    @property
    def schema(self) -> Schema | str | None: ...
    @property
    def format(self) -> str: ...
    @property
    def format_options(self) -> Mapping[str, Any]: ...


def runs_in_python(topic: Formatted) -> bool:
    """True if Spark has no expression of its own for the topic's format."""
    return topic.format not in _NATIVE


def check_format(topic: Formatted) -> None:
    """Make sure that the values of a topic can be read and written.

    Raises:
        FormatError: The format is unknown, takes other options, or does not hold a column.
    """
    if topic.format == "json" and not topic.format_options:
        return  # Spark's JSON holds every type, and more of them than `JsonFormat` does
    from flowcore.api.value_schemas import check_values  # noqa: PLC0415 - NumPy and more, which few need

    try:
        check_values(topic)
    except FormatError as error:
        msg = f"topic {topic.name!r}: {error}"
        raise FormatError(msg) from error


def value_schema(topic: Formatted) -> Schema | None:
    """The columns of a topic's values: declared, or those of its Avro schema or Protobuf message.

    None where nothing tells.
    """
    if topic.schema is not None:
        return Schema.parse(topic.schema)
    if not topic.format_options:
        return None
    from flowcore.api.value_schemas import own_columns  # noqa: PLC0415 - as above

    columns = own_columns(topic)
    return Schema(tuple(columns.values())) if columns else None


def check_written(topic: Formatted, columns: Sequence[str], sink: str, key: Sequence[str] | None) -> None:
    """Make sure that a stream has the columns of a sink's values, and that nothing of it would be lost.

    Args:
        topic: The sink's topic.
        columns: The stream's columns.
        sink: The sink's name, for the error.
        key: The columns of the Kafka key.

    Raises:
        PlanError: It lacks one, or has one that would neither be in the value nor in the key.
    """
    if topic.format == "json":
        return
    keys = {column.lower() for column in key or ()}
    beside = [column for column in columns if column.lower() not in keys]
    schema = value_schema(topic)
    if schema is None:  # raw
        if len(columns) == 1:
            return
        what = f"has the columns {', '.join(columns)}, and a raw value is one of them"
        wanted = "one column (with schema='body BINARY' of the topic: that one and the key)"
    else:
        have, want = {column.lower() for column in columns}, {name.lower() for name in schema.names}
        missing = [name for name in schema.names if name.lower() not in have]
        extra = [column for column in beside if column.lower() not in want]
        if not missing and not extra:
            return
        wanted = ", ".join(schema.names)
        what = f"lacks {missing[0]!r}" if missing else f"has {extra[0]!r}, which would be lost"
    msg = (
        f"sink {sink!r}: what is written to topic {topic.name!r} as {topic.format} {what}: select exactly "
        f"{wanted} before it, or correct the topic's schema"
    )
    raise PlanError(msg)
