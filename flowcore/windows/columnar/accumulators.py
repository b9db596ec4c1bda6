"""Accumulators of built-in aggregates that NumPy updates column by column.

An aggregate is computed from one or two accumulators, each a number per key and window. Aggregates share
them. The results are those of `flowcore.windows.built_in`, which works record by record.
`AccumulatorTable` has them by key.
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

from flowcore.errors import PlanError
from flowcore.keyed.columns import KeyColumns, take_rows
from flowcore.keyed.key_index import Ints, KeyIndex, to_python_keys
from flowcore.windows.arithmetic import MAX_DIGITS, wrap_int64
from flowcore.windows.built_in import BuiltIn

__all__ = [
    "Accumulator", "AccumulatorColumns", "AccumulatorTable", "ColumnarAggregates", "is_summable",
    "result_type",
]  # fmt: skip

_Numbers = npt.NDArray[Any]
AccumulatorColumns = dict["Accumulator", _Numbers]
"""The values of each accumulator, in the same order of keys."""

_COLUMNAR = frozenset({"count", "count_if", "sum", "avg", "min", "max", "bool_and", "bool_or"})
_ORDERED = frozenset({"min", "max", "min_by", "max_by"})
_MOMENTS = frozenset({"stddev_samp", "stddev_pop", "var_samp", "var_pop"})
_OF_NUMBERS = frozenset({"sum", "avg", *_MOMENTS})
_OF_BOOLEANS = frozenset({"count_if", "bool_and", "bool_or"})
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One number per key and window.

    Attributes:
        kind: How values are combined; ``float-sum`` adds integers as floats, as Spark's `avg` does.
        column: The column of the values; None counts records.
        floating: It is a 64-bit float instead of a 64-bit integer.
    """

    kind: Literal["count", "sum", "float-sum", "min", "max"]
    column: str | None
    floating: bool = False

    @property
    def name(self) -> str:
        """Its column in a segment."""
        return f"{self.kind}:{self.column or ''}"

    @property
    def dtype(self) -> type[np.float64 | np.int64]:
        return np.float64 if self.floating else np.int64

    @property
    def identity(self) -> Any:
        """The value that changes no other value when it is combined with it."""
        match self.kind:
            case "count" | "sum" | "float-sum":
                return self.dtype(0)
            case "min":  # fmin ignores not-a-number, which Spark orders above all numbers
                return np.float64("nan") if self.floating else np.int64(_INT64.max)
            case "max":
                return np.float64("-inf") if self.floating else np.int64(_INT64.min)

    @property
    def combine(self) -> np.ufunc:
        if self.kind == "min":
            return np.fmin if self.floating else np.minimum
        return np.maximum if self.kind == "max" else np.add

    @property
    def combine_numbers(self) -> Callable[[Any, Any], Any]:
        """Combines two Python numbers; a sum may exceed 64 bits until `to_array` wraps it."""
        if self.kind == "min":
            return _fmin if self.floating else min
        if self.kind == "max":
            return _maximum if self.floating else max
        return operator.add

    def to_array(self, values: Sequence[Any]) -> _Numbers:
        """Convert Python numbers to a column; integers wrap around as in NumPy."""
        if not self.floating and self.kind == "sum":
            values = [wrap_int64(value) for value in values]
        return np.array(values, self.dtype)

    def values_of(self, rows: pa.RecordBatch) -> _Numbers:
        if self.column is None:
            return np.ones(rows.num_rows, np.int64)
        column = rows.column(self.column)
        if self.kind == "count":
            return column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
        kind = column.type
        if pa.types.is_date32(kind):
            column = column.cast(pa.int32())
        # Not safe: an integer of more than 53 bits is rounded to a float.
        numbers: pa.Array[Any] = column.cast(pa.float64() if self.floating else pa.int64(), safe=False)
        values: _Numbers = numbers.fill_null(0).to_numpy(zero_copy_only=False)
        if column.null_count:
            return np.where(column.is_valid().to_numpy(zero_copy_only=False), values, self.identity)
        return values

    def running(self, values: _Numbers, groups: Ints, before: _Numbers) -> _Numbers:
        """Return the value after each record: that of its group before, with the group's records so far."""
        if self.floating:  # pandas corrects its sums, as the state does not, and skips infinities
            totals, found = before.tolist(), []
            for value, group in zip(values.tolist(), groups.tolist(), strict=True):
                totals[group] = self.combine_numbers(totals[group], value)
                found.append(totals[group])
            return np.array(found, self.dtype)
        grouped = pd.Series(values).groupby(groups, sort=False)
        name = f"cum{self.kind}" if self.kind in ("min", "max") else "cumsum"
        running: _Numbers = self.combine(before[groups], getattr(grouped, name)().to_numpy())
        return running


