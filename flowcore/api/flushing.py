"""Flushing: may an operator's output be held back, so that only the latest of each key leaves?

It may if a later output replaces the earlier ones (``output_idempotent``), and if something says which: a
key, or one place where all of it is made. Spark's own operators that work row by row are never held back;
what they read is.

Source: FLIP-365, Introduce flush interval to adjust the interval of emitting results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from flowcore.api.expressions import resolve
from flowcore.api.operators import FlatMap, Map, Operator
from flowcore.durations import MILLISECOND, show_duration
from flowcore.errors import PlanError

__all__ = ["declare_key", "flush_interval_ms", "require_flushable"]


def flush_interval_ms(operator: str, flush: timedelta | None) -> int | None:
    """An interval that was declared with an operator, in milliseconds.

    Raises:
        PlanError: It is no length of time, is negative, or has a part of a millisecond.
    """
    if flush is None:
        return None
    if not isinstance(flush, timedelta) or flush < timedelta(0) or flush % MILLISECOND:
        msg = (
            f"operator {operator!r}: flush={flush!r} is no whole number of milliseconds from 0 up: its "
            "output could not be held back that long; pass for instance timedelta(minutes=2), or "
            "timedelta(0) to hold nothing back"
        )
        raise PlanError(msg)
    return flush // MILLISECOND


def declare_key(node: Map | FlatMap, key: str | Sequence[str] | None) -> Map | FlatMap:
    """A Python function with the key that is declared with it; its later output replaces earlier output.

    Raises:
        PlanError: A column is unknown, or the function does not declare that its output replaces.
    """
    if key is None:
        return node
    columns = (key,) if isinstance(key, str) else tuple(key)
    names = resolve(columns, node.columns, node.name, f"key={key!r} (of its schema)")
    if not node.attributes().output_idempotent:
        msg = (
            f"operator {node.name!r}: key={key!r}, and its function does not declare that a later record of "
            "a key replaces the earlier ones: readers would drop records that count; set "
            "is_output_idempotent = True on the function if it is so, or leave key out"
        )
        raise PlanError(msg)
    return replace(node, key=names, updating=not node.bounded)


def require_flushable(node: Operator) -> None:
    """An operator with an interval of its own can be held back for so long.

    Raises:
        PlanError: It cannot.
    """
    found = node.flush_obstacle() if node.flush_ms and not node.bounded else None
    if found is not None:
        flush = show_duration(timedelta(milliseconds=node.flush_ms or 0))
        msg = (
            f"operator {node.name!r}: flush={flush}, and {found.why}: results that nothing replaces would "
            f"be lost; {found.change}, or leave flush out"
        )
        raise PlanError(msg)
