"""JSON: a value as one object of its columns, with the bytes of Spark's ``to_json``.

Fields are in the order of the columns, nulls are left out, only what must be escaped is escaped, and numbers
are written as in Java: ``1.0E10``, ``0.001``. Java before 19 writes more digits of some doubles than are
needed: there the bytes differ and the number does not.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Self

import numpy as np

from flowcore.errors import SerializationError
from flowcore.serializers.formats.columns import (
    ColumnDefinitions,
    ValueColumn,
    parse_columns,
    row_of,
)
from flowcore.serializers.formats.json_limits import MOST_DIGITS, MOST_LEVELS, exceeds_limits

__all__ = ["JsonFormat"]

_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_TYPES = (*_BITS, "FLOAT", "DOUBLE", "BOOLEAN", "STRING")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LOWER_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\u00([01][0-9a-f])")


class _Constant(str):
    """A word that stands for a number, such as ``NaN``, and is no value of a column."""

    __slots__ = ()


class _Object(dict[str, Any]):
    """A JSON object, with all its fields: of those with one name a dictionary has the last."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """Dictionaries of columns to JSON objects and back.

    `decode` ignores fields that are not columns, also a bare ``NaN`` there; a nullable column may be missing.
    It refuses a field of another type, text after the object, bytes that are not JSON in UTF-8, and what
    exceeds the limits of `json_limits`.

    >>> JsonFormat.of([("id", "BIGINT"), ("name", "STRING")]).encode({"id": 1, "name": "ż"}).decode()
    '{"id":1,"name":"ż"}'
    """

    columns: tuple[ValueColumn, ...]

    name = "json"

    @classmethod
    def of(cls, columns: ColumnDefinitions) -> Self:
        """A format of these columns: whole numbers, FLOAT, DOUBLE, BOOLEAN, STRING.

        Raises:
            FormatError: A column has another type.
        """
        return cls(parse_columns(cls.name, columns, _TYPES))

    def encode(self, value: object, /) -> bytes:
        fields = [
            f"{_quoted(column.name)}:{_written(column, field)}"
            for column, field in zip(self.columns, row_of(self.columns, value), strict=True)
            if field is not None
        ]
        try:
            return f"{{{','.join(fields)}}}".encode()
        except UnicodeEncodeError as error:
            msg = f"text of the value cannot be written as UTF-8 ({error.reason}): pass whole characters"
            raise SerializationError(msg) from error

    def decode(self, data: bytes, /) -> dict[str, Any]:
        """The columns of one object, None for missing ones."""
        if exceeds_limits(data):
            msg = (
                f"{len(data)} bytes of JSON have a number of more than {MOST_DIGITS:,} digits, or more than "
                f"{MOST_LEVELS} levels of arrays and objects: not every reader would take them; send numbers "
                "as text, and flat objects"
            )
            raise SerializationError(msg)
        try:
            found = json.loads(data.decode(), parse_constant=_Constant, object_pairs_hook=_Object)
        except (ValueError, RecursionError) as error:
            msg = f"{len(data)} bytes are not JSON in UTF-8 ({error}): they hold no value; send one object"
            raise SerializationError(msg) from error
        if not isinstance(found, _Object):
            msg = f"the JSON is {type(found).__name__}, not an object: it has no columns; send one object"
            raise SerializationError(msg)
        if len(found.pairs) > len(found):
            self._check_repeated(found)
        return {column.name: _read(column, found.get(column.name)) for column in self.columns}

    def _check_repeated(self, found: _Object) -> None:
        """Check fields that are there several times. The last one counts; each has to fit, but for text."""
        columns = {column.name: replace(column, nullable=True) for column in self.columns}
        for name, field in found.pairs:
            if name in columns and columns[name].type != "STRING":
                _read(columns[name], field)


def _written(column: ValueColumn, field: Any) -> str:
    match column.type, field:
        case "BOOLEAN", bool():
            return "true" if field else "false"
        case (("FLOAT" | "DOUBLE"), float()):
            return _java_number(column, field)
        case "STRING", str():
            return _quoted(field)
        case _ if column.type in _BITS and type(field) is int:
            return str(_in_range(column, field))
        case _:
            raise _mismatch(column, f"{field!r:.40}")


def _read(column: ValueColumn, field: Any) -> Any:
    match column.type, field:
        case _, None if column.nullable:
            return None
        case _, None:
            msg = f"the object has no {column.name!r}, which is NOT NULL: the value is incomplete; send it"
            raise SerializationError(msg)
        case _, _Constant():
            raise _mismatch(column, field)
        case ("BOOLEAN", bool()) | ("STRING", str()):
            return field
        case (("FLOAT" | "DOUBLE"), (int() | float())) if not isinstance(field, bool):
            return _float(column, field)
        case (("FLOAT" | "DOUBLE"), str()) if field in _NOT_FINITE:
            return _NOT_FINITE[field]
        case _ if column.type in _BITS and type(field) is int:
            return _in_range(column, field)
        case _:
            raise _mismatch(column, f"{field!r:.40}")


def _float(column: ValueColumn, field: float) -> float:
    try:
        number = _single(float(field)) if column.type == "FLOAT" else float(field)
    except OverflowError:
        number = math.inf
    if math.isinf(number):
        raise _mismatch(column, "a number too large for it")
    return number


def _single(number: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def _in_range(column: ValueColumn, field: int) -> int:
    limit = 1 << (_BITS[column.type] - 1)
    if not -limit <= field < limit:
        raise _mismatch(column, "a number too large for it")
    return field


def _mismatch(column: ValueColumn, holds: str) -> SerializationError:
    return SerializationError(
        f"column {column.name!r} is {column.type} and holds {holds}: it would lose its meaning; "
        f"send a {column.type}"
    )


def _quoted(text: str) -> str:
    # Jackson escapes control characters with capital letters.
    quoted = json.dumps(text, ensure_ascii=False)
    return _LOWER_ESCAPE.sub(lambda match: f"{match[1]}\\u00{match[2].upper()}", quoted)


def _java_number(column: ValueColumn, number: float) -> str:
    """A number as written by Java's ``Double.toString`` or ``Float.toString``, quoted if not finite."""
    if math.isnan(number):
        return '"NaN"'
    if math.isinf(number):
        return '"Infinity"' if number > 0 else '"-Infinity"'
    sign, (digits, exponent) = "-" if math.copysign(1, number) < 0 else "", _digits(column, abs(number))
    if not digits:
        return f"{sign}0.0"
    if not -3 <= exponent < 7:  # noqa: PLR2004 - bounds of Java's scientific notation
        return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    return f"{sign}{digits[: exponent + 1].ljust(exponent + 1, '0')}.{digits[exponent + 1 :] or '0'}"


def _digits(column: ValueColumn, number: float) -> tuple[str, int]:
    """The shortest digits that are read as the number, and the power of ten of the first one.

    Java writes at least two digits, the nearest ones: 4.9E-324, not 5E-324.
    """
    read: Callable[[str], float] = float
    shortest = repr(number)
    if column.type == "FLOAT":
        read, number = lambda text: _single(float(text)), _single(number)
        if math.isinf(number):
            raise _mismatch(column, "a number too large for it")
        shortest = np.format_float_scientific(np.float32(number), trim="-")
    two = f"{number:.1e}"
    mantissa, _, power = f"{Decimal(two if read(two) == number else shortest):e}".partition("e")
    return mantissa.replace(".", "").strip("0"), int(power)
