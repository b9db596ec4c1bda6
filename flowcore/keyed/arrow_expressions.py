"""Expressions of columns, evaluated with Arrow as SQL evaluates them: null is neither true nor false."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["ArrowExpression", "Constant", "Evaluation", "Field", "FunctionCall", "fields_of"]

_INTEGERS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_ESCAPED = r'["\\\x00-\x1f]'
_ESCAPES = {number: f"\\u{number:04X}" for number in range(0x20)}
_ESCAPES |= {ord(one): f"\\{other}" for one, other in zip('\b\t\n\f\r"\\', 'btnfr"\\', strict=True)}


@dataclass(frozen=True, slots=True)
class Field:
    """The column with a name."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, a text, a truth value or null."""

    value: int | str | bool | None


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function that treats null as SQL does.

    It is one of Arrow (a comparison, ``is_null``, arithmetic that wraps, or logic by Kleene) or one of these:
    ``case`` (conditions, each before its value, then the value of other rows), ``coalesce``, ``concat``,
    ``concat_ws`` (of texts of which one is never null), ``in`` (the value, then the list), ``integer`` (the
    value, its bits), ``json_object`` (a name before each value; Spark's ``to_json``), ``nullif``,
    ``octet_length``, ``sha2`` (of 256 bits), ``text`` (of a whole number or truth value) and
    ``timestamp_millis``.
    """

    function: str
    arguments: tuple[ArrowExpression, ...]


ArrowExpression = Field | Constant | FunctionCall


def fields_of(expressions: Iterable[ArrowExpression]) -> frozenset[str]:
    """The names of the columns that some expressions have.

    >>> sorted(fields_of([Field("n"), FunctionCall("add", (Field("n"), Constant(1))), Field("m")]))
    ['m', 'n']
    """
    seen, found, waiting = set[int](), set[str](), [*expressions]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Field):
            found.add(each.name)
        elif isinstance(each, FunctionCall):
            waiting += each.arguments
    return frozenset(found)


class Evaluation:
    """The values of expressions over some columns; each part of an expression is computed once.

    >>> above = FunctionCall("greater", (Field("price"), Constant(5)))
    >>> Evaluation({"price": pa.array([4, 6, None])}).value(above).to_pylist()
    [False, True, None]
    """

    def __init__(self, columns: Mapping[str, pa.Array[Any]]) -> None:
        self._columns = columns
        self._found: dict[int, tuple[ArrowExpression, Any]] = {}  # keeps it alive, since ids are reused

    def column(self, expression: ArrowExpression, rows: int, kind: pa.DataType) -> pa.Array[Any]:
        """The value of an expression for each row, with a type.

        >>> Evaluation({}).column(Constant(5), 2, pa.int32()).to_pylist()
        [5, 5]
        """
        found = self.value(expression)
        is_scalar = isinstance(found, pa.Scalar)
        array: pa.Array[Any] = pa.repeat(found.cast(kind), rows) if is_scalar else found.cast(kind)
        return array

    def value(self, expression: ArrowExpression) -> Any:
        """The value of an expression for each row; a scalar if it is the same in all of them."""
        if id(expression) not in self._found:
            self._found[id(expression)] = expression, self._compute(expression)
        return self._found[id(expression)][1]

    def _compute(self, expression: ArrowExpression) -> Any:
        match expression:
            case Field(name):
                return self._columns[name]
            case Constant(value):
                constant: Any = value
                return pa.scalar(constant)
            case FunctionCall("case", arguments):
                return self._case(arguments)
            case FunctionCall(function, arguments):
                found = [self.value(each) for each in arguments]
                own = _FUNCTIONS.get(function)
                return pc.call_function(function, found) if own is None else own(found)

    def _case(self, arguments: Sequence[ArrowExpression]) -> Any:
        """The value of ``case``. A value that no row takes is not computed; only its type is."""
        *cases, otherwise = arguments
        value = self.value(otherwise)
        for condition, chosen in reversed([*zip(cases[::2], cases[1::2], strict=True)]):
            is_chosen = pc.fill_null(self.value(condition), False)
            if pc.any(is_chosen).as_py() if isinstance(is_chosen, pa.Array) else is_chosen.as_py():
                value = pc.if_else(is_chosen, self.value(chosen), value)
            elif pa.types.is_null(value.type):
                value = pa.scalar(None, self._without_rows.value(chosen).type)
        return value

    @cached_property
    def _without_rows(self) -> Evaluation:
        return Evaluation({name: column.slice(0, 0) for name, column in self._columns.items()})


def _nullif(arguments: Sequence[Any]) -> Any:
    value, other = arguments
    return pc.if_else(pc.fill_null(pc.equal(value, other), False), pa.scalar(None, value.type), value)


def _coalesce(arguments: Sequence[Any]) -> Any:
    typed = [each for each in arguments if not pa.types.is_null(each.type)]
    return pc.coalesce(*typed) if typed else arguments[0]


def _in(arguments: Sequence[Any]) -> Any:
    value, *others = arguments
    if not isinstance(value, pa.Array) or any(isinstance(other, pa.Array) for other in others):
        return reduce(pc.or_kleene, (pc.equal(value, other) for other in others))
    listed = [other.as_py() for other in others if other.is_valid]
    kind: Any = value.type if pa.types.is_string(value.type) else pa.int64()
    found: Any = pc.is_in(pc.cast(value, kind), value_set=pa.array(listed, kind))
    if len(listed) < len(others):  # a null of the list may be the value
        found = pc.if_else(found, found, pa.scalar(None, pa.bool_()))
    return pc.if_else(value.is_valid(), found, pa.scalar(None, pa.bool_()))


def _texts(arguments: Sequence[Any]) -> list[Any]:
    return [pc.cast(each, pa.string()) if pa.types.is_null(each.type) else each for each in arguments]


def _integer(arguments: Sequence[Any]) -> Any:
    value, bits = arguments
    return pc.cast(value, _INTEGERS[bits.as_py()], safe=False)


def _json_object(arguments: Sequence[Any]) -> Any:
    """Objects without the members that are null."""
    members = []
    for name, value in zip(arguments[::2], arguments[1::2], strict=True):
        member = f",{_json_string(name.as_py())}:"
        shown = _json_strings(value) if pa.types.is_string(value.type) else pc.cast(value, pa.string())
        members.append(pc.coalesce(pc.binary_join_element_wise(member, shown, ""), ""))
    joined = pc.binary_join_element_wise(*members, "")
    return pc.binary_join_element_wise("{", pc.utf8_slice_codeunits(joined, 1), "}", "")


def _json_strings(values: Any) -> Any:
    if isinstance(values, pa.Array) and pc.any(pc.match_substring_regex(values, _ESCAPED)).as_py():
        return pa.array([value if value is None else _json_string(value) for value in values.to_pylist()])
    if isinstance(values, pa.Scalar):
        value = values.as_py()
        return pa.scalar(value if value is None else _json_string(value), pa.string())
    return pc.binary_join_element_wise('"', values, '"', "")


def _json_string(text: str) -> str:
    r"""A text as Jackson writes it, which is Spark's library for JSON.

    >>> print(_json_string("a\x1f"))
    "a\u001F"
    """
    return f'"{text.translate(_ESCAPES)}"'


def _sha2(arguments: Sequence[Any]) -> Any:
    (texts,) = arguments
    is_scalar = isinstance(texts, pa.Scalar)
    given = [texts.as_py()] if is_scalar else texts.to_pylist()
    found = [None if text is None else hashlib.sha256(text.encode()).hexdigest() for text in given]
    return pa.scalar(found[0], pa.string()) if is_scalar else pa.array(found, pa.string())


def _timestamp_millis(arguments: Sequence[Any]) -> Any:
    """A time of milliseconds. One outside of 64-bit microseconds wraps, and raises no error."""
    (time_ms,) = arguments
    time_us = pc.multiply(pc.cast(time_ms, pa.int64()), 1_000)
    return pc.cast(time_us, pa.timestamp("us", "UTC"))


_FUNCTIONS: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "coalesce": _coalesce,
    "concat": lambda found: pc.binary_join_element_wise(*_texts(found), "", null_handling="emit_null"),
    "concat_ws": lambda found: pc.binary_join_element_wise(
        *_texts(found[1:]), found[0], null_handling="skip"
    ),
    "in": _in,
    "integer": _integer,
    "json_object": _json_object,
    "nullif": _nullif,
    "octet_length": lambda found: pc.binary_length(found[0]),
    "sha2": _sha2,
    "text": lambda found: pc.cast(found[0], pa.string()),
    "timestamp_millis": _timestamp_millis,
}
