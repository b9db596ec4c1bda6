"""A worker's run of a chain, over Arrow batches or over the outputs of a keyed process in its step."""

import gc
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa

from flowcore.chains.codegen import CompiledPart, PartExit, compile_part
from flowcore.chains.failures import (
    Locate,
    emit_attributes,
    function_error,
    misfit_error,
    open_functions,
    part_error,
)
from flowcore.chains.records import (
    MisfitError,
    batch_writer,
    conform_batch,
    find_misfits,
    to_records,
)
from flowcore.chains.reuse_check import ReuseCheck
from flowcore.chains.steps import ChainSpec, Receiver, RecordDict, Step
from flowcore.elements import RecordAttributes
from flowcore.errors import FunctionError, StateError
from flowcore.keyed.columns import concat_batches
from flowcore.settings import CheckMode

__all__ = ["ChainOutput", "ChainTask", "DownstreamChain", "OpenChain"]


_Write = Callable[[Sequence[RecordDict]], pa.RecordBatch]
_OBJECTS_BETWEEN_COLLECTIONS = 50_000
_RECORDS_AT_ONCE = 1000
"""Records that are converted at once: few enough for the processor's cache, enough for Arrow."""


@dataclass(frozen=True, slots=True, eq=False)
class ChainOutput:
    """Records that left a chain at one outlet.

    Attributes:
        origins: For each record the number of the input record that it was made from, in ascending order;
            None if that is unknown because a function took whole batches.
    """

    outlet: int
    batch: pa.RecordBatch
    origins: Sequence[int] | None


@dataclass(slots=True)
class _Buffer:
    """Records that left a part at one exit; the last of them are not in a batch yet."""

    records: list[RecordDict] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)

    def drop(self, numbers: Container[int]) -> None:
        """Remove records that were made from some input records and are not in a batch yet."""
        written = len(self.origins) - len(self.records)
        kept = [place for place, number in enumerate(self.origins[written:]) if number not in numbers]
        self.records[:] = [self.records[place] for place in kept]
        self.origins[written:] = [self.origins[written + place] for place in kept]


