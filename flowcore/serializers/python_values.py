"""Arrow columns as Python values, also where a column has values that Python cannot hold.

Spark computes dates and times outside the years 1 to 9999, and texts of any bytes, which must stop no query.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from numbers import Integral, Number
from typing import Any, Literal

import numpy as np
import pyarrow as pa

__all__ = [
    "MISFIT_ERRORS",
    "ChangedValueError",
    "changes_numbers",
    "first_row",
    "has_maps",
    "require_pairs",
    "require_unchanged",
    "to_arrow",
    "to_python",
    "to_rows",
]

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()

MISFIT_ERRORS = (pa.ArrowException, AttributeError, LookupError, OverflowError, TypeError, ValueError)
"""What a value raises that Arrow is to convert to another type than its own."""


def to_python(column: pa.Array[Any], maps: Literal["lossy", "strict"] | None = None) -> list[Any]:
    """The values of a column, as `pyarrow.Array.to_pylist` gives them.

    A date or time that Python cannot hold is None. What is not UTF-8 in a text is U+FFFD.

    Args:
        maps: A map is a dict, as with ``maps_as_pydicts``; None for a list of pairs.
    """
    found: Any = column
    try:
        return list(found.to_pylist(maps_as_pydicts=maps) if maps else found.to_pylist())
    except (OverflowError, UnicodeDecodeError):
        stored: Any = column.cast(_stored(column.type))
        return list(map(_converter(column.type), stored.to_pylist(maps_as_pydicts=maps)))


def to_rows(rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows as dicts, by `to_python`."""
    names = rows.schema.names
    for values in zip(*map(to_python, rows.columns), strict=True):
        yield dict(zip(names, values, strict=True))


def first_row(rows: pa.RecordBatch) -> dict[str, Any]:
    """The first row as a dict, by `to_python`."""
    return {
        name: to_python(column.slice(0, 1))[0]
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    }


class ChangedValueError(ValueError):
    """Arrow would change a value silently; the message says what would be lost."""


def has_maps(kind: pa.DataType) -> bool:
    """Whether a type is a map, or one is within it."""
    inner = (kind.field(part).type for part in range(kind.num_fields))
    return isinstance(kind, pa.MapType) or any(map(has_maps, inner))


def require_pairs(values: Iterable[Any], kind: pa.DataType) -> None:
    """Require that values of a type that `has_maps` have a pair for each entry of a map.

    Arrow ends the process where one is None. To be called before Arrow converts the values.

    Raises:
        TypeError: An entry of a map is no pair, or a value is of another kind.
        IndexError: A tuple is too short.
    """
    for inner, inner_kind in _find_inner(values, kind, has_maps):
        if isinstance(kind, pa.MapType):
            wrong = [pair for pair in inner if not isinstance(pair, tuple | list | dict)]
            if wrong:
                msg = f"a map has {wrong[0]!r} in place of a pair of key and value"
                raise TypeError(msg)
        require_pairs(inner, inner_kind)


def changes_numbers(kind: pa.DataType) -> bool:
    """Whether Arrow converts some values to others of this type, or of a type within it, without an error."""
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        return True
    parts = kind.num_fields
    return parts > 0 and any(changes_numbers(kind.field(part).type) for part in range(parts))


def require_unchanged(values: Iterable[Any], kind: pa.DataType) -> None:
    """Require that Arrow, which has converted values to a type of `changes_numbers`, did not change them.

    Raises:
        ChangedValueError: A fraction or a time of day was cut off, or a number became a date or time, in a
            list, map or struct, too.
    """
    if kind.num_fields:
        for inner, inner_kind in _find_inner(values, kind, changes_numbers):
            require_unchanged(inner, inner_kind)
        return
    whole = pa.types.is_integer(kind)
    usual = int if whole else dt.date if pa.types.is_date(kind) else dt.datetime
    types = set(map(type, values)) - {usual}
    suspect = tuple(
        each
        for each in types
        if issubclass(each, dt.datetime | Number) and not (whole and issubclass(each, Integral))
    )
    if not suspect:
        return
    for value in (value for value in values if isinstance(value, suspect)):
        if reason := _find_loss(value, kind):
            raise ChangedValueError(reason)


def to_arrow(values: list[Any], kind: pa.DataType) -> pa.Array[Any]:
    """The values as a column of a type.

    Raises:
        MISFIT_ERRORS: A value is of another type, or would be changed.
    """
    if has_maps(kind):
        require_pairs(values, kind)
    column: pa.Array[Any] = pa.array(values, kind)
    if changes_numbers(kind):
        require_unchanged(values, kind)
    return column


