"""Built-in aggregates, record by record.

The arguments of an aggregate are columns, and a record maps columns to values. `FOLDS` defines each function
with the results of Spark's function of the same name; order is the order of arrival.
`flowcore.windows.columnar` folds whole columns with the same results. Accumulators are plain data.
"""

import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from flowcore.keyed.plain import to_plain
from flowcore.windows.arithmetic import average_decimals, exact_sum, from_units, to_units, wrap_int64

__all__ = ["FOLDS", "BuiltIn", "BuiltIns", "Fold", "is_less"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """One function.

    Attributes:
        add: Adds one record's arguments to an accumulator.
        merge: Merges two accumulators, the earlier one first.
        arguments: The number of arguments; none stands for ``*``.
        skips_nulls: A record whose last argument is null does not count.
        chooses_nulls: ``ignore nulls`` decides whether it skips nulls.
        distinct: It can be over distinct values.
    """

    create: Callable[[], Any]
    add: Callable[..., Any]
    merge: Callable[[Any, Any], Any]
    result: Callable[[Any], Any] = lambda kept: kept
    arguments: int = 1
    skips_nulls: bool = True
    chooses_nulls: bool = False
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """One aggregate.

    Args:
        function: Its name in `FOLDS`.
        columns: The columns of its arguments; none for ``*``.
        distinct: Equal values count once.
        ignore_nulls: ``first_value`` and ``last_value`` skip nulls; all other functions always do.
    """

    function: str
    columns: tuple[str, ...] = ()
    distinct: bool = False
    ignore_nulls: bool = False

    @property
    def fold(self) -> Fold:
        return FOLDS[self.function]

    def create(self) -> Any:
        return {} if self.distinct else self.fold.create()

    def add(self, accumulator: Any, record: Mapping[str, Any]) -> Any:
        fold, columns = FOLDS[self.function], self.columns
        if not columns:
            return fold.add(accumulator)
        last = record[columns[-1]]
        if last is None and (fold.skips_nulls or self.ignore_nulls):
            return accumulator
        if self.distinct:
            value = _normalize(last)
            accumulator.setdefault(_distinct_text(value), value)
            return accumulator
        if len(columns) == 1:
            return fold.add(accumulator, last)
        return fold.add(accumulator, *(record[column] for column in columns))

    def add_many(self, accumulator: Any, columns: Mapping[str, Sequence[Any]], records: int) -> Any:
        """Add records that are given by column, in order."""
        fold = FOLDS[self.function]
        if not self.columns:
            return accumulator + records  # only count(*) has no argument
        skips_nulls = fold.skips_nulls or self.ignore_nulls
        given = [columns[column] for column in self.columns]
        if len(given) > 1:
            for arguments in zip(*given, strict=True):
                if not (skips_nulls and arguments[-1] is None):
                    accumulator = fold.add(accumulator, *arguments)
            return accumulator
        values = [value for value in given[0] if value is not None] if skips_nulls else given[0]
        if self.distinct:
            for value in map(_normalize, _unique(values)):
                accumulator.setdefault(_distinct_text(value), value)
            return accumulator
        if self.function == "count":
            return accumulator + len(values)
        for value in values:
            accumulator = fold.add(accumulator, value)
        return accumulator

    def merge(self, first: Any, second: Any) -> Any:
        return {**first, **second} if self.distinct else self.fold.merge(first, second)

    def result(self, accumulator: Any) -> Any:
        if self.distinct:
            kept = self.fold.create()
            for value in accumulator.values():
                kept = self.fold.add(kept, value)
            accumulator = kept
        return self.fold.result(accumulator)


@dataclass(frozen=True, slots=True)
class BuiltIns:
    """Several aggregates, each with its output column, as one aggregate function whose result is a record.

    >>> both = BuiltIns((("n", BuiltIn("count")), ("top", BuiltIn("max", ("price",)))))
    >>> both.result(both.add(both.create(), {"price": 3}))
    {'n': 1, 'top': 3}
    """

    columns: tuple[tuple[str, BuiltIn], ...]

    def create(self) -> list[Any]:
        return [each.create() for _, each in self.columns]

    def add(self, accumulator: list[Any], value: Mapping[str, Any], /) -> list[Any]:
        return [each.add(kept, value) for kept, (_, each) in zip(accumulator, self.columns, strict=True)]

    def add_many(
        self, accumulator: list[Any], columns: Mapping[str, Sequence[Any]], records: int, /
    ) -> list[Any]:
        """Add records that are given by column, in order."""
        both = zip(accumulator, self.columns, strict=True)
        return [each.add_many(kept, columns, records) for kept, (_, each) in both]

    def merge(self, first: list[Any], second: list[Any], /) -> list[Any]:
        parts = zip(first, second, self.columns, strict=True)
        return [each.merge(one, other) for one, other, (_, each) in parts]

    def result(self, accumulator: list[Any], /) -> dict[str, Any]:
        return {name: each.result(kept) for kept, (name, each) in zip(accumulator, self.columns, strict=True)}


def _combining(
    combine: Callable[[Any, Any], Any],
    *,
    result: Callable[[Any], Any] = lambda kept: kept,
    distinct: bool = False,
) -> Fold:
    """A fold that keeps one value; None stands for no value yet."""

    def combined(kept: Any, value: Any) -> Any:
        if kept is None or value is None:
            return value if kept is None else kept
        return combine(kept, value)

    return Fold(create=lambda: None, add=combined, merge=combined, result=result, distinct=distinct)


def _nearest(better: Callable[[Any, Any], bool]) -> Fold:
    """The value where another column is least or greatest; among equal ones the last, as in Spark."""

    def merged(kept: list[Any] | None, new: list[Any] | None) -> list[Any] | None:
        if kept is None or new is None:
            return new if kept is None else kept
        return kept if better(kept[1], new[1]) else new

    return Fold(
        create=lambda: None,
        add=lambda kept, value, order: merged(kept, [value, order]),
        merge=merged,
        result=lambda kept: None if kept is None else kept[0],
        arguments=2,
    )


def _moments(less: int, root: Callable[[float], float]) -> Fold:
    """A fold that keeps count, mean and the sum of squared differences (Welford's method)."""

    def result(kept: list[Any]) -> float | None:
        return root(kept[2] / (kept[0] - less)) if kept[0] > less else None

    return Fold(create=lambda: [0, 0.0, 0.0], add=_add_moments, merge=_merge_moments, result=result)


def _one_of(*, last: bool) -> Fold:
    """The first or the last value, in a list because null is a value too."""
    return Fold(
        create=list,
        add=lambda kept, value: [value] if last or not kept else kept,
        merge=lambda one, other: (other or one) if last else (one or other),
        result=lambda kept: kept[0] if kept else None,
        skips_nulls=False,
        chooses_nulls=True,
    )


def is_less(one: Any, other: Any) -> bool:
    """Spark's order: not-a-number is above all numbers, and in lists and structs null is below all values."""
    if one is None or other is None:
        return one is None and other is not None
    if isinstance(one, list):
        return _is_less_by_item(one, other, otherwise=len(one) < len(other))
    if isinstance(one, dict):
        return _is_less_by_item(one.values(), other.values(), otherwise=False)
    if isinstance(one, float) and math.isnan(one):
        return False
    if isinstance(other, float) and math.isnan(other):
        return True
    return bool(one < other)


def _is_less_by_item(one: Iterable[Any], other: Iterable[Any], *, otherwise: bool) -> bool:
    """Whether the first item that differs is less; ``otherwise`` if none differs."""
    for mine, theirs in zip(one, other, strict=False):
        if is_less(mine, theirs):
            return True
        if is_less(theirs, mine):
            return False
    return otherwise


def _distinct_text(value: Any) -> str:
    """The JSON text of plain data, by which equal values are found; sooner for what is mostly counted."""
    kind = type(value)
    if kind is str:
        return json.encoder.encode_basestring_ascii(value)
    if kind is int and value.bit_length() <= 64:  # noqa: PLR2004 - longer ones have a form of their own
        return str(value)
    return json.dumps(to_plain(value))


def _unique(values: Sequence[Any]) -> Iterable[Any]:
    """The values in order, equal ones once where they can be found by their hash."""
    try:
        return dict.fromkeys(values)
    except TypeError:  # lists
        return values


def _normalize(value: Any) -> Any:
    """The one of equal values that stands for them: 0.0 for -0.0, at any depth."""
    match value:
        case float():
            return value + 0.0
        case list():
            return [_normalize(each) for each in value]
        case dict():
            return {name: _normalize(each) for name, each in value.items()}
        case _:
            return value


def _sum_result(total: Any) -> Any:
    """A sum as a value of its type.

    The type of a sum of decimals with few digits holds 10**10 of them; no window has more.
    """
    if isinstance(total, Decimal):
        scale = _scale(total)
        return from_units(to_units(total, scale), scale)
    return wrap_int64(total) if isinstance(total, int) else total


def _as_double(value: Any) -> Any:
    return float(value) if isinstance(value, int) else value


def _mean(kept: list[Any]) -> Any:
    records, total = kept
    if not records:
        return None
    if isinstance(total, Decimal):
        scale = _scale(total)
        return average_decimals(to_units(total, scale), scale, records)
    return total / records


def _scale(number: Decimal) -> int:
    """The number of digits after the point, which a value from Arrow has as its type."""
    exponent = number.as_tuple().exponent
    return max(-exponent, 0) if isinstance(exponent, int) else 0


def _add_moments(kept: list[Any], value: Any) -> list[Any]:
    records, mean, squares = kept[0] + 1, kept[1], kept[2]
    away = float(value) - mean
    step = away / records
    return [records, mean + step, squares + away * (away - step)]


def _merge_moments(one: list[Any], other: list[Any]) -> list[Any]:
    records = one[0] + other[0]
    if not records:
        return one
    away = other[1] - one[1]
    mean = one[1] + away * other[0] / records
    return [records, mean, one[2] + other[2] + away * away * one[0] * other[0] / records]


def _append(kept: list[Any], value: Any) -> list[Any]:
    kept.append(value)
    return kept


FOLDS: Mapping[str, Fold] = {
    "count": Fold(create=int, add=lambda kept, *_: kept + 1, merge=operator.add, arguments=1, distinct=True),
    "count_if": Fold(create=int, add=lambda kept, true: kept + bool(true), merge=operator.add),
    "sum": _combining(exact_sum, result=_sum_result, distinct=True),
    "avg": Fold(
        create=lambda: [0, 0],
        # Whole numbers are added as doubles, as in Spark.
        add=lambda kept, value: [kept[0] + 1, exact_sum(kept[1], _as_double(value))],
        merge=lambda one, other: [one[0] + other[0], exact_sum(one[1], other[1])],
        result=_mean,
        distinct=True,
    ),
    "min": _combining(lambda kept, value: value if is_less(value, kept) else kept),
    "max": _combining(lambda kept, value: value if is_less(kept, value) else kept),
    "min_by": _nearest(is_less),
    "max_by": _nearest(lambda new, kept: is_less(kept, new)),
    "first_value": _one_of(last=False),
    "last_value": _one_of(last=True),
    "bool_and": _combining(lambda one, other: one and other),
    "bool_or": _combining(lambda one, other: one or other),
    "stddev_samp": _moments(1, math.sqrt),
    "stddev_pop": _moments(0, math.sqrt),
    "var_samp": _moments(1, float),
    "var_pop": _moments(0, float),
    "collect_list": Fold(create=list, add=_append, merge=operator.add, result=list, distinct=True),
}
"""Every built-in aggregate by its name."""
