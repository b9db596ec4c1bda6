"""Unpacks what key groups emit: packed outputs become rows that have the columns of all outputs.

A worker unpickles `Unpacking`, so this module imports neither the API nor Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from flowcore.elements import RecordAttributes
from flowcore.keyed.operator import ATTRIBUTES, CONTROL_ROWS
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer

__all__ = ["Outlet", "Unpacking"]

_ELEMENTS: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """The rows of one output.

    Attributes:
        columns: The output's column for a column of the result.
        constants: The columns of the result that are the same in all rows.
        placed: The rows have the key group that emitted them, and their position among its rows.
    """

    schema: pa.Schema
    columns: Mapping[str, str]
    constants: Mapping[str, int]
    placed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacking:
    """Converts packed outputs to rows.

    Attributes:
        outlets: By number of the operator, and output.
        key_group: The column of the key group that emitted a row.
        position: The column of a row's position among those of its key group.
        backlog: The column that says whether a row is backlog.
    """

    outlets: Mapping[tuple[int, str], Outlet]
    schema: pa.Schema
    key_group: str = ""
    position: str = ""
    backlog: str = ""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Unpack the outputs of one task."""
        position, backlog = 0, False
        for batch in batches:
            for output, content, key_group, operator in zip(
                *(column.to_pylist() for column in batch.columns), strict=True
            ):
                outlet = self.outlets.get((operator, output))
                if output == ATTRIBUTES:
                    backlog = _read_backlog(content)
                if outlet is not None:
                    rows = pa.ipc.read_record_batch(pa.py_buffer(content), outlet.schema)
                    yield self.rows(outlet, rows, key_group, position, backlog=backlog)
                    position += rows.num_rows

    def rows(
        self,
        outlet: Outlet,
        rows: pa.RecordBatch,
        key_group: int = 0,
        position: int = 0,
        *,
        backlog: bool = False,
    ) -> pa.RecordBatch:
        """The rows of one output, with the columns of all outputs."""
        count = rows.num_rows
        constants: dict[str, int] = {**outlet.constants}
        constants |= {self.backlog: backlog} if self.backlog else {}
        constants |= {self.key_group: key_group} if outlet.placed else {}

        def column(field: pa.Field[Any]) -> pa.Array[Any]:
            array: pa.Array[Any]
            if field.name in outlet.columns:
                array = rows.column(outlet.columns[field.name]).cast(field.type)
            elif field.name in constants:
                array = pa.repeat(pa.scalar(constants[field.name], field.type), count)
            elif outlet.placed and field.name == self.position:
                array = pa.array(np.arange(position, position + count), field.type)
            else:
                array = pa.nulls(count, field.type)
            return array

        return pa.record_batch([column(field) for field in self.schema], schema=self.schema)


def _read_backlog(content: bytes) -> bool:
    rows = pa.ipc.read_record_batch(pa.py_buffer(content), CONTROL_ROWS)
    element = _ELEMENTS.decode(rows.column("element")[0].as_py())
    return isinstance(element, RecordAttributes) and element.backlog
