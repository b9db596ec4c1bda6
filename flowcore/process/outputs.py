"""Rows of the outputs of a keyed process function.

Every output has an *origin*, which is the same when a step is repeated: the place of its record (the first
record, for a batch), or its timer as text. The ordinal numbers the outputs of one origin. If other functions
run downstream in the same call, `NTH` numbers the outputs of one result.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from flowcore.elements import RecordAttributes
from flowcore.errors import FunctionError
from flowcore.keyed.dead_letters import DEAD_LETTERS, DeadLetters, Failure
from flowcore.keyed.key_index import to_key_columns
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.output_columns import ORDINAL, RESULTS, TIMESTAMP
from flowcore.keyed.user_code import build_columns, number_repeats
from flowcore.process.current import ProcessEmissions, ProcessResult
from flowcore.serializers.python_values import first_row

__all__ = ["NTH", "TIMER", "Downstream", "ProcessOutputs", "RowBuilder", "side_output_name"]

TIMER = "@timer"
"""The timer of an output: key, time domain and time; null for outputs of records."""
NTH = "@nth"
"""The number of an output among those of one result, from 0."""
KEY = "@key_"
TimerText = Callable[[ProcessResult], str | None]


class Downstream(Protocol):
    """Functions that process the results in the same call.

    Attributes:
        outputs: The columns of their outputs, by output.
        refused: The failures of the last call, by the number of the input record.
    """

    @property
    def outputs(self) -> Mapping[str, pa.Schema]: ...

    @property
    def refused(self) -> Mapping[int, FunctionError]: ...

    def run(
        self,
        inputs: Sequence[Mapping[str, Any]] | pa.RecordBatch,
        locate: Callable[[int], str | None],
        attributes: RecordAttributes,
        /,
    ) -> Sequence[tuple[str, pa.RecordBatch, Sequence[int] | None]]:
        """Outputs, with the numbers of the input records of their rows, if these are known."""

    def close(self) -> None:
        """The task ends."""


def side_output_name(name: str) -> str:
    """The output of a side output, which a user may give the name `RESULTS`."""
    return f"side {name}"


@dataclass(frozen=True, kw_only=True)
class ProcessOutputs:
    """The columns of a keyed process function.

    Attributes:
        name: The operator's name, for errors.
        keys: The key's columns; none for one key for all.
        places: Columns of records that say where a record was; outputs carry them.
        topics: Topic names, by the number in the first of ``places``; partition and offset follow it.
        keyed: Results carry their key, as `key_fields`. Not for functions of batches, whose rows have several
            keys.
        dead_letters: Which failures become dead letters; None if each fails the query.
        downstream: Functions that process the results; rows are made of their outputs.
    """

    name: str
    keys: tuple[str, ...]
    rows: pa.Schema
    results: pa.Schema
    side_outputs: Mapping[str, pa.Schema]
    places: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    keyed: bool = False
    dead_letters: DeadLetters | None = None
    downstream: Downstream | None = None

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """The columns of each output: results or downstream outputs, side outputs, and dead letters."""
        origin = [*(self.rows.field(name) for name in self.places), pa.field(TIMER, pa.string())]
        origin += [pa.field(TIMESTAMP, pa.int64()), pa.field(ORDINAL, pa.int32())]
        if self.downstream is None:
            found = {RESULTS: pa.schema([*self.results, *self.key_fields, *origin])}
        else:
            leaving = [*origin, pa.field(NTH, pa.int32())]
            found = {name: pa.schema([*own, *leaving]) for name, own in self.downstream.outputs.items()}
        for name, schema in self.side_outputs.items():
            found[side_output_name(name)] = pa.schema([*schema, *origin])
        if self.dead_letters is not None:
            found[DEAD_LETTERS] = self.dead_letters.schema(self.rows)
        return found

    @property
    def key_fields(self) -> Sequence[pa.Field[Any]]:
        """The columns of a result's key, with names that no user's column has."""
        names = self.keys if self.keyed else ()
        return [self.rows.field(name).with_name(f"{KEY}{name}") for name in names]

    def place_of(self, rows: pa.RecordBatch, number: int) -> str | None:
        """Topic, partition and offset of a record, None if they are unknown."""
        if not self.topics:
            return None
        topic, partition, offset = (rows.column(name)[number].as_py() for name in self.places[:3])
        if topic is None:
            return None
        return f"{self.topics[topic]}[{partition}]@{offset}"


class RowBuilder:
    """Builds rows of a function's outputs.

    Attributes:
        attributes: Those of the current results, for downstream functions.
    """

    def __init__(self, config: ProcessOutputs) -> None:
        self.attributes = RecordAttributes(backlog=False)
        self._config = config
        self._outputs = config.outputs

    def require(self, emissions: ProcessEmissions) -> None:
        """Require that outputs fit the declared columns, except results for downstream functions.

        Raises:
            FunctionError: An output does not fit.
        """
        if self._config.downstream is None:
            self._columns(emissions.results, self._config.results)
        for name, results in emissions.side_outputs.items():
            self._columns(results, self._config.side_outputs[name])
        for batch in emissions.batches:
            self._cast(batch)

    def emit(
        self,
        emissions: ProcessEmissions,
        out: StepOutputs,
        timer: TimerText = lambda _: None,
        rows: pa.RecordBatch | None = None,
    ) -> None:
        """Emit rows.

        Args:
            timer: The timer of a result, as text.
            rows: The records of the results, None for results of timers.

        Raises:
            FunctionError: An output does not fit the declared columns, or a downstream function failed.
        """
        results = emissions.results
        if results:
            origin = self._origin_columns(results, timer, rows)
            if self._config.downstream is None:
                types = [each.type for each in self._config.key_fields]
                keys = to_key_columns([each.key for each in results], types)
                columns = [*self._columns(results, self._config.results), *keys, *origin]
                out.rows(RESULTS, pa.record_batch(columns, schema=self._outputs[RESULTS]))
            else:
                values = [each.value for each in results]
                self._run_downstream(values, origin, [each.origin for each in results], rows, out)
        for name, others in emissions.side_outputs.items():
            columns = self._columns(others, self._config.side_outputs[name])
            columns += self._origin_columns(others, timer, rows)
            output = side_output_name(name)
            out.rows(output, pa.record_batch(columns, schema=self._outputs[output]))
        first = 0
        for batch in emissions.batches:
            self._emit_batch(self._cast(batch), first, rows, out)
            first += batch.num_rows

    def _columns(self, results: Sequence[ProcessResult], schema: pa.Schema) -> list[pa.Array[Any]]:
        return build_columns([each.value for each in results], schema, self._config.name)

    def _origin_columns(
        self, results: Sequence[ProcessResult], timer: TimerText, rows: pa.RecordBatch | None
    ) -> list[pa.Array[Any]]:
        columns = self._places(rows, [result.origin or 0 for result in results])
        columns.append(pa.array([timer(result) for result in results], pa.string()))
        columns.append(pa.array([result.timestamp_ms for result in results], pa.int64()))
        columns.append(pa.array(number_repeats(map(_origin, results)), pa.int32()))
        return columns

    def _cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch that a function returned, with the declared columns."""
        try:
            columns = [batch.column(field.name).cast(field.type) for field in self._config.results]
        except (pa.ArrowException, KeyError) as error:
            msg = (
                f"operator {self._config.name!r}: its function returned a batch of {batch.schema.names}, not "
                f"of {self._config.results.names}: {error!r}; return batches of the declared schema"
            )
            raise FunctionError(" ".join(msg.split())) from error
        return pa.record_batch(columns, schema=self._config.results)

    def _emit_batch(
        self, batch: pa.RecordBatch, first: int, rows: pa.RecordBatch | None, out: StepOutputs
    ) -> None:
        count = batch.num_rows
        origin = self._places(rows, [0] * count)
        origin += [pa.nulls(count, pa.string()), pa.nulls(count, pa.int64())]
        origin.append(pa.array(range(first, first + count), pa.int32()))
        if self._config.downstream is None:
            columns = [*batch.columns, *origin]
            out.rows(RESULTS, pa.record_batch(columns, schema=self._outputs[RESULTS]))
        else:
            self._run_downstream(batch, origin, [None if rows is None else 0] * count, rows, out)

    def _run_downstream(
        self,
        inputs: Sequence[Mapping[str, Any]] | pa.RecordBatch,
        origin_columns: Sequence[pa.Array[Any]],
        origins: Sequence[int | None],
        rows: pa.RecordBatch | None,
        out: StepOutputs,
    ) -> None:
        """Pass results to the downstream functions and emit their outputs and dead letters."""
        downstream, dead_letters = self._config.downstream, self._config.dead_letters
        if downstream is None:
            return

        def locate(number: int) -> str | None:
            origin = origins[number]
            return None if rows is None or origin is None else self._config.place_of(rows, origin)

        for output, batch, numbers in downstream.run(inputs, locate, self.attributes):
            fields = list(self._outputs[output])[batch.num_columns :]
            if numbers is None:
                others = [pa.nulls(batch.num_rows, field.type) for field in fields]
            else:
                others = [
                    *(each.take(pa.array(numbers)) for each in origin_columns), _number_by_input(numbers),
                ]  # fmt: skip
            out.rows(output, pa.record_batch([*batch.columns, *others], schema=self._outputs[output]))
        failures = [
            Failure(error.operator or self._config.name, error, origins[number], _record(inputs, number))
            for number, error in sorted(downstream.refused.items())
        ]
        if failures and dead_letters is not None:
            about = rows if rows is not None else pa.RecordBatch.from_pylist([], schema=self._config.rows)
            out.rows(DEAD_LETTERS, dead_letters.build_rows(failures, about))

    def _places(self, rows: pa.RecordBatch | None, origins: Sequence[int]) -> list[pa.Array[Any]]:
        names = self._config.places
        if rows is None:
            return [pa.nulls(len(origins), self._config.rows.field(name).type) for name in names]
        return [rows.column(name).take(np.array(origins, np.int64)) for name in names]


def _record(inputs: Sequence[Mapping[str, Any]] | pa.RecordBatch, number: int) -> Mapping[str, Any]:
    if not isinstance(inputs, pa.RecordBatch):
        return inputs[number]
    return first_row(inputs.slice(number, 1))


def _number_by_input(numbers: Sequence[int]) -> pa.Array[Any]:
    """The position of each row among those with the same number; numbers do not fall."""
    found = np.asarray(numbers, np.int64)
    first = np.flatnonzero(np.concatenate(([True], found[1:] != found[:-1])))
    counts = np.diff(np.append(first, len(found)))
    return pa.array(np.arange(len(found)) - np.repeat(first, counts), pa.int32())


def _origin(result: ProcessResult) -> Hashable:
    """A record, or a timer; the results of batches share one origin."""
    of_timer = result.origin is None and result.timestamp_ms is not None
    return (result.key, result.timestamp_ms) if of_timer else result.origin
