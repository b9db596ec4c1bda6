"""Conversion between Arrow batches and dicts, checked against a schema.

It works column by column, since Arrow converts a whole column many times faster than single rows. A map
becomes a dict.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa

from flowcore.chains.failures import misfit_error
from flowcore.chains.steps import RecordDict, Step
from flowcore.errors import StateError
from flowcore.escaping import show_safely
from flowcore.keyed.columns import concat_batches
from flowcore.serializers.python_values import (
    MISFIT_ERRORS,
    ChangedValueError,
    changes_numbers,
    has_maps,
    require_pairs,
    require_unchanged,
    to_arrow,
    to_python,
)

__all__ = [
    "Misfit",
    "MisfitError",
    "batch_writer",
    "conform_batch",
    "find_misfits",
    "to_records",
]

_SHOWN = 80


class Misfit(NamedTuple):
    """The position of a record that does not match a schema, and why."""

    position: int
    what: str


class MisfitError(Exception):
    """A record does not match the schema; caught inside this package, which adds the operator."""

    def __init__(self, misfit: Misfit) -> None:
        super().__init__(misfit.what)
        self.misfit = misfit


def to_records(batch: pa.RecordBatch) -> list[RecordDict]:
    """The rows as new dicts."""
    names = batch.schema.names
    if not names:
        return [{} for _ in range(batch.num_rows)]
    columns: list[Any] = [
        # Arrow is ten times faster if it need not search for maps. A map whose keys are structs is pairs.
        to_python(column, "lossy" if _has_maps(column.type) and not _has_nested_keys(column.type) else None)
        for column in batch.columns
    ]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _has_maps(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_has_maps(kind.field(position).type) for position in range(kind.num_fields))


def _has_nested_keys(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.MapType) and pa.types.is_nested(kind.key_type):
        return True
    return any(_has_nested_keys(kind.field(position).type) for position in range(kind.num_fields))


def batch_writer(schema: pa.Schema) -> Callable[[Sequence[RecordDict]], pa.RecordBatch]:
    """Make a function that converts records to a batch; columns that the schema lacks are dropped.

    The function raises `MisfitError` for a record that lacks a column or has a value of another type.
    """
    # At least two names, since itemgetter of a single name returns the value, not a tuple.
    values_of = itemgetter(*schema.names, *schema.names[:1])
    rows = pa.struct(list(schema))
    changing = [(itemgetter(field.name), field.type) for field in schema if changes_numbers(field.type)]
    with_maps = [(itemgetter(field.name), field.type) for field in schema if has_maps(field.type)]

    def write(records: Sequence[RecordDict]) -> pa.RecordBatch:
        try:
            # Arrow would take a missing column for a null.
            deque(map(values_of, records), maxlen=0)
            for value_of, kind in with_maps:
                require_pairs(map(value_of, records), kind)
            columns: Any = pa.array(records, type=rows)
            for value_of, kind in changing:
                require_unchanged([*map(value_of, records)], kind)
            return pa.RecordBatch.from_arrays(columns.flatten(), schema=schema)
        except MISFIT_ERRORS as error:
            unknown = Misfit(0, f"emits records that do not make a batch: {show_safely(str, error)}")
            raise MisfitError(next(find_misfits(records, schema), unknown)) from None

    return write


def find_misfits(records: Sequence[Any], schema: pa.Schema) -> Iterator[Misfit]:
    """The records that do not match a schema."""
    for position, record in enumerate(records):
        what = _why_misfit(record, schema)
        if what is not None:
            yield Misfit(position, what)


def _why_misfit(record: Any, schema: pa.Schema) -> str | None:
    if not isinstance(record, dict):
        return f"emits a {type(record).__name__}, and a record is a dict"
    for field in schema:
        if field.name not in record:
            return f"emits a record without the column {field.name!r}"
        value = record[field.name]
        try:
            to_arrow([value], field.type)
        except MISFIT_ERRORS as error:
            text = show_safely(repr, value)
            text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
            loss = f": {error}" if isinstance(error, ChangedValueError) else ""
            return f"emits {field.name}={text}, which is not {field.type}{loss}"
    return None


def conform_batch(step: Step, result: Any) -> pa.RecordBatch:
    """The result of a ``map_batches`` function, with the declared columns in their order and types.

    Raises:
        FunctionError: The result is not a batch, a column is missing, or cannot be cast.
    """
    if isinstance(result, pa.Table):
        batches = result.to_batches() or [pa.RecordBatch.from_pylist([], schema=result.schema)]
        try:
            result = concat_batches(batches)
        except StateError as error:
            raise misfit_error(step, f"emits a table that is not one batch ({error})", None) from error
    if not isinstance(result, pa.RecordBatch):
        raise misfit_error(step, f"emits a {type(result).__name__}, not an Arrow record batch", None)
    columns = []
    for declared in step.schema:
        position = result.schema.get_field_index(declared.name)
        if position < 0:
            raise misfit_error(step, f"emits a batch without the column {declared.name!r}", None)
        column = result.column(position)
        try:
            columns.append(column if column.type == declared.type else column.cast(declared.type))
        except pa.ArrowException as error:
            what = f"emits {declared.name} as {column.type}, which is not {declared.type} ({error})"
            raise misfit_error(step, what, None) from error
    return pa.RecordBatch.from_arrays(columns, schema=step.schema)
