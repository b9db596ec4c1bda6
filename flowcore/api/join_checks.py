"""Checks of joins by time or of two unbounded streams, and of the times that they are declared with.

The checks raise `PlanError` with the operator's name, except for a lateness that is not a length.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal

from flowcore.api.checks import refuse
from flowcore.api.event_time import parse_row_time
from flowcore.api.expressions import Expression
from flowcore.api.missing_watermarks import find_missing_watermarks
from flowcore.api.operators import Operator
from flowcore.api.updating_rows import find_origin, find_replacing, replaces_by_key
from flowcore.api.window_assigners import Length, lateness_ms
from flowcore.durations import MILLISECOND, show_given, show_ms
from flowcore.elements import MAX_TIMESTAMP_MS

__all__ = [
    "ReplacedRows",
    "parse_allowed_lateness",
    "parse_interval",
    "parse_load",
    "parse_timestamps",
    "require_backward",
    "require_stream_join",
]


ReplacedRows = Literal["refused", "newest", "retracted"]
"""What a join does with records that replace earlier ones."""


def require_stream_join(
    left: Operator,
    right: Operator,
    name: str,
    how: str,
    allowed: Sequence[str],
    *,
    needs: Literal["watermarks", "timestamps"] | None,
    replaced: ReplacedRows,
    by_time: bool = False,
) -> None:
    """Check that both sides can be joined: streams (or tables, if ``by_time``) with the event time it needs.

    Args:
        by_time: The join compares times, so that both sides may be bounded.
        replaced: Records that replace earlier ones are refused; or the ``newest`` right record of a key
            counts, so that right ones may replace each other; or the join takes replaced ones back.
    """
    bounded = left.bounded and right.bounded
    if bounded and not by_time:
        refuse(
            f"operator {name!r}: {left.name!r} and {right.name!r} are bounded: their rows do not arrive one "
            "after the other, so none is the latest; use join_asof(..., timestamps=(left, right))"
        )
    if left.bounded != right.bounded:
        ends, stream = (left, right) if left.bounded else (right, left)
        refuse(
            f"operator {name!r}: join of streams with the bounded {ends.name!r}: it has no watermarks, so "
            "records would wait for their partners for ever; join the stream with it, "
            f"{stream.name}.join({ends.name}, ...), and use where(...) for the times"
        )
    if left is right:
        refuse(
            f"operator {name!r}: join of {left.name!r} with itself: both sides have the same "
            "columns; rename those of one side with select('... as ...')"
        )
    if how not in allowed:
        refuse(
            f"operator {name!r}: how={how!r}: there is no such join of streams; pass one of "
            f"{', '.join(allowed)}"
        )
    for side in (left, right):
        newest = replaced == "newest" and side is right and (replaces_by_key(side) or not side.updating)
        if find_replacing(side) is not None and not newest and replaced != "retracted":
            refuse(
                f"operator {name!r}: records of {side.name!r} replace earlier ones: each of them would be "
                f"joined as one more record; join {find_origin(side)}, or use join(..., ttl=), which takes "
                "replaced ones back"
            )
        if needs is None or bounded:
            continue
        missing = find_missing_watermarks(
            side, name, only_event_time=True, only_timestamps=needs == "timestamps"
        )
        if missing is not None:
            refuse(missing)


def parse_timestamps(
    left: Operator, right: Operator, name: str, timestamps: tuple[str, str] | None
) -> tuple[Expression, Expression] | None:
    """The declared times of the rows of bounded sides; None for streams.

    Raises:
        PlanError: They are missing for bounded sides, passed for streams, or name a column that does not
            exist.
    """
    if not left.bounded:
        if timestamps is not None:
            refuse(
                f"operator {name!r}: timestamps={timestamps!r} over the unbounded {left.name!r}: watermarks "
                "follow the timestamps of its source, and records would be late; set event_time= there, or "
                "use with_event_time(...)"
            )
        return None
    if timestamps is None:
        refuse(
            f"operator {name!r}: rows of the bounded {left.name!r} and {right.name!r} have no timestamps: it "
            "would not be known which are partners; pass timestamps=(left, right), two columns or "
            "expressions, BIGINT milliseconds or TIMESTAMP"
        )
    if isinstance(timestamps, str) or len(timestamps) != 2:  # noqa: PLR2004 - a left and a right one
        refuse(
            f"operator {name!r}: timestamps={timestamps!r} is not a pair: one side would have no time; "
            "pass a column or expression of the left and one of the right, for instance "
            "timestamps=('ordered_at', 'paid_at')"
        )
    left_time, right_time = timestamps
    return (
        parse_row_time(left, name, left_time, "timestamps"),
        parse_row_time(right, name, right_time, "timestamps"),
    )


def require_backward(name: str, direction: str) -> None:
    """Check the direction of an as-of join."""
    if direction != "backward":
        refuse(
            f"operator {name!r}: direction={direction!r}: no such as-of join; the partner is a right "
            "record up to the time of the left one: pass 'backward', or use join_interval(...) for later ones"
        )


def parse_load(name: str, load: Literal["caught-up"] | datetime | None) -> Literal["caught-up"] | int | None:
    """Check what a join with the newest record waits for, and convert a time to milliseconds."""
    if load is None:
        return None
    if load == "caught-up":
        return "caught-up"
    if not isinstance(load, datetime) or load.tzinfo is None:
        refuse(
            f"operator {name!r}: load={load!r} is not a moment: it is not known when the right side is "
            "loaded; pass 'caught-up', a datetime with its zone, or None to wait for nothing"
        )
    return round(load.timestamp() * 1000)


def parse_allowed_lateness(name: str, length: Length) -> int:
    """Check the allowed lateness of a join, seconds or `timedelta`, and convert it to milliseconds.

    Raises:
        InvalidWindowError: It is not a number of whole milliseconds.
        PlanError: It is negative or endless.
    """
    length_ms = lateness_ms(length)
    if length_ms < 0:
        refuse(
            f"operator {name!r}: allowed_lateness={show_ms(length_ms)} is negative: records would be late "
            "before the watermark reaches them; pass 0 or more"
        )
    if length_ms >= MAX_TIMESTAMP_MS:
        refuse(
            f"operator {name!r}: allowed_lateness={length!r}: its watermark would never advance, so records "
            "without partner and windows downstream would wait for the end of input; pass a finite one, or "
            "use join(..., ttl=None), which keeps all records for ever"
        )
    return length_ms


def parse_interval(name: str, what: str, length: timedelta) -> int:
    """Check a length of time between partners of a join, and convert it to milliseconds."""
    if not isinstance(length, timedelta) or length < timedelta(0) or length % MILLISECOND:
        refuse(
            f"operator {name!r}: {what}={show_given(length)} is not a whole number of milliseconds from 0 "
            "up: it would not be known which records are partners; pass for instance timedelta(minutes=5), "
            "or timedelta(0)"
        )
    return length // MILLISECOND
