"""Event times of records as SQL text: their milliseconds, and which are too far ahead of the clock."""

from pyspark.sql import DataFrame

from flowcore.durations import show_ms
from flowcore.errors import PlanError
from flowcore.spark.frame.rows import TIMESTAMP_MS
from flowcore.spark.frame.sql import BATCH_CLOCK_MS, displayable_timestamp, literal

__all__ = ["WRITTEN_MS", "add_timestamp", "milliseconds", "require_time", "too_far_ahead"]

WRITTEN_MS = f"least(CASE WHEN unix_millis(timestamp) > 0 THEN unix_millis(timestamp) END, {BATCH_CLOCK_MS})"
"""When a message was written, or the clock if the message has no time, or one that is still to come."""


def milliseconds(rows: DataFrame, time: str) -> str:
    """The milliseconds of an expression that is BIGINT or TIMESTAMP."""
    return f"unix_millis({time})" if _type(rows, time) == "timestamp" else time


def add_timestamp(rows: DataFrame, time: str) -> DataFrame:
    """Add the time in milliseconds, from an expression that is BIGINT or TIMESTAMP."""
    return rows.selectExpr("*", f"{milliseconds(rows, time)} AS {TIMESTAMP_MS}")


def require_time(
    rows: DataFrame, time: str, operator: str, shown: str, parameter: str = "event_time"
) -> None:
    """Check the type of an expression whose type was not known before.

    Raises:
        PlanError: The type is neither BIGINT nor TIMESTAMP.
    """
    kind = _type(rows, time)
    if kind not in ("bigint", "timestamp"):
        msg = (
            f"operator {operator!r}: {parameter} {shown!r} is {kind.upper()}: neither BIGINT (milliseconds "
            "since 1970) nor TIMESTAMP, so no record would have a time; cast it, for instance "
            "'cast(... as TIMESTAMP)'"
        )
        raise PlanError(msg)


def too_far_ahead(
    time: str, limit_ms: int, condition: str = "true", *, of_message: bool = False
) -> tuple[str, str]:
    """Whether the condition holds and a time is too far ahead of the clock, and the reason, as SQL text.

    Args:
        of_message: Rows are messages. The clock is that of their writing, so that each query of a topic finds
            the same messages bad, whenever it reads them.
    """
    clock, when = (WRITTEN_MS, "when it was written ") if of_message else (BATCH_CLOCK_MS, "")
    shown = f"coalesce(CAST({displayable_timestamp(time)} AS STRING), {time} || ' ms')"
    after = literal(
        f" UTC, over {show_ms(limit_ms)} ahead of the clock {when}"
        "(watermark.max-ahead): windows would close too early"
    )
    return (
        f"{condition} AND {time} > {clock} + {limit_ms}",
        f"concat('has the event time ', {shown}, {after})",
    )


def _type(rows: DataFrame, time: str) -> str:
    ((_, kind),) = rows.selectExpr(f"{time} AS {TIMESTAMP_MS}").dtypes
    return str(kind)