@dataclass(frozen=True, slots=True)
class ColumnarAggregates:
    """Built-in aggregates, each with its output column, over columns of known types."""

    aggregates: tuple[tuple[str, BuiltIn], ...]
    types: Mapping[str, pa.DataType]

    @staticmethod
    def refusal(aggregates: Iterable[tuple[str, BuiltIn]], types: Mapping[str, pa.DataType]) -> str | None:
        """Return why the aggregates cannot be computed by column, None if they can."""
        for name, each in aggregates:
            if each.function not in _COLUMNAR:
                return f"{name} is {each.function}, which is not computed by column"
            if each.distinct:
                return f"{name} is over distinct values"
            if len(each.columns) > 1:
                return f"{name} has several arguments"
            for column in each.columns:
                if each.function != "count" and not _is_number(types[column], each.function):
                    return f"{name} is {each.function} of {types[column]}, which is not a number of 64 bits"
        return None

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        """All accumulators; the first counts records."""
        needed = [Accumulator("count", None)]
        for _, each in self.aggregates:
            needed += self._accumulators(each)
        return tuple(dict.fromkeys(needed))

    def result_types(self) -> dict[str, pa.DataType]:
        return {name: result_type(each, self.types) for name, each in self.aggregates}

    def results(self, columns: AccumulatorColumns) -> dict[str, pa.Array[Any]]:
        return {name: self._result(each, columns) for name, each in self.aggregates}

    def _accumulators(self, each: BuiltIn) -> Sequence[Accumulator]:
        if not each.columns:
            return (Accumulator("count", None),)
        (column,) = each.columns
        floating = pa.types.is_floating(self.types[column])
        count = Accumulator("count", column)
        match each.function:
            case "count":
                return (count,)
            case "count_if":
                return (Accumulator("sum", column),)
            case "avg" if not floating:
                return (count, Accumulator("float-sum", column, floating=True))
            case "sum" | "avg":
                return (count, Accumulator("sum", column, floating))
            case "bool_and" | "min":
                return (count, Accumulator("min", column, floating))
            case _:
                return (count, Accumulator("max", column, floating))

    def _result(self, each: BuiltIn, columns: AccumulatorColumns) -> pa.Array[Any]:
        *_, accumulator = self._accumulators(each)
        values = columns[accumulator]
        if accumulator.kind == "count" or each.function == "count_if":
            return pa.array(values)
        records = columns[Accumulator("count", accumulator.column)]
        is_null = records == 0
        if each.function == "avg":
            with np.errstate(divide="ignore", invalid="ignore"):
                return pa.array(values / records, mask=is_null)
        result: pa.Array[Any] = pa.array(values, mask=is_null)
        kind = result_type(each, self.types)
        return (result.cast(pa.int32()) if pa.types.is_date32(kind) else result).cast(kind)


def result_type(aggregate: BuiltIn, types: Mapping[str, pa.DataType]) -> pa.DataType:
    """Return the type of a built-in aggregate, as in Spark.

    Raises:
        PlanError: It needs an order of maps, or numbers and gets others.
    """
    _require_type(aggregate, types)
    if aggregate.function in _ORDERED and _has_map(ordered := types[aggregate.columns[-1]]):
        msg = (
            f"{aggregate.function} by {aggregate.columns[-1]!r} of type {ordered}: maps have no order, so no "
            "value is the least or the greatest; use an expression such as map_entries(...) or of one value"
        )
        raise PlanError(msg)
    match aggregate.function:
        case "count" | "count_if":
            return pa.int64()
        case function if function in _MOMENTS:
            return pa.float64()
    kind = types[aggregate.columns[0]]
    match aggregate.function:
        case "sum" if pa.types.is_decimal(kind):
            return pa.decimal128(min(kind.precision + 10, MAX_DIGITS), kind.scale)
        case "sum":
            return pa.float64() if pa.types.is_floating(kind) else pa.int64()
        case "avg" if pa.types.is_decimal(kind):
            return pa.decimal128(min(kind.precision + 4, MAX_DIGITS), min(kind.scale + 4, MAX_DIGITS))
        case "avg":
            return pa.float64()
        case "collect_list":
            return pa.list_(kind)
        case _:
            return kind


