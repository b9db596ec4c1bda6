"""Passing: how do rows that are no records of a chain, and columns that are not its, get past its functions?

A live query's rows carry more than their record: where it comes from, which branch it is on; and rows of
other branches, bad messages and latency markers stand between them. They cross the worker as Arrow columns
and never become Python objects. A record that comes out carries what the record carried that it was made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flowcore.chains.reuse_check import CheckMode
from flowcore.chains.steps import ChainSpec
from flowcore.chains.task import ChainTask, Output
from flowcore.errors import FunctionError

__all__ = ["Failing", "PassingChain", "Way"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Way:
    """How the records of an outlet go on.

    Attributes:
        branch: The value of the branch column in their rows; None where there is no such column.
        columns: What their columns are called then, by name.
        step: Tells apart the records that were made of one: what is put behind the ordinal, with a number;
            None where each record makes one at most.
    """

    branch: int | None
    columns: Mapping[str, str]
    step: str | None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Failing:
    """How a record goes on for which a function fails: as a bad message, with all that its row carries.

    Attributes:
        branch: The value of the branch column in its row.
        value: The column of its message's bytes; where they are null, the failure stops the query.
        reason: The column of why it is bad.
        operator: The column of whose function failed.
    """

    branch: int
    value: str
    reason: str
    operator: str


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PassingChain:
    """A chain over some rows of a stream of Arrow batches.

    Attributes:
        spec: The chain.
        check: Whether functions are watched.
        inputs: What the chain's input columns are called in the batches, by name.
        branch: The branch column, if the result has one.
        number: The value of the branch column in the chain's rows; None if all rows are its.
        carried: The columns that an output has from the record that it was made of.
        ordinal: One of these, which tells apart the outputs of one record; None if there is none.
        coordinates: Those of these that say where a record was: topic, partition, offset; or none.
        ways: Of each outlet.
        schema: Of the result.
        failing: Of records for which a function fails; None if that stops everything.
    """

    spec: ChainSpec
    check: CheckMode
    inputs: Mapping[str, str]
    branch: str | None
    number: int | None
    carried: Sequence[str]
    ordinal: str | None
    coordinates: Sequence[str]
    ways: Sequence[Way]
    schema: pa.Schema
    failing: Failing | None = None

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The outputs of each batch, then those of its rows that are not the chain's."""
        lenient = self.failing is not None
        task = ChainTask(self.spec, indexed=bool(self.carried), check=self.check, lenient=lenient)
        with task.running():
            for batch in batches:
                mine, others = self._parted(batch)
                if mine.num_rows:
                    inputs = mine.select(list(self.inputs.values())).rename_columns(list(self.inputs))
                    for output in task.run(inputs, self._where(mine)):
                        yield self._made(output, mine)
                    if task.refused and self.failing is not None:
                        yield self._refused(task.refused, mine, self.failing)
                if others is not None and others.num_rows:
                    yield self._passed(others)

    def _parted(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        if self.number is None or self.branch is None:
            return batch, None
        mine = pc.equal(batch.column(self.branch), pa.scalar(self.number, batch.column(self.branch).type))
        if pc.all(mine).as_py():
            return batch, None
        return batch.filter(mine), batch.filter(pc.invert(mine))

    def _where(self, mine: pa.RecordBatch) -> Callable[[int], str | None] | None:
        if not self.coordinates:
            return None

        def where(number: int) -> str | None:
            topic, partition, offset = (mine.column(name)[number].as_py() for name in self.coordinates)
            return None if topic is None else f"{topic}[{partition}]@{offset}"

        return where

    def _made(self, output: Output, mine: pa.RecordBatch) -> pa.RecordBatch:
        way = self.ways[output.outlet]
        physical = {now: output.batch.column(name) for name, now in way.columns.items()}
        if self.branch is not None and way.branch is not None:
            physical[self.branch] = pa.repeat(pa.scalar(way.branch, pa.int32()), output.batch.num_rows)
        if output.origins is not None:
            origins = np.asarray(output.origins, dtype=np.int64)
            whole = len(origins) == mine.num_rows and bool((origins == np.arange(len(origins))).all())
            places: Any = pa.array(origins)
            for name in self.carried:
                column = mine.column(name)
                physical[name] = column if whole else column.take(places)
            if self.ordinal is not None and way.step is not None:
                physical[self.ordinal] = _told_apart(physical[self.ordinal], origins, way.step)
        return self._row_batch(physical, output.batch.num_rows)

    def _refused(
        self, errors: Mapping[int, FunctionError], mine: pa.RecordBatch, failing: Failing
    ) -> pa.RecordBatch:
        places = sorted(errors)
        rows = mine.take(pa.array(places))
        for place, value in zip(places, rows.column(failing.value), strict=True):
            if not value.is_valid:
                raise errors[place]
        physical = {name: rows.column(name) for name in rows.schema.names}
        physical[failing.reason] = pa.array([str(errors[place]) for place in places])
        physical[failing.operator] = pa.array([errors[place].operator for place in places], pa.string())
        if self.branch is not None:
            physical[self.branch] = pa.repeat(pa.scalar(failing.branch, pa.int32()), len(places))
        return self._row_batch(physical, len(places))

    def _passed(self, others: pa.RecordBatch) -> pa.RecordBatch:
        known = set(others.schema.names)
        kept = [name for name in self.schema.names if name in known]
        return self._row_batch({name: others.column(name) for name in kept}, others.num_rows)

    def _row_batch(self, physical: Mapping[str, Any], rows: int) -> pa.RecordBatch:
        columns = []
        for field in self.schema:
            column = physical.get(field.name)
            if column is None:
                column = pa.nulls(rows, field.type)
            columns.append(column if column.type == field.type else column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _told_apart(ordinals: Any, origins: Any, step: str) -> Any:
    """The first output of a record keeps its ordinal, so that it does not depend on there being others."""
    first = np.flatnonzero(np.concatenate(([True], origins[1:] != origins[:-1])))
    counts = np.diff(np.append(first, len(origins)))
    number = np.arange(len(origins)) - np.repeat(first, counts)
    if not number.any():
        return ordinals
    suffixes = np.where(number > 0, np.char.add(f".{step}-", number.astype(str)), "")
    return pc.binary_join_element_wise(ordinals, pa.array(suffixes.tolist(), ordinals.type), "")
