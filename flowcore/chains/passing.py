"""A chain over some rows and columns of a stream; all other rows and columns pass unchanged.

A row of a live query has more columns than its record, such as its coordinates and its branch. Between the
rows of a chain are rows of other branches, bad messages and latency markers. These rows cross the worker as
Arrow columns and never become Python objects. An output carries the other columns of the record that it was
made from.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flowcore.chains.records import to_records
from flowcore.chains.task import ChainOutput, ChainTask, OpenChain
from flowcore.elements import RecordAttributes
from flowcore.errors import FunctionError
from flowcore.escaping import storable
from flowcore.keyed.dead_letters import to_json

__all__ = ["FailedRows", "OutletRows", "PassingChain"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OutletRows:
    """The rows that an outlet's records become.

    Attributes:
        branch: The value of their branch column; None if there is no such column.
        columns: The names of the record's columns in the rows, by the names in the record.
        step: Distinguishes the outputs of one record, or of one batch: it is appended to the ordinal, with a
            number; None if each record has at most one output.
    """

    branch: int | None
    columns: Mapping[str, str]
    step: str | None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FailedRows:
    """The rows that records become for which a function failed: bad messages with their other columns.

    Attributes:
        time: The column of the message's time. If it is null, an operator with state made the record, or its
            source asks to stop.
        value: The column of the message's bytes.
        made: The topic of records that an operator with state made of many. Rows of records without a message
            have the chain's input as JSON. None if their failure stops the query.
    """

    branch: int
    time: str
    reason: str
    operator: str
    value: str
    made: str | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class PassingChain(OpenChain):
    """A chain over some rows of a stream of Arrow batches.

    Attributes:
        inputs: The names of the chain's input columns in the batches, by the names in the chain.
        branch: The branch column, if the result has one.
        number: The value of the branch column in the chain's rows; None if all rows are the chain's.
        carried: The columns that an output takes from the record that it was made from.
        identity: The carried columns of which a record id is made, and which the outputs of a batch take from
            its first record.
        ordinal: The carried column that distinguishes the outputs of one record, if there is one.
        coordinates: The carried columns with a record's topic, partition and offset, if there are any.
        failed: The rows of records for which a function failed; None if a failure stops the query.
        backlog: The column of the records' backlog status; None if no function asks for it.
    """

    inputs: Mapping[str, str]
    branch: str | None
    number: int | None
    carried: Sequence[str]
    identity: Sequence[str]
    ordinal: str | None
    coordinates: Sequence[str]
    outlets: Sequence[OutletRows]
    schema: pa.Schema
    failed: FailedRows | None = None
    backlog: str | None = None

    def __post_init__(self) -> None:
        self.indexed = bool(self.carried)
        self.isolate_failures = self.failed is not None

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For each batch its outputs, then the rows that are not the chain's."""
        task = self.open()
        for batch in batches:
            mine, others = self._split(batch)
            for records, attributes in self._runs(mine):
                if attributes is not None:
                    task.attributes(attributes)
                yield from self._run_on(task, records)
            if others is not None and others.num_rows:
                known = [name for name in self.schema.names if name in set(others.schema.names)]
                yield self._rows({name: others.column(name) for name in known}, others.num_rows)

    def _run_on(self, task: ChainTask, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows of the outputs of records, and of those that failed.

        A function of batches does not say which record failed. So the chain runs again on halves, until
        single records fail.
        """
        inputs = records.select(list(self.inputs.values())).rename_columns(list(self.inputs))
        outputs: list[ChainOutput] | None = None
        try:
            outputs = task.run(inputs, self._locator(records))
            refused: Mapping[int, FunctionError] = task.refused
        except FunctionError as error:
            if self.failed is None:
                raise
            refused = {0: error}
        if outputs is None and records.num_rows > 1:
            half = records.num_rows // 2
            yield from self._run_on(task, records.slice(0, half))
            yield from self._run_on(task, records.slice(half))
            return
        for output in outputs or ():
            yield self._output_rows(output, records)
        if refused and self.failed is not None:
            yield self._failed_rows(refused, records, self.failed)

    def _split(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        if self.number is None or self.branch is None:
            return batch, None
        mine = pc.equal(batch.column(self.branch), pa.scalar(self.number, batch.column(self.branch).type))
        if pc.all(mine).as_py():
            return batch, None
        return batch.filter(mine), batch.filter(pc.invert(mine))

    def _runs(self, mine: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, RecordAttributes | None]]:
        """The records up to each change of the backlog status, with their attributes if asked for."""
        if not mine.num_rows:
            return
        if self.backlog is None:
            yield mine, None
            return
        statuses = mine.column(self.backlog).fill_null(fill_value=False).to_numpy(zero_copy_only=False)
        changes = np.flatnonzero(statuses[1:] != statuses[:-1]) + 1
        for start, end in pairwise([0, *changes.tolist(), len(statuses)]):
            yield mine.slice(start, end - start), RecordAttributes(backlog=bool(statuses[start]))

    def _locator(self, mine: pa.RecordBatch) -> Callable[[int], str | None] | None:
        if not self.coordinates:
            return None

        def locate(number: int) -> str | None:
            topic, partition, offset = (mine.column(name)[number].as_py() for name in self.coordinates)
            return None if topic is None else f"{topic}[{partition}]@{offset}"

        return locate

    def _output_rows(self, output: ChainOutput, mine: pa.RecordBatch) -> pa.RecordBatch:
        outlet = self.outlets[output.outlet]
        columns = {column: output.batch.column(name) for name, column in outlet.columns.items()}
        if self.branch is not None and outlet.branch is not None:
            columns[self.branch] = pa.repeat(pa.scalar(outlet.branch, pa.int32()), output.batch.num_rows)
        known = output.origins is not None
        origins = np.asarray(output.origins if known else [0] * output.batch.num_rows, dtype=np.int64)
        all_rows = len(origins) == mine.num_rows and bool((origins == np.arange(len(origins))).all())
        positions: Any = pa.array(origins)
        for name in self.carried if known else self.identity:
            column = mine.column(name)
            columns[name] = column if all_rows else column.take(positions)
        if self.backlog is not None and not known:  # a batch of records is on one side of a change
            columns[self.backlog] = mine.column(self.backlog).take(positions)
        if self.ordinal is not None and outlet.step is not None and len(origins):
            columns[self.ordinal] = _distinct_ordinals(columns[self.ordinal], origins, outlet.step)
        return self._rows(columns, output.batch.num_rows)

    def _failed_rows(
        self, errors: Mapping[int, FunctionError], mine: pa.RecordBatch, failed: FailedRows
    ) -> pa.RecordBatch:
        numbers = sorted(errors)
        rows = mine.take(pa.array(numbers))
        columns = {name: rows.column(name) for name in rows.schema.names}
        made = rows.column(failed.time).is_null()
        if made.true_count:
            if failed.made is None:
                raise errors[numbers[made.index(True).as_py()]]
            columns |= self._content(rows, columns, made, failed, failed.made)
        columns[failed.reason] = pa.array([storable(str(errors[number])) for number in numbers])
        columns[failed.operator] = pa.array([errors[number].operator for number in numbers], pa.string())
        if self.branch is not None:
            columns[self.branch] = pa.repeat(pa.scalar(failed.branch, pa.int32()), len(numbers))
        return self._rows(columns, len(numbers))

    def _content(
        self, rows: pa.RecordBatch, columns: Mapping[str, Any], made: Any, failed: FailedRows, topic: str
    ) -> dict[str, Any]:
        """The columns of a message, with the chain's input for records without one.

        Those that were made of many have no place either; others, such as late records, keep theirs.
        """
        inputs = rows.select(list(self.inputs.values())).rename_columns(list(self.inputs))
        texts = [storable(to_json(record)).encode() for record in to_records(inputs)]
        found = {failed.value: pc.if_else(made, pa.array(texts, pa.binary()), columns[failed.value])}
        return found | {name: columns[name].fill_null(topic) for name in self.coordinates[:1]}

    def _rows(self, columns: Mapping[str, Any], count: int) -> pa.RecordBatch:
        found = []
        for field in self.schema:
            column = columns.get(field.name)
            if column is None:
                column = pa.nulls(count, field.type)
            found.append(column if column.type == field.type else column.cast(field.type))
        return pa.RecordBatch.from_arrays(found, schema=self.schema)


def _distinct_ordinals(ordinals: Any, origins: Any, step: str) -> Any:
    """Distinct ordinals for the outputs of one record; the first output keeps the ordinal of the record."""
    first = np.flatnonzero(np.concatenate(([True], origins[1:] != origins[:-1])))
    counts = np.diff(np.append(first, len(origins)))
    number = np.arange(len(origins)) - np.repeat(first, counts)
    if not number.any():
        return ordinals
    suffixes = np.where(number > 0, np.char.add(f".{step}-", number.astype(str)), "")
    return pc.binary_join_element_wise(ordinals, pa.array(suffixes.tolist(), ordinals.type), "")
