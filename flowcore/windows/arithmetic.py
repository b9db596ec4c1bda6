"""Sums and averages with the results of Spark: 64-bit integers wrap, and decimals have at most 38 digits.

A decimal is computed as a whole number of units, the smallest step of its scale.
"""

from decimal import Context, Decimal
from typing import Any

__all__ = ["MAX_DIGITS", "average_decimals", "exact_sum", "from_units", "to_units", "wrap_int64"]

MAX_DIGITS = 38
"""The number of digits that a decimal of Spark and Arrow can have."""

_AVERAGE_DIGITS = 4
"""How many more digits after the point an average has than its values."""
_EXACT = Context(prec=2 * MAX_DIGITS)
_SIGN, _BITS = 1 << 63, (1 << 64) - 1


def wrap_int64(total: int) -> int:
    """A sum of 64-bit integers as they hold it: above the largest one the smallest follows.

    >>> wrap_int64(2**63) == -(2**63)
    True
    """
    return (total + _SIGN & _BITS) - _SIGN


def exact_sum(one: Any, other: Any) -> Any:
    """Add two numbers; decimals are not rounded to Python's default of 28 digits."""
    if isinstance(one, Decimal) or isinstance(other, Decimal):
        return _EXACT.add(one, other)
    return one + other


def to_units(value: Decimal, scale: int) -> int:
    """The number of units of a decimal with at most so many digits after the point."""
    return int(value.scaleb(scale, _EXACT))


def from_units(units: int, scale: int, precision: int = MAX_DIGITS) -> Decimal | None:
    """A decimal of so many units; None if it has more digits than its type, as in Spark."""
    return None if abs(units) >= 10**precision else Decimal(units).scaleb(-scale, _EXACT)


def average_decimals(units: int, scale: int, records: int) -> Decimal | None:
    """The average of decimals, rounded half up; its type has room for every average of up to 38 digits.

    Args:
        units: Their sum, in units of their scale.

    >>> average_decimals(400, 2, 3)
    Decimal('1.333333')
    """
    finer = min(scale + _AVERAGE_DIGITS, MAX_DIGITS)
    total = units * 10 ** (finer - scale)
    rounded = (2 * abs(total) + records) // (2 * records)
    return from_units(rounded if total >= 0 else -rounded, finer)