def _require_type(aggregate: BuiltIn, types: Mapping[str, pa.DataType]) -> None:
    if aggregate.function not in _OF_NUMBERS | _OF_BOOLEANS:
        return
    given = types[aggregate.columns[0]]
    if aggregate.function in _OF_NUMBERS and not (is_summable(given) or pa.types.is_null(given)):
        msg = (
            f"{aggregate.function} of {aggregate.columns[0]!r} of type {given}, which is not a number: there "
            "is no result; cast the argument, for instance to DOUBLE"
        )
        raise PlanError(msg)
    if aggregate.function in _OF_BOOLEANS and not pa.types.is_boolean(given):
        msg = (
            f"{aggregate.function} of {aggregate.columns[0]!r} of type {given}, which is not BOOLEAN: it is "
            "not known which values are true; use a condition"
        )
        raise PlanError(msg)


def is_summable(kind: pa.DataType) -> bool:
    """Whether values of a type can be summed."""
    types = pa.types
    return types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)


def _has_map(kind: pa.DataType) -> bool:
    fields = (kind.field(position) for position in range(kind.num_fields))
    return pa.types.is_map(kind) or any(_has_map(field.type) for field in fields)


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


_MIN_CAPACITY = 64


class AccumulatorTable:
    """Accumulators by key."""

    __slots__ = ("_changed", "_columns", "_index", "_keys")

    def __init__(self, accumulators: Sequence[Accumulator]) -> None:
        self._columns: AccumulatorColumns = {each: np.empty(0, each.dtype) for each in accumulators}
        self._index = KeyIndex()
        self._keys: list[KeyColumns] = []
        self._changed: list[Ints] = []

    def __len__(self) -> int:
        return len(self._index)

    def find(self, keys: Sequence[Any]) -> Ints:
        """Return the position of each key, -1 if it has none."""
        return self._index.find(keys)

    def positions(self, keys: Sequence[Any], columns: KeyColumns) -> Ints:
        """Return the position of each of some distinct keys, adding the new ones."""
        found, new = self._index.number(keys)
        if len(new):
            self._keys.append(columns if len(new) == len(keys) else take_rows(columns, new))
            self._grow()
        self._changed.append(found)
        return found

    def combine(self, accumulator: Accumulator, positions: Ints, values: Any) -> None:
        """Combine values with those at positions, some of which may be equal."""
        accumulator.combine.at(self._columns[accumulator], positions, values)

    def values(self, positions: Ints | None = None) -> AccumulatorColumns:
        """Return the values at some positions, or all."""
        count = len(self._index)
        return {
            each: column[:count] if positions is None else column[positions]
            for each, column in self._columns.items()
        }

    def keys(self, positions: Ints | None = None) -> KeyColumns:
        """Return the keys at some positions, or all."""
        if len(self._keys) > 1:
            self._keys = [[pa.concat_arrays(parts) for parts in zip(*self._keys, strict=True)]]
        whole = self._keys[0] if self._keys else []
        return whole if positions is None else take_rows(whole, positions)

    def take_changed(self) -> Ints:
        """Return the positions that `positions` has returned since the last call."""
        changed = np.unique(np.concatenate(self._changed)) if self._changed else np.empty(0, np.int64)
        self._changed = []
        return changed

    def restore(self, columns: KeyColumns, values: Mapping[Accumulator, Any], count: int) -> None:
        positions = self.positions(to_python_keys(columns, count), columns)
        for each, column in self._columns.items():
            column[positions] = values[each]
        self._changed = []

    def reset(self, positions: Ints) -> None:
        """Let keys have the values of new ones."""
        for each, column in self._columns.items():
            column[positions] = each.identity

    def retain(self, positions: Ints) -> None:
        """Forget all keys but those at these ascending positions, and what has changed."""
        self._keys = [self.keys(positions)]
        self._index.retain(positions)
        self._columns = {each: column[positions] for each, column in self._columns.items()}
        self._changed = []

    def _grow(self) -> None:
        wanted = len(self._index)
        for each, column in self._columns.items():
            if len(column) < wanted:
                grown = np.full(max(_MIN_CAPACITY, 2 * len(column), wanted), each.identity, each.dtype)
                grown[: len(column)] = column
                self._columns[each] = grown
