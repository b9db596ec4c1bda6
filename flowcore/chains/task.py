"""A task: one worker runs a chain over the Arrow batches that it is given."""

from __future__ import annotations

import gc
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from flowcore.chains.batches import fitting, joined
from flowcore.chains.failures import Where, failed, failed_in_part, misfit
from flowcore.chains.generated import Exit, Part, generate
from flowcore.chains.lifecycle import opened
from flowcore.chains.records import MisfitError, batch_writer, misfits, records_of
from flowcore.chains.reuse_check import Checked, CheckMode
from flowcore.chains.steps import ChainSpec, Receiver, Record, Step
from flowcore.errors import FunctionError

__all__ = ["ChainTask", "Output"]

_Write = Callable[[Sequence[Record]], pa.RecordBatch]
_OBJECTS_BETWEEN_COLLECTIONS = 50_000
_RECORDS_AT_ONCE = 1000
"""As many records are made of a batch at once: few enough for the processor's cache, enough for Arrow."""


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """What left a chain.

    Attributes:
        outlet: Where.
        batch: The records.
        origins: For each the number of the input record that it was made of, not falling; None where that is
            not known, because a function took whole batches.
    """

    outlet: int
    batch: pa.RecordBatch
    origins: Sequence[int] | None


@dataclass(slots=True)
class _Left:
    """What has left a part by one of its exits."""

    records: list[Record] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)

    def drop(self, numbers: Container[int]) -> None:
        """Take back what was made of some input records, and is in no batch yet."""
        written = len(self.origins) - len(self.records)
        kept = [place for place, number in enumerate(self.origins[written:]) if number not in numbers]
        self.records[:] = [self.records[place] for place in kept]
        self.origins[written:] = [self.origins[written + place] for place in kept]


