"""Aggregates by column: which built-in aggregates are folded with NumPy, and what is kept for each?

What is kept is a list of *fields*, numbers that are combined by a NumPy function; aggregates share them. The
meaning is that of `flowcore.windows.built_in`, which folds record by record.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from flowcore.keyed.key_index import Ints
from flowcore.windows.built_in import BuiltIn
from flowcore.windows.columnar.result_types import result_type

__all__ = ["Accumulator", "AccumulatorColumns", "ColumnarAggregates"]

Numbers = npt.NDArray[Any]
AccumulatorColumns = dict["Accumulator", Numbers]
"""Of each field the values of some slots."""

_What = Literal["count", "sum", "min", "max"]
_INT64 = np.iinfo(np.int64)
_SIGN, _BITS = 1 << 63, (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One number that is kept.

    Attributes:
        what: How it is combined.
        column: Of which column; None counts records.
        floating: It is a 64-bit float, else a 64-bit integer.
    """

    what: _What
    column: str | None
    floating: bool = False

    @property
    def name(self) -> str:
        """As a column of a segment."""
        return f"{self.what}:{self.column or ''}"

    @property
    def dtype(self) -> type[np.float64 | np.int64]:
        """What the number is."""
        return np.float64 if self.floating else np.int64

    @property
    def nothing(self) -> Any:
        """What combines with any value to that value."""
        match self.what:
            case "count" | "sum":
                return self.dtype(0)
            case "min":  # fmin passes over not-a-number, which Spark puts above all numbers
                return np.float64("nan") if self.floating else np.int64(_INT64.max)
            case "max":
                return np.float64("-inf") if self.floating else np.int64(_INT64.min)

    @property
    def combine(self) -> np.ufunc:
        """How two are combined."""
        match self.what:
            case "count" | "sum":
                return np.add
            case "min":
                return np.fmin if self.floating else np.minimum
            case "max":
                return np.maximum

    @property
    def combine_two(self) -> Callable[[Any, Any], Any]:
        """How two Python numbers are combined; sums may leave 64 bits until `array` wraps them."""
        match self.what:
            case "count" | "sum":
                return operator.add
            case "min":
                return _fmin if self.floating else min
            case "max":
                return _maximum if self.floating else max

    def array(self, values: Sequence[Any]) -> Numbers:
        """Python numbers as a column; integers wrap around as they do in NumPy."""
        if not self.floating and self.what == "sum":
            values = [(value + _SIGN & _BITS) - _SIGN for value in values]
        return np.array(values, self.dtype)

    def of(self, rows: pa.RecordBatch) -> Numbers:
        """Its value for each record."""
        if self.column is None:
            return np.ones(rows.num_rows, np.int64)
        column = rows.column(self.column)
        if self.what == "count":
            return column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
        values = _numbers(column)
        if column.null_count:
            known = column.is_valid().to_numpy(zero_copy_only=False)
            return np.where(known, values, self.nothing)
        return values

    def running(self, values: Numbers, groups: Ints) -> Numbers:
        """Its value after each record, over the earlier ones of the same group."""
        series = pd.Series(values)
        if self.floating and not np.isfinite(values).all():
            return _running_slowly(self, values, groups)
        grouped = series.groupby(groups, sort=False)
        match self.what:
            case "count" | "sum":
                return grouped.cumsum().to_numpy()
            case "min":
                return grouped.cummin().to_numpy()
            case "max":
                return grouped.cummax().to_numpy()


@dataclass(frozen=True, slots=True)
class ColumnarAggregates:
    """Some built-in aggregates over columns of known types.

    Args:
        aggregates: ``(output column, aggregate)``.
        types: Of the columns that they read.
    """

    aggregates: tuple[tuple[str, BuiltIn], ...]
    types: Mapping[str, pa.DataType]

    @staticmethod
    def refusal(aggregates: Iterable[tuple[str, BuiltIn]], types: Mapping[str, pa.DataType]) -> str | None:
        """Why these cannot be folded by column, None if they can."""
        for name, each in aggregates:
            if each.function not in _RESULTS:
                return f"{name} is {each.function}, which is not folded by column"
            if each.distinct:
                return f"{name} is over distinct values"
            if len(each.columns) > 1:
                return f"{name} has several arguments"
            for column in each.columns:
                if each.function != "count" and not _is_number(types[column], each.function):
                    return f"{name} is {each.function} of {types[column]}, which is no number of 64 bits"
        return None

    @property
    def fields(self) -> tuple[Accumulator, ...]:
        """All that is kept; the first counts records."""
        found = [Accumulator("count", None)]
        for _, each in self.aggregates:
            found += self._fields(each)
        return tuple(dict.fromkeys(found))

    def result_types(self) -> dict[str, pa.DataType]:
        """Of each output column its type."""
        return {name: result_type(each, self.types) for name, each in self.aggregates}

    def results(self, kept: AccumulatorColumns) -> dict[str, pa.Array[Any]]:
        """What comes out, for each slot."""
        return {name: self._result(each, kept) for name, each in self.aggregates}

    def _fields(self, each: BuiltIn) -> Sequence[Accumulator]:
        if not each.columns:
            return (Accumulator("count", None),)
        (column,) = each.columns
        floating = pa.types.is_floating(self.types[column])
        known = Accumulator("count", column)
        match each.function:
            case "count":
                return (known,)
            case "count_if":
                return (Accumulator("sum", column),)
            case "sum" | "avg":
                return (known, Accumulator("sum", column, floating))
            case "bool_and" | "min":
                return (known, Accumulator("min", column, floating))
            case _:
                return (known, Accumulator("max", column, floating))

    def _result(self, each: BuiltIn, kept: AccumulatorColumns) -> pa.Array[Any]:
        *_, field = self._fields(each)
        values = kept[field]
        if field.what == "count" or each.function == "count_if":
            return pa.array(values)
        records = kept[Accumulator("count", field.column)]
        nothing = records == 0
        if each.function == "avg":
            with np.errstate(divide="ignore", invalid="ignore"):
                return pa.array(values / records, mask=nothing)
        found: pa.Array[Any] = pa.array(values, mask=nothing)
        kind = result_type(each, self.types)
        return (found.cast(pa.int32()) if pa.types.is_date32(kind) else found).cast(kind)


_RESULTS = frozenset({"count", "count_if", "sum", "avg", "min", "max", "bool_and", "bool_or"})


def _fmin(one: float, other: float) -> float:
    return other if one != one or other < one else one  # noqa: PLR0124 - not-a-number is above all numbers


def _maximum(one: float, other: float) -> float:
    return other if other != other or other > one else one  # noqa: PLR0124


def _is_number(kind: pa.DataType, function: str) -> bool:
    if function in ("count_if", "bool_and", "bool_or"):
        return pa.types.is_boolean(kind)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return True
    return function in ("min", "max") and (pa.types.is_timestamp(kind) or pa.types.is_date32(kind))


def _numbers(column: pa.Array[Any]) -> Numbers:
    kind = column.type
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    found: pa.Array[Any] = column.cast(pa.float64() if pa.types.is_floating(kind) else pa.int64())
    numbers: Numbers = found.fill_null(0).to_numpy(zero_copy_only=False)
    return numbers


def _running_slowly(field: Accumulator, values: Numbers, groups: Ints) -> Numbers:
    """With infinities and not-a-number, which pandas passes over."""
    last: dict[int, Any] = {}
    found = np.empty_like(values)
    for position, (value, group) in enumerate(zip(values, groups.tolist(), strict=True)):
        last[group] = field.combine(last[group], value) if group in last else value
        found[position] = last[group]
    return found
