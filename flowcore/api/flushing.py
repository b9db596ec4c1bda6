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
from typing import NamedTuple

from flowcore.api.expressions import resolve
from flowcore.api.idempotent import not_idempotent
from flowcore.api.operators import (
    Aggregate,
    Filter,
    FlatMap,
    KeyedProcess,
    Map,
    MapBatches,
    Operator,
    Read,
    Window,
    Write,
)
from flowcore.api.stateful import WINDOW_COLUMNS
from flowcore.durations import MILLISECOND, show_duration
from flowcore.errors import PlanError

__all__ = ["Obstacle", "declare_key", "find_obstacle", "flush_interval_ms", "flush_key", "require_flushable"]


class Obstacle(NamedTuple):
    """Why the output of an operator is never held back, and what would change it (empty for nothing)."""

    why: str
    change: str = ""


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


def flush_key(node: Operator) -> tuple[str, ...] | None:
    """The columns of which the latest output is kept: of its output, of a process function of its input.

    None if nothing says which output replaces which; empty where there is one output for everything.
    """
    match node:
        case KeyedProcess():
            return node.by
        case Window():
            return (*node.by, *WINDOW_COLUMNS[:2])
        case _:
            return node.key


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


def find_obstacle(node: Operator) -> Obstacle | None:
    """Why an operator of a live query is never held back, whatever the settings are; None if it may be."""
    match node:
        case Write():
            return Obstacle("it is a sink")
        case Read():
            return Obstacle("it is a source")
        case Aggregate() | Window() | KeyedProcess() | Map() | Filter() | FlatMap() | MapBatches():
            return _not_idempotent(node) or _no_key(node)
        case _:
            return Obstacle("it puts out what it is given, so what it reads is held back, and not it")


def require_flushable(node: Operator) -> None:
    """An operator with an interval of its own can be held back for so long.

    Raises:
        PlanError: It cannot.
    """
    found = find_obstacle(node) if node.flush_ms and not node.bounded else None
    if found is not None:
        flush = show_duration(timedelta(milliseconds=node.flush_ms or 0))
        msg = (
            f"operator {node.name!r}: flush={flush}, and {found.why}: results that nothing replaces would "
            f"be lost; {found.change}, or leave flush out"
        )
        raise PlanError(msg)


def _not_idempotent(node: Operator) -> Obstacle | None:
    if node.attributes().output_idempotent:
        return None
    declare = "declare it with attributes=OperatorAttributesBuilder().set_output_idempotent(True), if so"
    if isinstance(node, Aggregate):
        names = dict.fromkeys(name for _, each in node.aggregates for name in not_idempotent(each.text))
        if names:
            why = f"of {', '.join(names)} it is not known that a later result replaces earlier ones"
            return Obstacle(why, declare)
    if isinstance(node, Window) and node.key is None:
        return Obstacle(
            "an emission of its windows does not replace the earlier ones (output_idempotent)",
            "use windows without a purging trigger, an evictor or a process function",
        )
    why = "its output does not replace earlier output (output_idempotent)"
    return Obstacle(why, f"{declare}, or is_output_idempotent = True on its function")


def _no_key(node: Operator) -> Obstacle | None:
    if isinstance(node, KeyedProcess) and node.function.by_batch():
        return Obstacle("a batch that its function returns has no one key", "process records one by one")
    if flush_key(node) is not None:
        return None
    return Obstacle(
        "no key says which output replaces which, and it is not made in one place",
        "give it key= one or more of its columns"
        if isinstance(node, Map | FlatMap)
        else "use process(by=...)",
    )
