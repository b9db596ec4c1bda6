"""Deep copies of records of a schema, faster than `deep_copy`.

A copier skips checks that its schema makes needless. A record that does not match the schema is copied the
slower way.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import pyarrow as pa

from flowcore.keyed.copies import deep_copy, only_atoms

__all__ = ["make_copier"]


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
            if not only_atoms(map(type, plain_values(record))):
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
