"""Expressions of columns, evaluated with Arrow as SQL evaluates them: null is neither true nor false."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["ArrowExpression", "Call", "Constant", "Field", "evaluate", "evaluate_rows"]


@dataclass(frozen=True, slots=True)
class Field:
    """The column with a name."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, a text, a truth value or null."""

    value: int | str | bool | None


@dataclass(frozen=True, slots=True)
class Call:
    """A function that treats null as SQL does.

    It is one of Arrow (a comparison, ``is_null``, or logic by Kleene) or one of these: ``case`` (conditions,
    each before its value, then the value of other rows), ``coalesce``, ``concat``, ``concat_ws`` (of texts of
    which one is never null), ``nullif``, ``text`` (of a whole number) and ``timestamp_millis``.
    """

    function: str
    arguments: tuple[ArrowExpression, ...]


ArrowExpression = Field | Constant | Call


def evaluate(expression: ArrowExpression, columns: Mapping[str, pa.Array[Any]]) -> Any:
    """The value of an expression for each row of some columns; a scalar if it is the same in all of them.

    >>> above = Call("greater", (Field("price"), Constant(5)))
    >>> evaluate(above, {"price": pa.array([4, 6, None])}).to_pylist()
    [False, True, None]
    """
    match expression:
        case Field(name):
            return columns[name]
        case Constant(value):
            constant: Any = value
            return pa.scalar(constant)
        case Call(function, arguments):
            found = [evaluate(each, columns) for each in arguments]
            own = _FUNCTIONS.get(function)
            return pc.call_function(function, found) if own is None else own(found)


def evaluate_rows(
    expression: ArrowExpression, columns: Mapping[str, pa.Array[Any]], rows: int, kind: pa.DataType
) -> pa.Array[Any]:
    """The value of an expression for each row, with a type.

    >>> evaluate_rows(Constant(5), {}, 2, pa.int32()).to_pylist()
    [5, 5]
    """
    found = evaluate(expression, columns)
    same = isinstance(found, pa.Scalar)
    array: pa.Array[Any] = pa.repeat(found.cast(kind), rows) if same else found.cast(kind)
    return array


def _case(arguments: Sequence[Any]) -> Any:
    *cases, value = arguments
    for condition, chosen in reversed([*zip(cases[::2], cases[1::2], strict=True)]):
        value = pc.if_else(pc.fill_null(condition, False), chosen, value)
    return value


def _coalesce(arguments: Sequence[Any]) -> Any:
    typed = [each for each in arguments if not pa.types.is_null(each.type)]
    return pc.coalesce(*typed) if typed else arguments[0]


def _texts(arguments: Sequence[Any]) -> list[Any]:
    return [pc.cast(each, pa.string()) if pa.types.is_null(each.type) else each for each in arguments]


def _timestamp_millis(arguments: Sequence[Any]) -> Any:
    """A time of milliseconds; one outside of 64-bit microseconds is any time, and no error."""
    (time_ms,) = arguments
    time_us = pc.multiply(pc.cast(time_ms, pa.int64()), 1_000)
    return pc.cast(time_us, pa.timestamp("us", "UTC"))


_FUNCTIONS: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "case": _case,
    "coalesce": _coalesce,
    "concat": lambda found: pc.binary_join_element_wise(*_texts(found), "", null_handling="emit_null"),
    "concat_ws": lambda found: pc.binary_join_element_wise(
        *_texts(found[1:]), found[0], null_handling="skip"
    ),
    "nullif": lambda found: _case([pc.equal(*found), pa.scalar(None, found[0].type), found[0]]),
    "text": lambda found: pc.cast(found[0], pa.string()),
    "timestamp_millis": _timestamp_millis,
}
