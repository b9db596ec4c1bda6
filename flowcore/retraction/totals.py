"""Totals of changing rows: the state of an aggregate of one column, from which values can be taken back.

Sums are exact: taking a value back leaves what the sum would be without it, which floating-point addition
does not. A sum is an integer: of 64-bit integers it wraps around as Spark's, of decimals it has their scale,
and of floating-point numbers it counts the smallest positive one, of which all others are multiples.
Infinities and not-a-number are counted by value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flowcore.keyed.key_index import to_key_values
from flowcore.keyed.plain import NAN
from flowcore.windows.arithmetic import average_decimals, from_units, to_units, wrap_int64
from flowcore.windows.built_in import BuiltIn

__all__ = ["Argument", "Total"]

_SMALLEST_EXPONENT = 1074
"""The smallest positive float is ``2 ** -_SMALLEST_EXPONENT``."""
_UNKNOWN = object()


@dataclass(frozen=True, slots=True)
class Argument:
    """A column whose values are aggregated.

    Attributes:
        sums: Whether the sum is kept.
        counts: Whether occurrences of each value are counted, for min, max and distinct counts.
    """

    column: str
    type: pa.DataType
    sums: bool
    counts: bool

    @property
    def floating(self) -> bool:
        return pa.types.is_floating(self.type)

    @property
    def scale(self) -> int:
        """The number of digits of a decimal after the point."""
        return self.type.scale if isinstance(self.type, pa.Decimal128Type) else 0

    def read(self, column: pa.Array[Any]) -> list[Any]:
        """The values of a column without nulls, as Python objects; -0.0 is 0.0."""
        if self.floating:
            column = pc.add(column.cast(pa.float64()), 0.0) if self.counts or self.sums else column
        return to_key_values(column)

    def to_integer(self) -> Callable[[Any], int]:
        """Converts finite values to what is summed."""
        if self.floating:
            return _to_multiple
        if pa.types.is_decimal(self.type):
            scale = self.scale
            return lambda value: to_units(value, scale)
        return int

    def write_sum(self, total: int) -> str:
        """A sum as text for the state."""
        if not self.floating:
            return str(total)
        zeros = (total & -total).bit_length() - 1 if total else 0
        return f"{total >> zeros:x}p{zeros - _SMALLEST_EXPONENT}"

    def read_sum(self, text: str) -> int:
        """The sum that `write_sum` wrote."""
        if not self.floating:
            return int(text)
        number, _, power = text.partition("p")
        return int(number, 16) << (int(power) + _SMALLEST_EXPONENT)


class Total:
    """The values of one column in one group.

    Attributes:
        count_of_values: How many values it has.
        total: The sum of the finite values.
        values: The occurrences of each value; if the column is only summed, of non-finite values only.
    """

    __slots__ = ("_greatest", "_least", "count_of_values", "total", "values")

    def __init__(self) -> None:
        self.count_of_values = 0
        self.total = 0
        self.values: dict[Any, int] = {}
        self._least: Any = _UNKNOWN
        self._greatest: Any = _UNKNOWN

    def add_occurrences(self, value: Any, change: int) -> None:
        """Insert or retract a value."""
        before = self.values.get(value, 0)
        if before + change:
            self.values[value] = before + change
            if before:
                return
            if self._least is not _UNKNOWN and _is_less(value, self._least):
                self._least = value
            if self._greatest is not _UNKNOWN and _is_less(self._greatest, value):
                self._greatest = value
            return
        self.values.pop(value, None)
        # `_find_least` and `_find_greatest` search the next value on demand: once per step, however many
        # values were retracted.
        if value is self._least or value == self._least:
            self._least = _UNKNOWN
        if value is self._greatest or value == self._greatest:
            self._greatest = _UNKNOWN

    def set(self, value: Any, count: int) -> None:
        """Set the stored number of occurrences of a value."""
        if count:
            self.values[value] = count
        else:
            self.values.pop(value, None)
        self._least = self._greatest = _UNKNOWN

    def result(self, aggregate: BuiltIn, argument: Argument, kind: pa.DataType) -> Any:
        """The result of an aggregate of the type of its output."""
        match aggregate.function:
            case "count":
                return len(self.values) if aggregate.distinct else self.count_of_values
            case "count_if":
                return self.total
        if not self.count_of_values:
            return None
        match aggregate.function:
            case "min":
                return self._find_least()
            case "max":
                return self._find_greatest()
            case "sum":
                return self._sum(argument, kind)
            case _:
                return self._mean(argument, kind)

    def _sum(self, argument: Argument, kind: pa.DataType) -> Any:
        if argument.floating:
            return self._divide(1)
        if pa.types.is_decimal(kind):
            return from_units(self.total, kind.scale, kind.precision)
        return wrap_int64(self.total)

    def _mean(self, argument: Argument, kind: Any) -> Any:
        if argument.floating:
            return self._divide(self.count_of_values)
        if pa.types.is_decimal(kind):
            return average_decimals(self.total, argument.scale, self.count_of_values)
        return self.total / self.count_of_values

    def _divide(self, divisor: int) -> float:
        """The sum of floating-point values, divided by ``divisor``."""
        if self.values:
            non_finite = [value for value in (NAN, float("inf"), float("-inf")) if value in self.values]
            if non_finite:
                return non_finite[0] if len(non_finite) == 1 else NAN
        try:
            return self.total / (divisor << _SMALLEST_EXPONENT)
        except OverflowError:
            return float("inf") if self.total > 0 else float("-inf")

    def _find_least(self) -> Any:
        if self._least is _UNKNOWN:
            numbers = (value for value in self.values if value is not NAN)
            self._least = min(numbers, default=NAN)
        return self._least

    def _find_greatest(self) -> Any:
        if self._greatest is _UNKNOWN:
            self._greatest = NAN if NAN in self.values else max(self.values)
        return self._greatest


def _is_less(one: Any, other: Any) -> bool:
    """Spark's order: not-a-number is above all numbers."""
    if one is NAN or other is NAN:
        return other is NAN and one is not NAN
    return bool(one < other)


def _to_multiple(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return numerator << (_SMALLEST_EXPONENT + 1 - denominator.bit_length())