def _find_loss(value: Any, kind: pa.DataType) -> str:
    """What Arrow loses of a number or time that it converts to a type; empty if nothing."""
    if not isinstance(value, Number):
        lost = pa.types.is_date(kind) and value.time() != dt.time()
        return "a time of day would be lost" if lost else ""
    if not pa.types.is_integer(kind):
        return "a number would become a date or time"
    number: Any = value
    return "a fraction would be cut off" if number % 1 else ""


def _find_inner(
    values: Iterable[Any], kind: pa.DataType, wanted: Callable[[pa.DataType], bool]
) -> Iterator[tuple[list[Any], pa.DataType]]:
    """The values within values of a nested type, with each inner type; of a struct, of its wanted fields."""
    given = [value for value in values if value is not None]
    match kind:
        case pa.StructType():
            for position in range(kind.num_fields):
                field = kind.field(position)
                if wanted(field.type):
                    yield _select_field(given, position, field.name), field.type
        case pa.MapType():
            pairs = (value.items() if isinstance(value, dict) else value for value in given)
            yield [*chain.from_iterable(pairs)], kind.field(0).type
        case _:
            inner = kind.field(0).type
            if np.ndarray in set(map(type, given)) and pa.types.is_integer(inner):
                given = [value for value in given if not _is_whole(value)]
            yield [*chain.from_iterable(given)], inner


def _is_whole(value: Any) -> bool:
    """Whether a value is an array of integers, which may have many of them, and nothing else."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "iu"


def _select_field(values: Iterable[Any], position: int, name: str) -> list[Any]:
    """A field of what Arrow takes as structs: dicts, tuples of the values, or lists of pairs."""
    return [
        value.get(name)
        if isinstance(value, dict)
        else value[position]
        if isinstance(value, tuple)
        else dict(value).get(name)
        for value in values
    ]


def _stored(kind: pa.DataType) -> pa.DataType:
    """A type of the same values that Python can hold."""
    match kind:
        case pa.TimestampType():
            return pa.int64()
        case pa.StructType():
            return pa.struct([pa.field(field.name, _stored(field.type)) for field in kind])
        case pa.ListType():
            return pa.list_(_stored(kind.value_type))
        case pa.MapType():
            return pa.map_(_stored(kind.key_type), _stored(kind.item_type))
    others: Mapping[pa.DataType, pa.DataType] = {
        pa.date32(): pa.int32(), pa.string(): pa.binary(), pa.large_string(): pa.large_binary(),
    }  # fmt: skip
    return others.get(kind, kind)


def _converter(kind: pa.DataType) -> Callable[[Any], Any]:
    """Converts a value that is not None from the stored type of a type; a None stays."""
    convert = _known_converter(kind)
    return lambda value: None if value is None else convert(value)


def _known_converter(kind: pa.DataType) -> Callable[[Any], Any]:
    match kind:
        case pa.TimestampType():
            return lambda value: _to_time(value, kind)
        case pa.StructType():
            fields = {field.name: _converter(field.type) for field in kind}
            return lambda value: {name: convert(value[name]) for name, convert in fields.items()}
        case pa.ListType():
            item = _converter(kind.value_type)
            return lambda value: list(map(item, value))
        case pa.MapType():
            key, item = _converter(kind.key_type), _converter(kind.item_type)
            return lambda value: (
                {key(one): item(each) for one, each in value.items()}
                if isinstance(value, dict)
                else [(key(one), item(each)) for one, each in value]
            )
    if kind == pa.date32():
        return _to_date
    if kind in (pa.string(), pa.large_string()):
        return lambda value: value.decode("utf-8", "replace")
    return lambda value: value


def _to_time(value: int, kind: pa.TimestampType[Any, Any]) -> dt.datetime | None:
    epoch = dt.datetime(1970, 1, 1, tzinfo=None if kind.tz is None else dt.UTC)
    seconds, parts = divmod(value, _PER_SECOND[kind.unit])
    try:
        return epoch + dt.timedelta(seconds=seconds, microseconds=parts * 1_000_000 // _PER_SECOND[kind.unit])
    except OverflowError:
        return None


def _to_date(value: int) -> dt.date | None:
    try:
        return dt.date.fromordinal(_EPOCH_DAY + value)
    except (ValueError, OverflowError):
        return None
