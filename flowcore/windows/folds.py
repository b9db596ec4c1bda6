"""Folds: what do the built-in aggregates keep, record by record, and what do they make of it?

What Spark's functions of the same names give; order is the order of arrival. A runtime that folds whole
columns has to give the same. Accumulators are plain data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

__all__ = ["FOLDS", "Fold"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """One function.

    Attributes:
        create: An accumulator of nothing.
        add: The accumulator with one more record's arguments.
        merge: That of two, the one that began first first.
        result: What comes out.
        arguments: How many it takes; none stands for ``*``.
        skips_nulls: A record whose last argument is null does not count.
        chooses_nulls: ``ignore nulls`` decides whether it skips them.
        distinct: It may be over distinct values.
    """

    create: Callable[[], Any]
    add: Callable[..., Any]
    merge: Callable[[Any, Any], Any]
    result: Callable[[Any], Any] = lambda kept: kept
    arguments: int = 1
    skips_nulls: bool = True
    chooses_nulls: bool = False
    distinct: bool = False


def _nothing() -> None:
    return None


def _either(combine: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Combine two, where None stands for nothing yet."""

    def combined(kept: Any, value: Any) -> Any:
        if kept is None or value is None:
            return value if kept is None else kept
        return combine(kept, value)

    return combined


def _less(one: Any, other: Any) -> bool:
    """Spark's order: not-a-number is above all numbers."""
    if isinstance(one, float) and math.isnan(one):
        return False
    if isinstance(other, float) and math.isnan(other):
        return True
    return bool(one < other)


def _mean_add(kept: list[Any], value: Any) -> list[Any]:
    return [kept[0] + 1, kept[1] + value]


def _mean(kept: list[Any]) -> Any:
    records, total = kept
    if not records:
        return None
    return total / (Decimal(records) if isinstance(total, Decimal) else records)


def _moments_add(kept: list[Any], value: Any) -> list[Any]:
    records, mean, squares = kept[0] + 1, kept[1], kept[2]
    away = float(value) - mean
    mean += away / records
    return [records, mean, squares + away * (float(value) - mean)]


def _moments_merge(one: list[Any], other: list[Any]) -> list[Any]:
    records = one[0] + other[0]
    if not records:
        return one
    away = other[1] - one[1]
    mean = one[1] + away * other[0] / records
    return [records, mean, one[2] + other[2] + away * away * one[0] * other[0] / records]


def _variance(less: int) -> Callable[[list[Any]], float | None]:
    return lambda kept: kept[2] / (kept[0] - less) if kept[0] > less else None


def _deviation(less: int) -> Callable[[list[Any]], float | None]:
    return lambda kept: math.sqrt(kept[2] / (kept[0] - less)) if kept[0] > less else None


def _append(kept: list[Any], value: Any) -> list[Any]:
    kept.append(value)
    return kept


def _nearest(better: Callable[[Any, Any], bool]) -> Fold:
    """The value where another one is least or greatest; the last of equals, as in Spark."""

    def merged(kept: list[Any] | None, new: list[Any] | None) -> list[Any] | None:
        if kept is None or new is None:
            return new if kept is None else kept
        return kept if better(kept[1], new[1]) else new

    return Fold(
        create=_nothing,
        add=lambda kept, value, order: merged(kept, [value, order]),
        merge=merged,
        result=lambda kept: None if kept is None else kept[0],
        arguments=2,
    )


def _plain(combine: Callable[[Any, Any], Any], *, distinct: bool = False) -> Fold:
    combined = _either(combine)
    return Fold(create=_nothing, add=combined, merge=combined, distinct=distinct)


def _moments(result: Callable[[list[Any]], Any]) -> Fold:
    return Fold(create=lambda: [0, 0.0, 0.0], add=_moments_add, merge=_moments_merge, result=result)


def _one_of(*, last: bool) -> Fold:
    """The first or the last value; null is one too, so it is kept in a list."""
    return Fold(
        create=list,
        add=lambda kept, value: [value] if last or not kept else kept,
        merge=lambda one, other: (other or one) if last else (one or other),
        result=lambda kept: kept[0] if kept else None,
        skips_nulls=False,
        chooses_nulls=True,
    )


def _added(one: Any, other: Any) -> Any:
    return one + other


FOLDS: Mapping[str, Fold] = {
    "count": Fold(create=int, add=lambda kept, *_: kept + 1, merge=_added, arguments=1, distinct=True),
    "count_if": Fold(create=int, add=lambda kept, true: kept + bool(true), merge=_added),
    "sum": _plain(_added, distinct=True),
    "avg": Fold(
        create=lambda: [0, 0],
        add=_mean_add,
        merge=lambda one, other: [one[0] + other[0], one[1] + other[1]],
        result=_mean,
        distinct=True,
    ),
    "min": _plain(lambda kept, value: value if _less(value, kept) else kept),
    "max": _plain(lambda kept, value: value if _less(kept, value) else kept),
    "min_by": _nearest(_less),
    "max_by": _nearest(lambda new, kept: _less(kept, new)),
    "first_value": _one_of(last=False),
    "last_value": _one_of(last=True),
    "bool_and": _plain(lambda one, other: one and other),
    "bool_or": _plain(lambda one, other: one or other),
    "stddev_samp": _moments(_deviation(1)),
    "stddev_pop": _moments(_deviation(0)),
    "var_samp": _moments(_variance(1)),
    "var_pop": _moments(_variance(0)),
    "collect_list": Fold(create=list, add=_append, merge=_added, result=list, distinct=True),
}
"""Every built-in aggregate by its name."""
