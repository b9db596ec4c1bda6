"""The input of packing, from the columns that Python reads of messages or packed outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from flowcore.keyed.arrow_expressions import ArrowExpression, Evaluation
from flowcore.keyed.columns import RowMask, rows_not_null
from flowcore.keyed.key_group_hash import key_groups_of

__all__ = ["ArrowColumns", "PackingColumns", "RecordColumns"]

ArrowColumns = Mapping[str, "pa.Array[Any]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """The columns of records in the packing's input, by name there; others are null.

    Attributes:
        columns: What each is of the columns that were read.
        key_groups: The column of each recipient's key group, with the columns of its key, and whether records
            without key are spread by partition.
        partition: The number by which they are spread, 0 for null.
        kept: The condition under which a record has a key group; None for all.
        drops: A record without key group is dropped. Otherwise it carries event time.
    """

    columns: Mapping[str, ArrowExpression]
    key_groups: Mapping[str, tuple[Sequence[str], bool]]
    partition: ArrowExpression
    kept: ArrowExpression | None = None
    drops: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingColumns:
    """The columns of the packing's input.

    Attributes:
        channel: The number of the source before the bits of the partition; negative for the query's own rows.
        passes: The column with a row that passes, as a JSON object without its bytes.
        passing_value: The column with the bytes of such a row.
        element: The column with a control element; None if there are none.
    """

    schema: pa.Schema
    channel: str
    offset: str
    passes: str
    passing_value: str
    key_groups: int
    element: str | None = None

    def select(
        self, records: RecordColumns, read: ArrowColumns, channels: pa.Array[Any], offsets: pa.Array[Any]
    ) -> tuple[pa.RecordBatch, RowMask | None]:
        """Records with their columns, from the columns that were read; which of them, if some are dropped."""
        rows, kept, evaluation = len(channels), None, Evaluation(read)
        if records.kept is not None:
            found = evaluation.column(records.kept, rows, pa.bool_()).fill_null(False)
            kept = found.to_numpy(zero_copy_only=False)
        if records.drops and kept is not None:
            chosen = pa.array(kept)
            channels, offsets = channels.filter(chosen), offsets.filter(chosen)
            rows = len(channels)
            evaluation = Evaluation({name: column.filter(chosen) for name, column in read.items()})
        columns = {self.channel: channels, self.offset: offsets}
        for name, each in records.columns.items():
            columns[name] = evaluation.column(each, rows, self.schema.field(name).type)
        dropped = None if kept is None or records.drops else ~kept
        for name, (keys, spreads) in records.key_groups.items():
            key = [columns[each] for each in keys]
            groups = key_groups_of(key, rows, self.key_groups)
            if spreads and any(column.null_count for column in key):
                has_key = np.logical_and.reduce([rows_not_null(column) for column in key])
                partition = evaluation.column(records.partition, rows, pa.int64()).fill_null(0)
                groups = np.where(has_key, groups, partition.to_numpy() % self.key_groups)
            columns[name] = pa.array(groups, mask=dropped)
        return self.complete(columns, rows), kept if records.drops else None

    def complete(self, columns: ArrowColumns, rows: int) -> pa.RecordBatch:
        """A batch with all columns; those that are not given are null."""
        arrays = [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(rows, field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
