"""Key groups on Spark: packed rows go to a step of their key group, whose state is in Spark's state store.

Spark's Python state operators take each row apart, so rows are packed in front of it and unpacked behind it,
both with ``mapInArrow``. What is between is one call for each key group in a batch, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from flowcore.keyed.packing import Packing
from flowcore.keyed.runtime import Runtime
from flowcore.spark.operators.processor import Processor

__all__ = ["COUNTER_ROWS", "MARKER_ROWS", "Outlet", "Unpacking", "by_key_group"]

_MARKER: dict[str, pa.DataType] = {"event": pa.binary(), "partition": pa.int32()}
MARKER_ROWS = pa.schema(_MARKER)
COUNTER_ROWS = pa.schema([pa.field("counters", pa.string())])
"""Of the outputs `flowcore.spark.operators.processor.MARKERS` and `COUNTERS`."""

_PACKED = "key_group INT, kind TINYINT, channel STRING, at BIGINT, payload BINARY"
_OUTPUT = StructType([StructField("output", StringType()), StructField("content", BinaryType())])
_environments = Lock()
"""Queries that start side by side share the context whose environment it is."""


def by_key_group(
    frame: DataFrame, packing: Packing, runtime: Runtime, *, workers: str | None = None
) -> DataFrame:
    """Run an operator over a frame with the columns that ``packing`` asks for; then `Unpacking` follows.

    Args:
        frame: The frame.
        packing: How its rows come to their key groups.
        runtime: The operator.
        workers: The name of the pool of Python workers. By default each query has a pool of its own, so
            that its few workers remember the state that others could not use.
    """
    packed = frame.mapInArrow(packing.run, _PACKED)
    with _environment(frame, FLOWCORE_KEY_GROUPS=workers or runtime.query):
        stepped: DataFrame = packed.groupBy("key_group").transformWithStateInPandas(
            Processor.of(runtime), outputStructType=_OUTPUT, outputMode="Update", timeMode="ProcessingTime"
        )
    return stepped


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """How the rows of an output go on.

    Attributes:
        schema: Of the rows as the operator puts them out.
        columns: From column of the result to column of these rows.
        branch: The value of the branch column.
    """

    schema: pa.Schema
    columns: Mapping[str, str]
    branch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacking:
    """From what steps put out to rows.

    Attributes:
        outlets: Of each output.
        schema: Of the rows.
        branch: Its branch column.
    """

    outlets: Mapping[str, Outlet]
    schema: pa.Schema
    branch: str

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Unpack what one task has put out."""
        for batch in batches:
            for output, content in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                outlet = self.outlets.get(output)
                if outlet is not None:
                    yield self.rows(outlet, pa.ipc.read_record_batch(pa.py_buffer(content), outlet.schema))

    def rows(self, outlet: Outlet, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of one output among the columns of all."""
        count = rows.num_rows
        arrays = [
            pa.array([outlet.branch] * count, field.type)
            if field.name == self.branch
            else rows.column(outlet.columns[field.name]).cast(field.type)
            if field.name in outlet.columns
            else pa.nulls(count, field.type)
            for field in self.schema
        ]
        return pa.record_batch(arrays, schema=self.schema)


@contextmanager
def _environment(frame: DataFrame, **variables: str) -> Iterator[None]:
    """Spark keeps Python workers apart by the environment that they were asked for with."""
    context = frame.sparkSession.sparkContext
    with _environments:
        before = context.environment
        context.environment = {**before, **variables}  # another, since somebody may be looking at that one
        try:
            yield
        finally:
            context.environment = before
