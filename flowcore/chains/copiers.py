"""Deep copies of records, many times faster than `copy.deepcopy`.

A record is a tree of dicts, lists, tuples and immutable values; anything else falls back to `copy.deepcopy`.
A copier made for a schema skips checks that the schema makes needless. A record that does not match the
schema is copied the slower way.
"""

import copy
import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from operator import itemgetter
from typing import Any

import pyarrow as pa

__all__ = ["deep_copy", "make_copier"]

_ATOMS = frozenset(
    {
        type(None), bool, int, float, complex, str, bytes, Decimal, dt.datetime, dt.date,
        dt.time, dt.timedelta, uuid.UUID,
    }
)  # fmt: skip
_only_atoms = _ATOMS.issuperset


def deep_copy(value: Any) -> Any:
    """A copy of any value that shares nothing mutable with it.

    >>> record = {"tags": ["a"], "at": (1, [2])}
    >>> twin = deep_copy(record)
    >>> record["tags"].append("b"), record["at"][1].clear()
    (None, None)
    >>> twin
    {'tags': ['a'], 'at': (1, [2])}
    """
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        if _only_atoms(map(type, value.values())):
            return value.copy()
        return {key: each if type(each) in _ATOMS else deep_copy(each) for key, each in value.items()}
    if kind is list:
        return value[:] if _only_atoms(map(type, value)) else [deep_copy(each) for each in value]
    if kind is tuple:
        return value if _only_atoms(map(type, value)) else tuple(map(deep_copy, value))
    return copy.deepcopy(value)


def make_copier(schema: pa.Schema | pa.StructType) -> Callable[[Any], Any]:
    """Make a function that copies records of a schema; it copies other records too, but slower."""
    fields = [schema.field(position) for position in range(len(schema.names))]
    nested = tuple(
        (field.name, _nested_copier(field.type)) for field in fields if pa.types.is_nested(field.type)
    )
    plain = [field.name for field in fields if not pa.types.is_nested(field.type)]
    if not plain:
        return deep_copy
    # itemgetter of a single name returns the value, not a tuple.
    plain_values = itemgetter(*plain) if len(plain) > 1 else itemgetter(*plain, *plain)
    width = len(fields)

    def copy_record(record: Any) -> Any:
        if type(record) is not dict or len(record) != width:
            return deep_copy(record)
        try:
            if not _only_atoms(map(type, plain_values(record))):
                return deep_copy(record)
            new = record.copy()
            for name, copier in nested:
                new[name] = copier(record[name])
        except KeyError:
            return deep_copy(record)
        return new

    return copy_record


def _nested_copier(kind: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_struct(kind):
        return make_copier(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        if not pa.types.is_nested(kind.value_type):
            return deep_copy
        each = _nested_copier(kind.value_type)

        def copy_values(values: Any) -> Any:
            return [each(value) for value in values] if type(values) is list else deep_copy(values)

        return copy_values
    return deep_copy
