"""Records: how does an Arrow batch become dicts, and dicts an Arrow batch?

Column by column, since Arrow converts a whole column many times faster than row by row. A map is a dict.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa

from flowcore.chains.steps import Record

__all__ = ["Misfit", "MisfitError", "batch_writer", "misfits", "records_of"]

_SHOWN = 80


class Misfit(NamedTuple):
    """Which record does not fit, and what of it."""

    position: int
    what: str


class MisfitError(Exception):
    """A record that does not fit the schema; caught in this package, which knows whose it is."""

    def __init__(self, misfit: Misfit) -> None:
        super().__init__(misfit.what)
        self.misfit = misfit


def records_of(batch: pa.RecordBatch) -> list[Record]:
    """The rows as dicts, which nothing else refers to."""
    names = batch.schema.names
    if not names:
        return [{} for _ in range(batch.num_rows)]
    columns = [_values(column) for column in batch.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: Any) -> list[Any]:
    # Arrow is ten times faster where it need not look for maps.
    found: list[Any] = (
        column.to_pylist(maps_as_pydicts="lossy") if _has_maps(column.type) else column.to_pylist()
    )
    return found


def _has_maps(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_has_maps(kind.field(position).type) for position in range(kind.num_fields))


def batch_writer(schema: pa.Schema) -> Callable[[Sequence[Record]], pa.RecordBatch]:
    """What makes batches of records; columns that the schema does not have are left out.

    The writer raises `MisfitError` for a record without a column, or with a value that is not of its type.
    """
    # Two names at least, since of one it would give the value and no tuple.
    values_of = itemgetter(*schema.names, *schema.names[:1])
    rows = pa.struct(list(schema))

    def written(records: Sequence[Record]) -> pa.RecordBatch:
        try:
            # Arrow takes a column that is missing for a null one.
            deque(map(values_of, records), maxlen=0)
            columns: Any = pa.array(records, type=rows)
        except (KeyError, TypeError, AttributeError, OverflowError, ValueError, pa.ArrowException) as error:
            nothing = Misfit(0, f"emits records that are no batch: {error}")
            raise MisfitError(next(misfits(records, schema), nothing)) from None
        return pa.RecordBatch.from_arrays(columns.flatten(), schema=schema)

    return written


def misfits(records: Sequence[Any], schema: pa.Schema) -> Iterator[Misfit]:
    """The records that do not fit, and what of each."""
    for position, record in enumerate(records):
        what = _misfit(record, schema)
        if what is not None:
            yield Misfit(position, what)


def _misfit(record: Any, schema: pa.Schema) -> str | None:
    if not isinstance(record, dict):
        return f"emits a {type(record).__name__}, and a record is a dict"
    for field in schema:
        if field.name not in record:
            return f"emits a record without the column {field.name!r}"
        value = record[field.name]
        try:
            pa.array([value], type=field.type)
        except (TypeError, AttributeError, OverflowError, ValueError, pa.ArrowException):
            return f"emits {field.name}={_shown(value)}, which is no {field.type}"
    return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
