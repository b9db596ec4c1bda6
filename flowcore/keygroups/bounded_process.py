"""Keyed process functions over bounded input: records of a key group go to the pure operator.

Side outputs are outputs under their names, behind a mark that tells them from the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from flowcore.errors import FlowcoreError, FunctionError
from flowcore.keygroups.emission import RESULTS
from flowcore.keygroups.operator import Outputs
from flowcore.keygroups.slots import python_values
from flowcore.process import (
    KeyedProcessFunction,
    KeyedRecord,
    ProcessConfig,
    ProcessEmissions,
    ProcessOperator,
    ProcessState,
)

__all__ = ["BoundedProcess", "side_named"]

_SIDE = "@side "
_T = TypeVar("_T")


def side_named(output: str) -> str:
    """A side output among a process's outputs.

    >>> side_named("results")
    '@side results'
    """
    return _SIDE + output


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedProcess:
    """Configuration of a keyed process.

    Attributes:
        name: The operator's name, for errors.
        function: The user's.
        keys: The key's columns; none for one key for all.
        key_of: Makes the key of their values.
        values: The columns of a record.
        timestamp: The column of the records' timestamps, a 64-bit integer or null.
        outputs: The columns of the results and, under `side_named`, of each side output.
    """

    name: str
    function: KeyedProcessFunction
    keys: tuple[str, ...]
    key_of: Callable[[tuple[Any, ...]], Any]
    values: tuple[str, ...]
    timestamp: str
    outputs: Mapping[str, pa.Schema]

    def open(self) -> _Group:
        """A key group without state, its function open."""
        return _Group(self)


class _Group:
    def __init__(self, of: BoundedProcess) -> None:
        self._of = of
        sides = tuple(name.removeprefix(_SIDE) for name in of.outputs if name.startswith(_SIDE))
        config = ProcessConfig(function=of.function, side_outputs=sides)
        self._operator = self._called(lambda: ProcessOperator(config))
        self._state = ProcessState()

    def advance_clock(self, clock_ms: int, out: Outputs) -> None:
        """The clock has come this far."""
        self._put(self._called(lambda: self._operator.advance_clock(self._state, clock_ms)), out)

    def rows(self, rows: pa.RecordBatch, out: Outputs) -> None:
        """Records, one by one or, for a function of batches, as they come."""
        columns = [python_values(rows.column(name)) for name in self._of.keys]
        whole = zip(*columns, strict=True) if columns else ((),) * rows.num_rows
        keys = [self._of.key_of(key) for key in whole]
        times = rows.column(self._of.timestamp).to_pylist()
        batch = rows.select(list(self._of.values))
        if self._of.function.by_batch():
            seen = self._called(lambda: self._operator.process_batch(self._state, keys, times, batch))
        else:
            records = map(KeyedRecord, keys, _mappings(batch), times)
            seen = self._called(lambda: self._operator.process(self._state, records))
        self._put(seen, out)

    def advance_watermark(self, watermark_ms: int, out: Outputs) -> None:
        """Timers of event time that are due."""
        self._put(self._called(lambda: self._operator.advance_watermark(self._state, watermark_ms)), out)

    def finish(self, out: Outputs, *, idle: bool) -> None:  # noqa: ARG002 - a group's signature
        """Close the function."""
        self._called(self._operator.close)

    def _called(self, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except FlowcoreError:
            raise
        except Exception as error:
            msg = f"operator {self._of.name!r}: its function raised {type(error).__name__}: {error}"
            raise FunctionError(msg) from error

    def _put(self, seen: ProcessEmissions, out: Outputs) -> None:
        for batch in seen.batches:
            out.rows(RESULTS, self._cast(batch))
        self._records(RESULTS, [result.value for result in seen.results], out)
        for name, results in seen.side_outputs.items():
            self._records(side_named(name), [result.value for result in results], out)

    def _records(self, output: str, records: Sequence[Mapping[str, Any]], out: Outputs) -> None:
        if not records:
            return
        schema = self._of.outputs[output]
        try:
            arrays = [pa.array([each[field.name] for each in records], field.type) for field in schema]
        except (pa.ArrowException, KeyError, TypeError) as error:
            raise self._no_record(records[0], schema, error) from error
        out.rows(output, pa.record_batch(arrays, schema=schema))

    def _cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = self._of.outputs[RESULTS]
        try:
            return batch.select(schema.names).cast(schema)
        except (pa.ArrowException, KeyError, AttributeError) as error:
            raise self._no_record(batch, schema, error) from error

    def _no_record(self, found: object, schema: pa.Schema, error: Exception) -> FunctionError:
        return FunctionError(
            f"operator {self._of.name!r}: its function put out {found!r}, no record of {schema}: {error}; "
            "let it put out mappings, or batches, with these columns"
        )


def _mappings(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    names = batch.schema.names
    if not names:
        return [{} for _ in range(batch.num_rows)]
    lists = [python_values(column) for column in batch.columns]
    return [dict(zip(names, each, strict=True)) for each in zip(*lists, strict=True)]
