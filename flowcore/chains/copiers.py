"""Copiers: how does a record get a copy that shares nothing which can be changed?

Records are trees of dicts, lists, tuples and values that cannot be changed. For those this is many times
faster than `copy.deepcopy`, which is asked only for what is none of them. A copier made for a schema asks no
record what the schema knows, but believes it nothing: a record that is otherwise is copied the slower way.
"""

from __future__ import annotations

import copy
import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from operator import itemgetter
from typing import Any

import pyarrow as pa

__all__ = ["copier_of", "deep_copy"]

_ATOMS = frozenset(
    {
        type(None), bool, int, float, complex, str, bytes, Decimal, dt.datetime, dt.date,
        dt.time, dt.timedelta, uuid.UUID,
    }
)  # fmt: skip
_only_atoms = _ATOMS.issuperset


def deep_copy(value: Any) -> Any:
    """A copy of any value.

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


def copier_of(schema: pa.Schema | pa.StructType) -> Callable[[Any], Any]:
    """What copies records of a schema; others too, but slower."""
    fields = [schema.field(position) for position in range(len(schema.names))]
    nested = tuple((field.name, _nested(field.type)) for field in fields if pa.types.is_nested(field.type))
    plain = [field.name for field in fields if not pa.types.is_nested(field.type)]
    if not plain:
        return deep_copy
    # Of one name itemgetter gives the value and no tuple.
    plain_values = itemgetter(*plain) if len(plain) > 1 else itemgetter(*plain, *plain)
    width = len(fields)

    def copied(record: Any) -> Any:
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

    return copied


def _nested(kind: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_struct(kind):
        return copier_of(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        if not pa.types.is_nested(kind.value_type):
            return deep_copy
        each = _nested(kind.value_type)

        def copied(values: Any) -> Any:
            return [each(value) for value in values] if type(values) is list else deep_copy(values)

        return copied
    return deep_copy
