"""Run an exchange on key groups in Spark, with state in Spark's state store.

Spark's Python state operators handle single rows, so rows are packed before them and unpacked after them,
both with ``mapInArrow``. Between is one call for each key group in a batch, whatever the number of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from flowcore.keyed.exchange import Exchange
from flowcore.keyed.packing import Packing
from flowcore.spark.operators.processor import Processor

__all__ = ["COUNTER_ROWS", "MARKER_ROWS", "Outlet", "Unpacking", "run_key_groups"]

_MARKER: dict[str, pa.DataType] = {"event": pa.binary(), "partition": pa.int32()}
MARKER_ROWS = pa.schema(_MARKER)
COUNTER_ROWS = pa.schema([pa.field("counters", pa.string())])
"""The columns of the outputs `MARKERS` and `COUNTERS` of `flowcore.spark.operators.processor`."""

_PACKED = "key_group INT, kind TINYINT, channel STRING, at BIGINT, payload BINARY, operator INT"
_OUTPUT = "output STRING, content BINARY, key_group INT, operator INT"
_environments = Lock()
"""Queries that start concurrently share the Spark context whose environment is changed."""


def run_key_groups(frame: DataFrame, packing: Packing, exchange: Exchange) -> DataFrame:
    """Pack rows and run operators on them; the result is packed, for `Unpacking`.

    Args:
        frame: The rows, with the columns of ``packing``.
        packing: Packs rows by key group.
        exchange: The operators. A pool of Python workers is for one query, so that its few workers keep
            decoded state that others could not use; unless the Spark context names another pool.
    """
    packed = frame.mapInArrow(packing.run, _PACKED)
    with _environment(frame, FLOWCORE_KEY_GROUPS=exchange.query):
        stepped: DataFrame = packed.groupBy("key_group").transformWithStateInPandas(
            Processor(exchange), outputStructType=_OUTPUT, outputMode="Update", timeMode="ProcessingTime"
        )
    return stepped


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """The rows of one output.

    Attributes:
        schema: The columns of the output.
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
        schema: The columns of the rows.
        key_group: The column of the key group that emitted a row.
        position: The column of a row's position among those of its key group.
    """

    outlets: Mapping[tuple[int, str], Outlet]
    schema: pa.Schema
    key_group: str = ""
    position: str = ""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Unpack the outputs of one task."""
        position = 0
        for batch in batches:
            for output, content, key_group, operator in zip(
                *(column.to_pylist() for column in batch.columns), strict=True
            ):
                outlet = self.outlets.get((operator, output))
                if outlet is not None:
                    rows = pa.ipc.read_record_batch(pa.py_buffer(content), outlet.schema)
                    yield self.rows(outlet, rows, key_group, position)
                    position += rows.num_rows

    def rows(
        self, outlet: Outlet, rows: pa.RecordBatch, key_group: int = 0, position: int = 0
    ) -> pa.RecordBatch:
        """The rows of one output, with the columns of all outputs.

        Args:
            outlet: The output.
            rows: Its rows.
            key_group: The key group that emitted them.
            position: The position of the first row.
        """
        count = rows.num_rows
        added: dict[str, Any] = {name: [value] * count for name, value in outlet.constants.items()}
        if outlet.placed:
            added[self.key_group] = [key_group] * count
            added[self.position] = [*range(position, position + count)]

        def column(field: pa.Field[Any]) -> pa.Array[Any]:
            array: pa.Array[Any]
            if field.name in outlet.columns:
                array = rows.column(outlet.columns[field.name]).cast(field.type)
            elif field.name in added:
                array = pa.array(added[field.name], field.type)
            else:
                array = pa.nulls(count, field.type)
            return array

        return pa.record_batch([column(field) for field in self.schema], schema=self.schema)


@contextmanager
def _environment(frame: DataFrame, **variables: str) -> Iterator[None]:
    """Spark separates pools of Python workers by the environment variables they are requested with."""
    context = frame.sparkSession.sparkContext
    with _environments:
        before = context.environment
        context.environment = {**variables, **before}  # a new dict, since another thread may read the old one
        try:
            yield
        finally:
            context.environment = before
