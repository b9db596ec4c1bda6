"""Conditions on columns, evaluated with Arrow as SQL evaluates them: null is neither true nor false."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Call", "Condition", "Constant", "Field", "evaluate"]


@dataclass(frozen=True, slots=True)
class Field:
    """The column with a name."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A number or a text."""

    value: int | str


@dataclass(frozen=True, slots=True)
class Call:
    """A function of Arrow that treats null as SQL does: a comparison, ``is_null``, or logic by Kleene."""

    function: str
    arguments: tuple[Condition, ...]


Condition = Field | Constant | Call


def evaluate(condition: Condition, columns: Mapping[str, pa.Array[Any]]) -> Any:
    """The value of a condition for each row of some columns.

    >>> above = Call("greater", (Field("price"), Constant(5)))
    >>> evaluate(above, {"price": pa.array([4, 6, None])}).to_pylist()
    [False, True, None]
    """
    match condition:
        case Field(name):
            return columns[name]
        case Constant(value):
            return pa.scalar(value)
        case Call(function, arguments):
            return pc.call_function(function, [evaluate(each, columns) for each in arguments])