class ChainTask:
    """A chain in a worker: compiled once, for any number of batches.

    Args:
        spec: What runs.
        indexed: Outputs tell which record they were made of.
        check: Whether functions are watched; see `flowcore.chains.reuse_check`.
        lenient: A record for which a function fails is put aside, with nothing made of it, and the others
            go on; needs ``indexed``. A failure that is no single input record's is raised all the same.
    """

    def __init__(
        self, spec: ChainSpec, *, indexed: bool = False, check: CheckMode = "off", lenient: bool = False
    ) -> None:
        self.spec = spec
        self.indexed = indexed
        self.check = check
        self.lenient = lenient
        self.refused: dict[int, FunctionError] = {}
        self._where: Where = _nowhere
        self._writers: dict[tuple[Step, bool], _Write] = {}
        self._parts: dict[Step | None, tuple[Part, Checked | None]] = {}
        process = spec.head if spec.head.kind == "process" else None
        for sender in (None, *(step for step in spec.steps if step.kind == "map_batches")):
            schema = spec.schema if sender is None else sender.schema
            receivers = self._receivers(sender)
            if sender is not None or process is None:
                receivers = tuple(_per_record(receivers))
            if receivers:
                owner = process if sender is None else sender
                part = generate(owner, schema, receivers, indexed=indexed)
                checked = None if check == "off" else Checked(part, owner, schema, receivers, check)
                self._parts[sender] = part, checked
        for each in spec.steps:
            for leaves in (False, True):
                self._writers[each, leaves] = batch_writer(_schema(each, leaves=leaves))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Users' functions are open, and garbage is collected less often.

        Raises:
            FunctionError: One cannot be opened or closed.
        """
        with _rare_collections(), opened(self.spec.steps):
            yield

    def run(self, batch: pa.RecordBatch, where: Where | None = None) -> list[Output]:
        """All that comes out for a batch.

        Args:
            batch: Input, of the chain's schema.
            where: The coordinates of a record by its place in the batch, for errors.

        Sets:
            refused: The input records that were put aside, by their place in the batch.

        Raises:
            FunctionError: A user's function raised, or emitted what is not of its schema.
            ObjectReuseError: The check found one that breaks its promise.
        """
        self._where = where or _nowhere
        self.refused = {}
        outputs: list[Output] = []
        if batch.num_rows:
            self._feed(None, batch, outputs)
        return outputs

    def run_records(self, records: list[Record], where: Where | None = None) -> list[Output]:
        """All that comes out for records that the process at the head has put out; else as `run`."""
        self._where = where or _nowhere
        self.refused = {}
        outputs: list[Output] = []
        starts = range(0, len(records), _RECORDS_AT_ONCE)
        self._run_part(None, ((n, records[n : n + _RECORDS_AT_ONCE]) for n in starts), outputs)
        return outputs

    def _receivers(self, sender: Step | None) -> tuple[Receiver, ...]:
        if sender is not None:
            return sender.receivers
        head = self.spec.head
        return head.receivers if head.kind == "process" else (Receiver(head),)

    def _feed(self, sender: Step | None, batch: pa.RecordBatch, outputs: list[Output]) -> None:
        """Give a batch to the steps behind a sender."""
        if sender in self._parts:
            starts = range(0, batch.num_rows, _RECORDS_AT_ONCE)
            parts = ((n, records_of(batch.slice(n, _RECORDS_AT_ONCE))) for n in starts)
            self._run_part(sender, parts, outputs)
            if sender is None and self.spec.head.kind == "process":
                return  # that part knows all receivers
        for receiver in self._receivers(sender):
            if receiver.step.kind == "map_batches":
                self._run_batch(receiver.step, batch, outputs)

    def _run_part(
        self, sender: Step | None, parts: Iterable[tuple[int, list[Record]]], outputs: list[Output]
    ) -> None:
        part, _ = self._parts[sender]
        where = self._where if sender is None else _nowhere
        found: list[_Left] = [_Left() for _ in part.exits]
        ways = [(left.records.append, left.origins.append) for left in found]
        for first, records in parts:
            if self.lenient and sender is None:
                self._run_leniently(records, first, ways, found)
            else:
                self._run_records(sender, records, first, ways, where)
                self._write(part, found, where)
        for way, left in zip(part.exits, found, strict=True):
            if left.batches and way.sender is not None:
                made = joined(left.batches)
                if way.receiver is not None:
                    self._run_batch(way.receiver, made, outputs)
                elif way.sender.outlet is not None:
                    known = self.indexed and sender is None
                    outputs.append(Output(way.sender.outlet, made, left.origins if known else None))

    def _run_records(
        self, sender: Step | None, records: list[Record], first: int, ways: Sequence[Any], where: Where
    ) -> None:
        part, checked = self._parts[sender]
        if checked is not None:
            checked.where = where
            checked.run(records, first, ways)
            return
        try:
            part.run(records, first, ways)
        except Exception as error:
            raise failed_in_part(error, part, where) from error

    def _run_leniently(
        self, records: list[Record], first: int, ways: Sequence[Any], found: Sequence[_Left]
    ) -> None:
        part, _ = self._parts[None]
        start = first
        while start < first + len(records):
            try:
                self._run_records(None, records[start - first :], start, ways, self._where)
                break
            except FunctionError as error:
                if error.number is None:
                    raise
                self._refuse({error.number: error}, found)
                start = error.number + 1
        while True:
            try:
                self._write(part, found, self._where)
                break
            except FunctionError:
                errors = {
                    number: error
                    for way, left in zip(part.exits, found, strict=True)
                    for number, error in self._misfits(way, left)
                }
                if not errors:
                    raise
                self._refuse(errors, found)

    def _refuse(self, errors: Mapping[int, FunctionError], found: Sequence[_Left]) -> None:
        self.refused.update(errors)
        for left in found:
            left.drop(errors)

    def _misfits(self, way: Exit, left: _Left) -> Iterator[tuple[int, FunctionError]]:
        """The input records of which something was made that does not fit."""
        if way.sender is not None:
            written = len(left.origins) - len(left.records)
            for each in misfits(left.records, _schema(way.sender, leaves=way.receiver is None)):
                number = left.origins[written + each.position]
                yield number, misfit(way.sender, each.what, self._where(number), number)

    def _write(self, part: Part, found: Sequence[_Left], where: Where) -> None:
        """Make batches of the records that have left; of all, or of none."""
        made = [self._batch(way, left, where) for way, left in zip(part.exits, found, strict=True)]
        for left, batch in zip(found, made, strict=True):
            if batch is not None:
                left.batches.append(batch)
                left.records.clear()

    def _batch(self, way: Exit, left: _Left, where: Where) -> pa.RecordBatch | None:
        step = way.sender
        if not left.records or step is None:
            return None
        try:
            return self._writers[step, way.receiver is None](left.records)
        except MisfitError as error:
            found = error.misfit
            origins = left.origins[-len(left.records) :]
            raise misfit(step, found.what, where(origins[found.position]) if origins else None) from None

    def _run_batch(self, step: Step, batch: pa.RecordBatch, outputs: list[Output]) -> None:
        try:
            result = step.function(batch)
        except Exception as error:
            raise failed(step, error, None) from error
        made = fitting(step, result)
        if not made.num_rows:
            return
        if step.outlet is not None:
            leaving = made if step.outlet_schema is None else made.select(step.outlet_schema.names)
            outputs.append(Output(step.outlet, leaving, None))
        self._feed(step, made, outputs)


def _schema(step: Step, *, leaves: bool) -> pa.Schema:
    return step.outlet_schema or step.schema if leaves else step.schema


def _per_record(receivers: Sequence[Receiver]) -> Iterator[Receiver]:
    return (receiver for receiver in receivers if receiver.step.kind != "map_batches")


@contextmanager
def _rare_collections() -> Iterator[None]:
    """A batch is tens of thousands of dicts that live till its end: looking for garbage costs a quarter."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _OBJECTS_BETWEEN_COLLECTIONS) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _nowhere(_: int) -> None:
    return None
