"""Process outputs: which rows become of what a keyed process function puts out?

Every output has an *origin*, which is the same when a step is taken again: the record of which it was made
(of a batch its first), by the columns that say where it was; or a timer, as text. `ORDINAL` tells apart the
outputs of one origin. Where other functions follow in the same call, results go through these first, and
`NTH` tells apart what became of one result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from flowcore.errors import FunctionError
from flowcore.keyed.dead_letters import DEAD_LETTERS, Failure
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.output_columns import ORDINAL, RESULTS, TIMESTAMP
from flowcore.keyed.user_code import build_columns
from flowcore.process import ProcessEmissions, ProcessResult

if TYPE_CHECKING:
    from flowcore.process.keyed import KeyedProcesses

__all__ = ["NTH", "TIMER", "Downstream", "ProcessRows", "outputs_of", "side_output_name"]

TIMER = "@timer"
"""Of which timer an output was made: key, clock and time; null for those of records."""
NTH = "@nth"
"""Which of those it is that were made of one result, from 0."""
TimerText = Callable[[ProcessResult], str | None]


class Downstream(Protocol):
    """Functions that follow a process in the same call.

    Attributes:
        outputs: The columns of what they put out, by output.
        refused: Of the last call, why something failed, by the number of the record it was given.
    """

    @property
    def outputs(self) -> Mapping[str, pa.Schema]: ...

    @property
    def refused(self) -> Mapping[int, FunctionError]: ...

    def run(
        self, given: Sequence[Mapping[str, Any]] | pa.RecordBatch, where: Callable[[int], str | None], /
    ) -> Sequence[tuple[str, pa.RecordBatch, Sequence[int] | None]]:
        """What comes out, by output, with the numbers of the records that it was made of, if known."""
        ...

    def close(self) -> None:
        """The task ends."""
        ...


def side_output_name(name: str) -> str:
    """The output of a side output; a user may call one like `RESULTS`."""
    return f"side {name}"


def outputs_of(of: KeyedProcesses) -> dict[str, pa.Schema]:
    """The columns of results, or of what becomes of them, and of side outputs."""
    beside = [*(of.rows.field(name) for name in of.places), pa.field(TIMER, pa.string())]
    beside += [pa.field(TIMESTAMP, pa.int64()), pa.field(ORDINAL, pa.int32())]
    found = {
        side_output_name(name): pa.schema([*schema, *beside]) for name, schema in of.side_outputs.items()
    }
    if of.downstream is None:
        return {RESULTS: pa.schema([*of.results, *of.key_fields, *beside]), **found}
    beside.append(pa.field(NTH, pa.int32()))
    return {**{name: pa.schema([*own, *beside]) for name, own in of.downstream.outputs.items()}, **found}


class ProcessRows:
    """Makes rows.

    Args:
        of: The configuration.
    """

    def __init__(self, of: KeyedProcesses) -> None:
        self._of = of
        self._outputs = outputs_of(of)

    def require(self, seen: ProcessEmissions) -> None:
        """StepOutputs that become rows, as far as that is known before other functions were given them.

        Raises:
            FunctionError: They are not of the declared columns.
        """
        if self._of.downstream is None:
            build_columns([each.value for each in seen.results], self._of.results, self._of.name)
        for name, results in seen.side_outputs.items():
            build_columns([each.value for each in results], self._of.side_outputs[name], self._of.name)
        for batch in seen.batches:
            self._declared(batch)

    def put(
        self, seen: ProcessEmissions, out: StepOutputs, timer: TimerText, rows: pa.RecordBatch | None = None
    ) -> None:
        """Put rows out.

        Args:
            seen: What was put out.
            out: Where they go.
            timer: Of which timer a result was made.
            rows: The records that results were made of, None for those of timers.

        Raises:
            FunctionError: Something is not of the declared columns, or a function that follows failed.
        """
        if seen.results:
            beside = self._beside(seen.results, timer, rows)
            values = [each.value for each in seen.results]
            if self._of.downstream is None:
                columns = [*build_columns(values, self._of.results, self._of.name), *self._keys(seen.results)]
                out.rows(RESULTS, pa.record_batch([*columns, *beside], schema=self._outputs[RESULTS]))
            else:
                self._chained(values, beside, [each.origin for each in seen.results], rows, out)
        for name, results in seen.side_outputs.items():
            columns = build_columns(
                [each.value for each in results], self._of.side_outputs[name], self._of.name
            )
            columns += self._beside(results, timer, rows)
            out.rows(
                side_output_name(name), pa.record_batch(columns, schema=self._outputs[side_output_name(name)])
            )
        first = 0
        for batch in seen.batches:
            self._whole(self._declared(batch), first, rows, out)
            first += batch.num_rows

    def _keys(self, results: Sequence[ProcessResult]) -> list[pa.Array[Any]]:
        fields = self._of.key_fields
        whole = [each.key if len(fields) > 1 else (each.key,) for each in results]
        return [pa.array([key[n] for key in whole], field.type) for n, field in enumerate(fields)]

    def _beside(
        self, results: Sequence[ProcessResult], timer: TimerText, rows: pa.RecordBatch | None
    ) -> list[pa.Array[Any]]:
        columns = self._places(rows, [result.origin or 0 for result in results])
        columns.append(pa.array([timer(result) for result in results], pa.string()))
        columns.append(pa.array([result.timestamp_ms for result in results], pa.int64()))
        columns.append(pa.array(_ordinals(results), pa.int32()))
        return columns

    def _declared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch that a function of batches returned, with the columns that were declared."""
        try:
            columns = [batch.column(field.name).cast(field.type) for field in self._of.results]
        except (pa.ArrowException, KeyError) as error:
            msg = (
                f"operator {self._of.name!r}: its function returned a batch of {batch.schema.names}, none of "
                f"{self._of.results.names}: {error!r}; return batches of the declared schema"
            )
            raise FunctionError(" ".join(msg.split())) from error
        return pa.record_batch(columns, schema=self._of.results)

    def _whole(
        self, batch: pa.RecordBatch, first: int, rows: pa.RecordBatch | None, out: StepOutputs
    ) -> None:
        count = batch.num_rows
        beside = self._places(rows, [0] * count)
        beside += [pa.nulls(count, pa.string()), pa.nulls(count, pa.int64())]
        beside.append(pa.array(range(first, first + count), pa.int32()))
        if self._of.downstream is None:
            columns = [*batch.columns, *beside]
            out.rows(RESULTS, pa.record_batch(columns, schema=self._outputs[RESULTS]))
        else:
            self._chained(batch, beside, [None if rows is None else 0] * count, rows, out)

    def _chained(
        self,
        given: Sequence[Mapping[str, Any]] | pa.RecordBatch,
        beside: Sequence[pa.Array[Any]],
        origins: Sequence[int | None],
        rows: pa.RecordBatch | None,
        out: StepOutputs,
    ) -> None:
        """What other functions make of results."""
        downstream, letters = self._of.downstream, self._of.dead_letters
        if downstream is None:
            return

        def where(number: int) -> str | None:
            origin = origins[number]
            return None if rows is None or origin is None else self._of.place_of(rows, origin)

        for output, batch, numbers in downstream.run(given, where):
            fields = list(self._outputs[output])[batch.num_columns :]
            if numbers is None:
                others = [pa.nulls(batch.num_rows, field.type) for field in fields]
            else:
                others = [*(each.take(pa.array(numbers)) for each in beside), _nth(numbers)]
            out.rows(output, pa.record_batch([*batch.columns, *others], schema=self._outputs[output]))
        failures = [
            Failure(error.operator or self._of.name, error, origins[number], _record(given, number))
            for number, error in sorted(downstream.refused.items())
        ]
        if failures and letters is not None:
            about = rows if rows is not None else pa.RecordBatch.from_pylist([], schema=self._of.rows)
            out.rows(DEAD_LETTERS, letters.written(failures, about))

    def _places(self, rows: pa.RecordBatch | None, origins: Sequence[int]) -> list[pa.Array[Any]]:
        if rows is None:
            return [pa.nulls(len(origins), self._of.rows.field(name).type) for name in self._of.places]
        taken = np.array(origins, np.int64)
        return [rows.column(name).take(taken) for name in self._of.places]


def _record(given: Sequence[Mapping[str, Any]] | pa.RecordBatch, number: int) -> Mapping[str, Any]:
    if not isinstance(given, pa.RecordBatch):
        return given[number]
    (record,) = given.slice(number, 1).to_pylist()
    return record


def _nth(numbers: Sequence[int]) -> pa.Array[Any]:
    """The place of each among those with the same number, which are not falling."""
    found = np.asarray(numbers, np.int64)
    first = np.flatnonzero(np.concatenate(([True], found[1:] != found[:-1])))
    counts = np.diff(np.append(first, len(found)))
    return pa.array(np.arange(len(found)) - np.repeat(first, counts), pa.int32())


def _ordinals(results: Sequence[ProcessResult]) -> list[int]:
    """The place of each among the outputs of its origin; those of batches have one origin together."""
    found: dict[Any, int] = {}
    places = []
    for result in results:
        of_timer = result.origin is None and result.timestamp_ms is not None
        origin = (result.key, result.timestamp_ms) if of_timer else result.origin
        places.append(found.get(origin, 0))
        found[origin] = places[-1] + 1
    return places
