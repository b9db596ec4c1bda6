"""Read what an exchange has packed in the call that packs it for the next exchange.

Spark passes the packed outputs on without unpacking them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flowcore.keyed.columns import concat_batches
from flowcore.keyed.control import PARTITION_BITS
from flowcore.keyed.record_columns import PackingColumns, RecordColumns

__all__ = [
    "PACKED_SOURCE",
    "READ_KEY_GROUP",
    "READ_POSITION",
    "ControlOutput",
    "OutputReader",
    "PassingOutput",
    "RecordOutput",
]

READ_KEY_GROUP, READ_POSITION = "_flowcore_read_key_group", "_flowcore_read_position"
"""The columns of a row that are not those of its output: the key group that emitted it, and its position
among the rows of the task."""
PACKED_SOURCE = (1 << 31) - 1
"""In place of the number of a source: the row is a packed output."""
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOutput:
    """An output with records.

    Attributes:
        source: The number of the operator among the query's sources.
        schema: The columns of the output.
    """

    source: int
    schema: pa.Schema
    records: RecordColumns

    def select(
        self, rows: pa.RecordBatch, groups: _Ints, positions: _Ints, into: PackingColumns
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_] | None]:
        """The packing's input of some rows; which of them, if some are dropped."""
        read = dict(zip(rows.schema.names, rows.columns, strict=True))
        read |= {READ_KEY_GROUP: pa.array(groups), READ_POSITION: pa.array(positions)}
        return into.select(self.records, read, _channels(self.source, groups), read[READ_POSITION])


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlOutput:
    """An output with control elements, in a column."""

    source: int
    schema: pa.Schema
    element: str

    def select(
        self, rows: pa.RecordBatch, groups: _Ints, positions: _Ints, into: PackingColumns
    ) -> tuple[pa.RecordBatch, None]:
        """The packing's input of some elements."""
        columns: dict[str, pa.Array[Any]] = {
            into.channel: _channels(self.source, groups),
            into.offset: pa.array(positions),
        }
        if into.element is not None:
            columns[into.element] = rows.column(self.element)
        return into.complete(columns, rows.num_rows), None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassingOutput:
    """Rows that passed the exchange before, and pass this one. Their control elements do not.

    Attributes:
        value: The column with the bytes of a row.
        coordinates: The columns with the number of the source, the partition and the offset.
    """

    schema: pa.Schema
    value: str
    coordinates: tuple[str, str, str]

    def select(
        self, rows: pa.RecordBatch, groups: _Ints, positions: _Ints, into: PackingColumns
    ) -> tuple[pa.RecordBatch, None]:
        """The packing's input of some rows."""
        del groups, positions
        texts = [
            json.dumps({name: value for name, value in row.items() if value is not None})
            for row in rows.drop_columns(self._bytes).to_pylist()
        ]
        source, partition, offset = (rows.column(name).cast(pa.int64()) for name in self.coordinates)
        columns: dict[str, pa.Array[Any]] = {
            into.channel: pc.add(pc.shift_left(source, pa.scalar(PARTITION_BITS, pa.int64())), partition),
            into.offset: offset,
            into.passes: pa.array(texts, pa.string()),
            into.passing_value: rows.column(self.value),
        }
        return into.complete(columns, rows.num_rows), None

    @property
    def _bytes(self) -> list[str]:
        return [each.name for each in self.schema if pa.types.is_binary(each.type)]


@dataclass(slots=True)
class _Part:
    """The rows of one output among some packed ones."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    rows: int = 0

    def add(self, rows: pa.RecordBatch, group: int, position: int) -> None:
        self.batches.append(rows)
        self.groups.append(group)
        self.positions.append(position)
        self.rows += rows.num_rows

    def places(self) -> tuple[_Ints, _Ints]:
        """The key group and the position of each row."""
        counts = np.array([each.num_rows for each in self.batches], np.int64)
        before = np.cumsum(counts) - counts
        positions = np.repeat(np.array(self.positions, np.int64) - before, counts) + np.arange(self.rows)
        return np.repeat(np.array(self.groups, np.int64), counts), positions


@dataclass(slots=True)
class OutputReader:
    """Reads the packed outputs of one task.

    Attributes:
        outputs: By name of an output; what it does not have is not read.
        position: The position of the next row.
    """

    outputs: Mapping[str, RecordOutput | ControlOutput | PassingOutput]
    into: PackingColumns
    position: int = 0

    def read(self, names: pa.Array[Any], contents: pa.Array[Any], groups: _Ints) -> Iterator[pa.RecordBatch]:
        """The packing's input of some packed outputs, in their order.

        Rows of one output are read together, which takes less time than one packed output after the other.
        """
        parts: dict[str, _Part] = {}
        order: list[tuple[str, int, int]] = []
        columns: list[list[Any]] = [names.to_pylist(), contents.to_pylist(), groups.tolist()]
        for name, content, group in zip(*columns, strict=True):
            output = self.outputs.get(name)
            if output is None:
                continue
            rows = pa.ipc.read_record_batch(pa.py_buffer(content), output.schema)
            part = parts.setdefault(name, _Part())
            order.append((name, part.rows, part.rows + rows.num_rows))
            part.add(rows, group, self.position)
            self.position += rows.num_rows
        selected = {}
        for name, part in parts.items():
            rows, kept = self.outputs[name].select(concat_batches(part.batches), *part.places(), self.into)
            ends = None if kept is None else np.concatenate([[0], np.cumsum(kept)])
            selected[name] = rows, ends
        for name, start, end in order:
            rows, ends = selected[name]
            first, last = (start, end) if ends is None else (int(ends[start]), int(ends[end]))
            if first < last:
                yield rows.slice(first, last - first)


def _channels(source: int, groups: _Ints) -> pa.Array[Any]:
    channels: pa.Array[Any] = pa.array((source << PARTITION_BITS) + groups)
    return channels
