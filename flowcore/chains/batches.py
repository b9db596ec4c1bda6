"""Batches: is what a function of Arrow batches returned of the operator's schema?"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from flowcore.chains.failures import misfit
from flowcore.chains.steps import Step

__all__ = ["fitting", "joined"]


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of several."""
    if len(batches) == 1:
        return batches[0]
    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


def fitting(step: Step, result: Any) -> pa.RecordBatch:
    """The batch that a function returned, with the declared columns in their order and types.

    Raises:
        FunctionError: It is no batch, a column is missing, or one cannot be cast.
    """
    if isinstance(result, pa.Table):
        result = result.combine_chunks()
        batches = result.to_batches()
        result = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=result.schema)
    if not isinstance(result, pa.RecordBatch):
        raise misfit(step, f"emits a {type(result).__name__}, and no Arrow record batch", None)
    columns = []
    for declared in step.schema:
        position = result.schema.get_field_index(declared.name)
        if position < 0:
            raise misfit(step, f"emits a batch without the column {declared.name!r}", None)
        column = result.column(position)
        try:
            columns.append(column if column.type == declared.type else column.cast(declared.type))
        except pa.ArrowException as error:
            what = f"emits {declared.name} as {column.type}, which is no {declared.type} ({error})"
            raise misfit(step, what, None) from error
    return pa.RecordBatch.from_arrays(columns, schema=step.schema)
