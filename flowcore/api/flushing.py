"""Flush intervals: how long an operator's output is buffered, so that only the latest of each key is emitted.

Two things are needed: a later output replaces the earlier ones (``output_idempotent``), and a key says which;
or all output is made in one place. Native operators that work row by row are never buffered; their input is.

Source: FLIP-365, Introduce flush interval to adjust the interval of emitting results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from flowcore.api.checks import refuse
from flowcore.api.expressions import resolve
from flowcore.api.operators import FlatMap, Map, Operator
from flowcore.durations import MILLISECOND, show_duration

__all__ = ["declare_key", "flush_interval_ms", "require_flushable"]


def flush_interval_ms(operator: str, flush: timedelta | None) -> int | None:
    """Convert the interval that was declared with an operator to milliseconds.

    Raises:
        PlanError: It is not a length of time, is negative, or has a part of a millisecond.
    """
    if flush is None:
        return None
    if not isinstance(flush, timedelta) or flush < timedelta(0) or flush % MILLISECOND:
        refuse(
            f"operator {operator!r}: flush={flush!r} is not a whole number of milliseconds from 0 up: its "
            "output could not be buffered that long; pass for instance timedelta(minutes=2), or "
            "timedelta(0) to buffer nothing"
        )
    return flush // MILLISECOND


def declare_key(node: Map | FlatMap, key: str | Sequence[str] | None) -> Map | FlatMap:
    """Give a Python function the key under which its later output replaces earlier output.

    Raises:
        PlanError: A column is unknown, or the function does not declare that its output replaces.
    """
    if key is None:
        return node
    columns = (key,) if isinstance(key, str) else tuple(key)
    names = resolve(columns, node.columns, node.name, f"key={key!r} (of its schema)")
    if not node.attributes().output_idempotent:
        refuse(
            f"operator {node.name!r}: key={key!r}, and its function does not declare that a later record of "
            "a key replaces the earlier ones: readers would drop records that count; set "
            "is_output_idempotent = True on the function if it is so, or leave key out"
        )
    return replace(node, key=names, updating=not node.bounded)


def require_flushable(node: Operator) -> None:
    """Check that an operator with an interval of its own can be buffered.

    Raises:
        PlanError: It cannot.
    """
    found = node.flush_obstacle() if node.flush_ms and not node.bounded else None
    if found is not None:
        flush = show_duration(timedelta(milliseconds=node.flush_ms or 0))
        refuse(
            f"operator {node.name!r}: flush={flush}, and {found.why}: results that nothing replaces would "
            f"be lost; {found.change}, or leave flush out"
        )
