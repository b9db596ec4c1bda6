"""Rows that pass an exchange unopened, and rows that report to a later exchange what was read."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

__all__ = ["PassingRows", "SeenRows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassingRows:
    """The columns of rows that pass the exchange.

    Attributes:
        schema: These columns.
        passes: The input's column that is null for other rows. Without ``names`` it has all columns as a JSON
            object: Spark takes some time for each column of each row, and of most inputs few rows pass.
        names: The input's columns of the same order.
    """

    schema: pa.Schema
    passes: str
    names: Sequence[str] | None = None

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """These columns of a batch whose rows all pass."""
        if self.names is not None:
            return pa.RecordBatch.from_arrays([batch.column(name) for name in self.names], schema=self.schema)
        rows = [json.loads(row[self.passes]) for row in batch.select([self.passes]).to_pylist()]
        binary = [field.name for field in self.schema if pa.types.is_binary(field.type)]
        for row in rows:
            row |= {name: b64decode(row[name]) for name in binary if name in row}
        return pa.RecordBatch.from_pylist(rows, schema=self.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRows:
    """Rows that report to a later exchange which records of a source's partitions were read.

    Attributes:
        sources: The sources that an operator of a later exchange reads.
        values: The columns that are the same in all such rows.
        columns: The columns of the source's number, the partition and the newest timestamp.
    """

    sources: frozenset[str]
    schema: pa.Schema
    values: Mapping[str, int]
    columns: tuple[str, str, str]

    def build(self, source: int, partition: int, newest_ms: int | None) -> pa.RecordBatch:
        """One row."""
        row = {**self.values, **dict(zip(self.columns, (source, partition, newest_ms), strict=True))}
        return pa.RecordBatch.from_pylist([row], schema=self.schema)
