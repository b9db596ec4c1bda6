"""Rows that pass an exchange unopened, and rows that report to a later exchange what was read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

__all__ = ["PassingRows", "SeenRows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassingRows:
    """The columns of rows that pass the exchange.

    Attributes:
        schema: These columns.
        passes: The input's column that is null for other rows. It has the columns that are not in ``names``
            as a JSON object: Spark takes some time for each column of each row, and of most inputs few rows
            pass.
        names: The input's columns of the others, by name.
    """

    schema: pa.Schema
    passes: str
    names: Mapping[str, str]

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """These columns of a batch whose rows all pass."""
        columns = {name: batch.column(now) for name, now in self.names.items()}
        in_text = pa.schema([field for field in self.schema if field.name not in columns])
        if len(in_text):
            rows = [json.loads(row[self.passes]) for row in batch.select([self.passes]).to_pylist()]
            found = pa.RecordBatch.from_pylist(rows, schema=in_text)
            columns |= dict(zip(in_text.names, found.columns, strict=True))
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


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
