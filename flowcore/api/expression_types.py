"""Types of expressions, as far as schemas, casts and literals say them without a JVM."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import sqlglot
from sqlglot import exp

from flowcore.api.expressions import Expression

__all__ = [
    "TypedArgument",
    "find_arguments",
    "find_struct_fields",
    "find_types",
    "is_arithmetic",
    "read_fields",
]

_COLLECTIONS: dict[type[exp.Expr], str] = {
    exp.Array: "ARRAY", exp.RegexpSplit: "ARRAY", exp.ArrayAgg: "ARRAY", exp.ArrayUniqueAgg: "ARRAY",
    exp.Map: "MAP", exp.VarMap: "MAP",
}  # fmt: skip
"""Functions that make a list or a map of anything."""


def find_types(expressions: Iterable[tuple[str, Expression]], known: Mapping[str, str]) -> dict[str, str]:
    """The types of ``(name, expression)`` columns where they are certain: of columns, casts and lists.

    Args:
        known: The types of the columns that the expressions read.

    >>> found = [("a", Expression.parse("x", "s")), ("b", Expression.parse("cast(y as INT)", "s"))]
    >>> find_types(found, {"x": "STRING"})
    {'a': 'STRING', 'b': 'INT'}
    """
    found = {
        name.lower(): _find_type(sqlglot.parse_one(each.text, dialect="spark"), known)
        for name, each in expressions
    }
    return {name: kind for name, kind in found.items() if kind is not None}


def _find_type(tree: exp.Expr, known: Mapping[str, str]) -> str | None:
    match tree.unnest():
        case exp.Column(parts=[name]):
            return known.get(name.name.lower())
        case exp.Cast() as cast:
            return str(cast.to.sql("spark"))
        case other:
            return _COLLECTIONS.get(type(other))


_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.DPipe)
_OF_NUMBERS = (
    exp.Sum, exp.Avg, exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop,
)  # fmt: skip
_OF_CONDITIONS = (exp.CountIf, exp.LogicalAnd, exp.LogicalOr)


class TypedArgument(NamedTuple):
    """An argument of an aggregate function whose type is known.

    Attributes:
        text: The argument.
        kind: Its type, as Spark DDL.
        condition: The function takes a condition, otherwise a number.
    """

    text: str
    kind: str
    condition: bool


def find_arguments(text: str, known: Mapping[str, str]) -> Iterator[TypedArgument]:
    """The arguments of known type of aggregate functions that take only numbers, or only conditions.

    >>> list(find_arguments("sum(at) / count(*)", {"at": "DATE"}))
    [TypedArgument(text='at', kind='DATE', condition=False)]
    """
    for call in sqlglot.parse_one(text, dialect="spark").find_all(*_OF_NUMBERS, *_OF_CONDITIONS):
        given = call.this.expressions[0] if isinstance(call.this, exp.Distinct) else call.this
        kind = _find_type(given, known)
        if kind is not None:
            yield TypedArgument(given.sql("spark"), kind, isinstance(call, _OF_CONDITIONS))


def is_arithmetic(text: str) -> bool:
    """Whether the value of an expression is that of an arithmetic operator, or of ``||``."""
    return isinstance(sqlglot.parse_one(text, dialect="spark").unnest(), _ARITHMETIC)


def read_fields(text: str, known: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Each field of a column of known type that an expression reads.

    Yields:
        What the field is read of, the type of that, and the name of the field.

    >>> list(read_fields("place.x.y > 1", {"place": "STRUCT<x: STRUCT<z: INT>>"}))
    [('place', 'STRUCT<x: STRUCT<z: INT>>', 'x'), ('place.x', 'STRUCT<z: INT>', 'y')]
    """
    for column in sqlglot.parse_one(text, dialect="spark").find_all(exp.Column):
        root, *fields = (part.name for part in column.parts)
        kind = known.get(root.lower())
        for field in fields:
            if kind is None:
                break
            yield root, kind, field
            inner = {name.lower(): each for name, each in find_struct_fields(kind).items()}
            root, kind = f"{root}.{field}", inner.get(field.lower())


def find_struct_fields(kind: str) -> dict[str, str]:
    """The types of the fields of a struct by name; nothing for another type."""
    tree = exp.DataType.build(kind, dialect="spark")
    if tree.this is not exp.DataType.Type.STRUCT:
        return {}
    return {each.name: each.args["kind"].sql("spark") for each in tree.expressions}
