"""Result types: what is the type of a built-in aggregate over columns of known types? As in Spark."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from flowcore.windows.built_in import BuiltIn

__all__ = ["result_type"]

_MOST_DIGITS = 38
_COUNTS = frozenset({"count", "count_if"})
_FLOATS = frozenset({"stddev_samp", "stddev_pop", "var_samp", "var_pop"})


def result_type(aggregate: BuiltIn, types: Mapping[str, pa.DataType]) -> pa.DataType:
    """The type of one aggregate.

    Args:
        aggregate: What is computed.
        types: Of columns, by name.
    """
    if aggregate.function in _COUNTS:
        return pa.int64()
    if aggregate.function in _FLOATS:
        return pa.float64()
    kind = types[aggregate.columns[0]]
    match aggregate.function:
        case "sum":
            return _sum(kind)
        case "avg":
            return _average(kind)
        case "collect_list":
            return pa.list_(kind)
        case _:
            return kind


def _sum(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind):
        return pa.decimal128(min(kind.precision + 10, _MOST_DIGITS), kind.scale)
    return pa.float64() if pa.types.is_floating(kind) else pa.int64()


def _average(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind):
        scale = min(kind.scale + 4, _MOST_DIGITS)
        return pa.decimal128(min(kind.precision + 4, _MOST_DIGITS), scale)
    return pa.float64()