class ChainTask:
    """A chain in a worker, compiled once for any number of batches.

    Args:
        indexed: Report the input record that each output was made from.
        isolate_failures: If a function fails for a record, set that record aside without outputs and continue
            with the others; needs ``indexed``. A failure that no single record caused is raised.
    """

    def __init__(
        self,
        spec: ChainSpec,
        *,
        indexed: bool = False,
        check: CheckMode = "off",
        isolate_failures: bool = False,
    ) -> None:
        self.spec = spec
        self.indexed = indexed
        self.isolate_failures = isolate_failures
        self.refused: dict[int, FunctionError] = {}
        self._locate: Locate = _no_coordinates
        self._attributes: RecordAttributes | None = None
        self._writers: dict[tuple[Step, bool], _Write] = {}
        self._parts: dict[Step | None, tuple[CompiledPart, ReuseCheck | None]] = {}
        process = spec.head if spec.head.kind == "process" else None
        for sender in (None, *(step for step in spec.steps if step.kind == "map_batches")):
            schema = spec.schema if sender is None else sender.schema
            receivers = self._receivers(sender)
            if sender is not None or process is None:
                receivers = tuple(each for each in receivers if each.step.kind != "map_batches")
            if receivers:
                owner = process if sender is None else sender
                part = compile_part(owner, schema, receivers, indexed=indexed)
                reuse = None if check == "off" else ReuseCheck(part, owner, schema, receivers, check)
                self._parts[sender] = part, reuse
        for each in spec.steps:
            for leaves in (False, True):
                self._writers[each, leaves] = batch_writer(_schema(each, leaves=leaves))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keep users' functions open, and collect garbage less often.

        A batch is tens of thousands of dicts that live until its end; collecting garbage as often as Python
        does by default costs a quarter of the time.

        Raises:
            FunctionError: A function could not be opened or closed.
        """
        before = gc.get_threshold()
        gc.set_threshold(max(before[0], _OBJECTS_BETWEEN_COLLECTIONS) if before[0] else 0, *before[1:])
        try:
            with open_functions(self.spec.steps):
                yield
        finally:
            gc.set_threshold(*before)

    def attributes(self, attributes: RecordAttributes) -> None:
        """Set the attributes of the records that follow; functions that ask for them learn of a change.

        Raises:
            FunctionError: A user's function raised.
        """
        if attributes != self._attributes:
            emit_attributes(self.spec.steps, attributes)
            self._attributes = attributes

    def run(self, batch: pa.RecordBatch, locate: Locate | None = None) -> list[ChainOutput]:
        """Run the chain on a batch of its input; then `refused` has the records set aside, by position.

        Raises:
            FunctionError: A user's function raised, or its result does not match its schema.
            ObjectReuseError: The reuse check found a function that breaks its declared attributes.
        """
        self._locate = locate or _no_coordinates
        self.refused = {}
        outputs: list[ChainOutput] = []
        if batch.num_rows:
            self._feed(None, batch, outputs)
        return outputs

    def run_records(self, records: list[RecordDict], locate: Locate | None = None) -> list[ChainOutput]:
        """Run the chain on records that the process at its head emitted; otherwise like `run`."""
        self._locate = locate or _no_coordinates
        self.refused = {}
        outputs: list[ChainOutput] = []
        starts = range(0, len(records), _RECORDS_AT_ONCE)
        self._run_part(None, ((n, records[n : n + _RECORDS_AT_ONCE]) for n in starts), outputs)
        return outputs

    def _receivers(self, sender: Step | None) -> tuple[Receiver, ...]:
        if sender is not None:
            return sender.receivers
        head = self.spec.head
        return head.receivers if head.kind == "process" else (Receiver(head),)

    def _feed(self, sender: Step | None, batch: pa.RecordBatch, outputs: list[ChainOutput]) -> None:
        """Pass a batch to the steps downstream of a sender."""
        if sender in self._parts:
            starts = range(0, batch.num_rows, _RECORDS_AT_ONCE)
            parts = ((n, to_records(batch.slice(n, _RECORDS_AT_ONCE))) for n in starts)
            self._run_part(sender, parts, outputs)
            if sender is None and self.spec.head.kind == "process":
                return  # that part includes all receivers
        for receiver in self._receivers(sender):
            if receiver.step.kind == "map_batches":
                self._run_batch(receiver.step, batch, outputs)

    def _run_part(
        self, sender: Step | None, parts: Iterable[tuple[int, list[RecordDict]]], outputs: list[ChainOutput]
    ) -> None:
        part, _ = self._parts[sender]
        locate = self._locate if sender is None else _no_coordinates
        buffers: list[_Buffer] = [_Buffer() for _ in part.exits]
        sinks = [(buffer.records.append, buffer.origins.append) for buffer in buffers]
        for first, records in parts:
            if self.isolate_failures and sender is None:
                self._run_isolated(records, first, sinks, buffers)
            else:
                self._call(sender, records, first, sinks, locate)
                self._write(part, buffers, locate)
        for leaving, buffer in zip(part.exits, buffers, strict=True):
            if buffer.batches and leaving.sender is not None:
                batch = _concatenated(buffer.batches, leaving.sender)
                if leaving.receiver is not None:
                    self._run_batch(leaving.receiver, batch, outputs)
                elif leaving.sender.outlet is not None:
                    origins = buffer.origins if self.indexed and sender is None else None
                    outputs.append(ChainOutput(leaving.sender.outlet, batch, origins))

    def _call(
        self, sender: Step | None, records: list[RecordDict], first: int, sinks: Sequence[Any], locate: Locate
    ) -> None:
        part, reuse = self._parts[sender]
        if reuse is not None:
            reuse.locate = locate
            reuse.run(records, first, sinks)
            return
        try:
            part.run(records, first, sinks)
        except Exception as error:
            raise part_error(error, part, locate) from error

    def _run_isolated(
        self, records: list[RecordDict], first: int, sinks: Sequence[Any], buffers: Sequence[_Buffer]
    ) -> None:
        part, _ = self._parts[None]
        start = first
        while start < first + len(records):
            try:
                self._call(None, records[start - first :], start, sinks, self._locate)
                break
            except FunctionError as error:
                if error.number is None:
                    raise
                self._refuse({error.number: error}, buffers)
                start = error.number + 1
        while True:
            try:
                self._write(part, buffers, self._locate)
                break
            except FunctionError:
                errors = {
                    number: error
                    for leaving, buffer in zip(part.exits, buffers, strict=True)
                    for number, error in self._misfits(leaving, buffer)
                }
                if not errors:
                    raise
                self._refuse(errors, buffers)

    def _refuse(self, errors: Mapping[int, FunctionError], buffers: Sequence[_Buffer]) -> None:
        self.refused.update(errors)
        for buffer in buffers:
            buffer.drop(errors)

    def _misfits(self, leaving: PartExit, buffer: _Buffer) -> Iterator[tuple[int, FunctionError]]:
        """The input records from which a record was made that does not match its schema."""
        if leaving.sender is not None:
            written = len(buffer.origins) - len(buffer.records)
            schema = _schema(leaving.sender, leaves=leaving.receiver is None)
            for each in find_misfits(buffer.records, schema):
                number = buffer.origins[written + each.position]
                yield number, misfit_error(leaving.sender, each.what, self._locate(number), number)

    def _write(self, part: CompiledPart, buffers: Sequence[_Buffer], locate: Locate) -> None:
        """Convert all buffered records to batches, or none of them."""
        batches = [self._batch(*each, locate) for each in zip(part.exits, buffers, strict=True)]
        for buffer, batch in zip(buffers, batches, strict=True):
            if batch is not None:
                buffer.batches.append(batch)
                buffer.records.clear()

    def _batch(self, leaving: PartExit, buffer: _Buffer, locate: Locate) -> pa.RecordBatch | None:
        step = leaving.sender
        if not buffer.records or step is None:
            return None
        try:
            return self._writers[step, leaving.receiver is None](buffer.records)
        except MisfitError as error:
            misfit = error.misfit
            origins = buffer.origins[-len(buffer.records) :]
            place = locate(origins[misfit.position]) if origins else None
            raise misfit_error(step, misfit.what, place) from None

    def _run_batch(self, step: Step, batch: pa.RecordBatch, outputs: list[ChainOutput]) -> None:
        try:
            result = step.function(batch)
        except Exception as error:
            raise function_error(step, error, None) from error
        made = conform_batch(step, result)
        if not made.num_rows:
            return
        if step.outlet is not None:
            leaving = made if step.outlet_schema is None else made.select(step.outlet_schema.names)
            outputs.append(ChainOutput(step.outlet, leaving, None))
        self._feed(step, made, outputs)


@dataclass(slots=True, eq=False, kw_only=True)
class OpenChain:
    """A chain whose functions are opened at its first use, and stay open until `close`.

    Attributes:
        check: Which records the reuse check watches.
        isolate_failures: Set records aside for which a function fails.
        indexed: Report the input record that each output was made from.
    """

    spec: ChainSpec
    check: CheckMode = "off"
    isolate_failures: bool = False
    indexed: bool = True
    _task: ChainTask | None = field(default=None, init=False, repr=False)
    _opened: ExitStack = field(default_factory=ExitStack, init=False, repr=False)

    def open(self) -> ChainTask:
        """The compiled chain, with its functions open."""
        if self._task is None:
            task = ChainTask(
                self.spec, indexed=self.indexed, check=self.check, isolate_failures=self.isolate_failures
            )
            self._opened.enter_context(task.running())
            self._task = task
        return self._task

    def close(self) -> None:
        """Close the functions; the next use opens them again."""
        self._task = None
        self._opened.close()


@dataclass(slots=True, eq=False, kw_only=True)
class DownstreamChain(OpenChain):
    """A chain whose head is a keyed process.

    A record that the process emits is passed on as it is, or as the copy that the plan chose. It becomes a
    row only where it leaves the chain.
    """

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        """The columns that leave at each outlet."""
        leaving = [step for step in self.spec.steps if step.outlet is not None]
        return {f"chain {step.outlet}": step.outlet_schema or step.schema for step in leaving}

    @property
    def refused(self) -> Mapping[int, FunctionError]:
        """The records that the last call set aside, by number."""
        return self.open().refused

    def run(
        self,
        inputs: Sequence[Mapping[str, Any]] | pa.RecordBatch,
        locate: Callable[[int], str | None],
        attributes: RecordAttributes,
    ) -> list[tuple[str, pa.RecordBatch, Sequence[int] | None]]:
        """The outputs: name, rows, and for each row the number of its input record, where that is known.

        Raises:
            FunctionError: A function failed, and no single record caused it.
        """
        task = self.open()
        task.attributes(attributes)
        if isinstance(inputs, pa.RecordBatch):
            found = task.run(inputs, locate)
        else:
            found = task.run_records(cast("list[RecordDict]", inputs), locate)
        return [(f"chain {each.outlet}", each.batch, each.origins) for each in found]


def _schema(step: Step, *, leaves: bool) -> pa.Schema:
    return step.outlet_schema or step.schema if leaves else step.schema


def _concatenated(batches: Sequence[pa.RecordBatch], sender: Step) -> pa.RecordBatch:
    try:
        return concat_batches(batches)
    except StateError as error:  # of too many records, or of one that its function made too large
        raise function_error(sender, error, None) from error


def _no_coordinates(_: int) -> None:
    return None
