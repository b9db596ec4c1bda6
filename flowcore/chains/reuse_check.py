"""The reuse check: whether each function treats its records as its operator attributes declare.

It runs the same steps as the generated function, slowly, and compares records before and after each call of a
user's function. So it detects which function changed a record after emitting it, or a record that others
share. It raises at once, since no later result could be trusted.

It detects a function that keeps a record, but not one that keeps a part of a record.
"""

from __future__ import annotations

import gc
import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from flowcore.chains.codegen import CompiledPart
from flowcore.chains.copiers import make_copier
from flowcore.chains.failures import Locate, function_error, part_error, show_value
from flowcore.chains.steps import Copy, Receiver, Step
from flowcore.errors import ObjectReuseError
from flowcore.settings import CheckMode

__all__ = ["ReuseCheck", "changed_column", "freeze"]

_EVERY = 1000
_PAIR = 2
"""Two consecutive records, so that a change in the function's next call is detected."""
_REMEMBERED = 4


@dataclass(slots=True)
class _Guard:
    """A record that several steps share, or that its sender may still use."""

    record: Any
    before: Any
    sender: Step
    others: str


@dataclass(slots=True)
class ReuseCheck:
    """Runs per-record steps, and checks all records or a sample of them.

    Attributes:
        sender: The step whose output is the input, None for the chain's input.
        every: A sample is two records out of this many.
    """

    part: CompiledPart
    sender: Step | None
    schema: Any
    receivers: Sequence[Receiver]
    mode: CheckMode
    locate: Locate = lambda _: None
    every: int = _EVERY
    _seen: int = 0
    _guards: list[_Guard] = field(default_factory=list)
    _emitted: dict[Step, deque[Any]] = field(default_factory=dict)
    _copiers: dict[int, Callable[[Any], Any]] = field(default_factory=dict)
    _exits: Sequence[tuple[Callable[..., Any], Callable[..., Any]]] = ()
    _number: int = 0
    _record: Any = None

    def run(self, records: Sequence[Any], start: int, exits: Sequence[Any]) -> None:
        """Run the steps, as `CompiledPart.run` does."""
        self._exits = exits
        self._guards.clear()  # left over from a record that failed
        position = 0
        while position < len(records):
            phase = (self._seen + position) % self.every
            if self.mode == "full":
                size = len(records)
                self._run_checked(records, start)
            elif phase < _PAIR:
                size = _PAIR - phase
                self._run_checked(records[position : position + size], start + position)
            else:
                size = self.every - phase
                self._run_unchecked(records[position : position + size], start + position)
            position += size
        self._seen += len(records)

    def _run_unchecked(self, records: Sequence[Any], start: int) -> None:
        try:
            self.part.run(records, start, self._exits)
        except Exception as error:
            raise part_error(error, self.part, self.locate) from error

    def _run_checked(self, records: Sequence[Any], start: int) -> None:
        for number, record in enumerate(records, start):
            self._number, self._record = number, record
            self._emit(record, self.sender, self.schema, self.receivers)

    def place(self) -> str:
        """The current input record, for errors."""
        return self.locate(self._number) or show_value(self._record)

    def _emit(self, record: Any, sender: Step | None, schema: Any, receivers: Sequence[Receiver]) -> None:
        inputs = [(self._copy(record, receiver.copy, schema, sender), receiver) for receiver in receivers]
        leaves = sender is not None and sender.leaves_as_records
        if leaves and sender is not None:
            self._leave(sender, None, self._copy(record, sender.outlet_copy, schema, sender))
        sharing = [receiver.step.name for receiver in receivers if receiver.copy != "deep"]
        sharing += ["the output"] if leaves and sender is not None and sender.outlet_copy != "deep" else []
        guarded = sender is not None and sharing and (len(sharing) > 1 or sender.stores_output)
        if guarded and sender is not None:
            stored = [sender.name] if sender.stores_output else []
            others = " and ".join(map(repr, [*stored, *sharing]))
            self._guards.append(_Guard(record, freeze(record), sender, others))
        for each, receiver in inputs:
            self._receive(each, sender, receiver)
        if guarded:
            self._guards.pop()

    def _copy(self, record: Any, copy: Copy, schema: Any, sender: Step | None) -> Any:
        if copy == "reuse":
            return record
        try:
            if copy == "shallow":
                return record.copy()
            if id(schema) not in self._copiers:
                self._copiers[id(schema)] = make_copier(schema)
            return self._copiers[id(schema)](record)
        except Exception as error:
            raise function_error(sender, error, self.place(), number=self._number) from error

    def _leave(self, sender: Step | None, receiver: Step | None, record: Any) -> None:
        for (take, count), leaving in zip(self._exits, self.part.exits, strict=True):
            if leaving.sender is sender and leaving.receiver is receiver:
                take(record)
                count(self._number)

    def _receive(self, record: Any, sender: Step | None, receiver: Receiver) -> None:
        step = receiver.step
        if step.kind == "map_batches":
            self._leave(sender, step, record)
            return
        # Nothing else refers to an input record, so its first step may do anything with it.
        lent = sender is not None and receiver.copy == "reuse" and not step.stores_input
        watched = _Watched(self, step, sender, record if lent else None)
        references = sys.getrefcount(record)
        with watched:
            result = step.function(record)
        if lent and step.kind != "flat_map" and _more(record, references + _inside(result, record)):
            _raise_kept(step, sender)
        match step.kind:
            case "map":
                self._pass_on(step, result)
            case "filter":
                if result:
                    del result
                    self._pass_on(step, record)
            case "flat_map":
                handed_on = False
                for emitted in self._each(watched, result):
                    handed_on = handed_on or _inside(emitted, record) > 0
                    self._pass_on(step, emitted)
                    del emitted
                del result
                if lent and not handed_on and _more(record, references):
                    _raise_kept(step, sender)

    def _each(self, watched: _Watched, results: Any) -> Iterator[Any]:
        with watched:
            iterator = iter(results)
        while True:
            with watched:
                emitted = next(iterator, self)
            if emitted is self:
                return
            yield emitted

    def _pass_on(self, step: Step, record: Any) -> None:
        self._emit(record, step, step.schema, step.receivers)
        if not step.stores_output:
            self._emitted.setdefault(step, deque(maxlen=_REMEMBERED)).append(record)


class _Watched:
    """Checks, around a call of a user's code, the records that it must not change."""

    def __init__(self, check: ReuseCheck, step: Step, sender: Step | None, lent: Any) -> None:
        self.check = check
        self.step = step
        self.sender = sender
        self.lent = lent
        self.before: Any = None
        self.emitted: list[tuple[Any, Any]] = []

    def __enter__(self) -> None:
        check = self.check
        if self.lent is not None:
            self.before = freeze(self.lent)
        self.emitted = [
            (record, freeze(record))
            for record in check._emitted.get(self.step, ())  # noqa: SLF001 - defined in this module
            if record is not self.lent
        ]
        for guard in check._guards:  # noqa: SLF001
            guard.before = freeze(guard.record)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        check, step = self.check, self.step
        if isinstance(error, Exception):
            raise function_error(step, error, check.place(), number=check._number) from error  # noqa: SLF001
        if error is not None:
            return
        for record, before in self.emitted:
            if (after := freeze(record)) != before:
                _raise_changed_later(step, changed_column(before, after))
        for guard in check._guards:  # noqa: SLF001
            if (after := freeze(guard.record)) != guard.before:
                _raise_changed_shared(step, guard, changed_column(guard.before, after))
        if self.lent is not None and (after := freeze(self.lent)) != self.before:
            _raise_changed_lent(step, self.sender, changed_column(self.before, after))
        self.emitted = []


def _more(record: Any, references: int) -> bool:
    """Whether a record has more than this many references, besides the one of this function."""
    if sys.getrefcount(record) <= references + 1:
        return False
    gc.collect()  # a recursive function of the user holds its arguments until then
    return sys.getrefcount(record) > references + 1


def _inside(result: Any, record: Any) -> int:
    """The number of references from a result to a record."""
    if result is record:
        return 1
    if type(result) is dict:
        return sum(_inside(each, record) for each in result.values())
    if type(result) is list or type(result) is tuple:
        return sum(_inside(each, record) for each in result)
    return 0


def _column(column: str | None) -> str:
    return f" (column {column!r})" if column is not None else ""


def _raise_changed_later(step: Step, column: str | None) -> NoReturn:
    msg = (
        f"operator {step.name!r}: its function changed a record after it had emitted it{_column(column)}, "
        "though it declares is_output_value_stored=False: every holder of the record sees the change; make a "
        "new record each time, or declare is_output_value_stored=True"
    )
    raise ObjectReuseError(msg)


def _raise_changed_shared(step: Step, guard: _Guard, column: str | None) -> NoReturn:
    sender = guard.sender.name
    if guard.sender.stores_output:
        cause = f"pipeline.object-reuse is true, though {sender!r} declares is_output_value_stored=True"
        remedy = "or set pipeline.object-reuse=false"
    else:
        cause = f"{step.name!r} has input_record_stored={step.stores_input}, {sender!r} stores no output"
        remedy = f"or declare is_output_value_stored=True on {sender!r}, so that each gets a deep copy"
    msg = (
        f"operator {step.name!r}: its function changes a record that {sender!r} emitted{_column(column)} and "
        f"that {guard.others} share ({cause}): the others see the change; make a new record, {remedy}"
    )
    raise ObjectReuseError(msg)


def _raise_changed_lent(step: Step, sender: Step | None, column: str | None) -> NoReturn:
    source = sender.name if sender is not None else "the input"
    msg = (
        f"operator {step.name!r}: its function changes the record that it received{_column(column)}, "
        f"the same object that {source!r} has, though it declares input_record_stored=False: every other "
        "holder of the record would see the change; make a new record, or declare input_record_stored=True"
    )
    raise ObjectReuseError(msg)


def _raise_kept(step: Step, sender: Step | None) -> NoReturn:
    source = sender.name if sender is not None else "the input"
    msg = (
        f"operator {step.name!r}: its function keeps the record that it received, the same object that "
        f"{source!r} has, though it declares input_record_stored=False: it would change when others change "
        "it; keep a copy, or declare input_record_stored=True"
    )
    raise ObjectReuseError(msg)


def freeze(value: Any) -> Any:
    """An immutable image of a value, to be compared with ``==``.

    A NaN is equal to itself, and 1 equals neither True nor 1.0.

    >>> record = {"tags": ["a"]}
    >>> before = freeze(record)
    >>> record["tags"].append("b")
    >>> before == freeze(record), changed_column(before, freeze(record))
    (False, 'tags')
    """
    kind = type(value)
    if kind is dict:
        return (kind, tuple((key, freeze(each)) for key, each in value.items()))
    if kind is list or kind is tuple:
        return (kind, tuple(map(freeze, value)))
    if kind is float or kind is complex:
        return (kind, repr(value))
    try:
        hash(value)
    except TypeError:
        return (kind, pickle.dumps(value, 5))
    return (kind, value)


def changed_column(before: Any, after: Any) -> str | None:
    """The first column in which two images of a record differ, None if they are not of records."""
    if before[0] is not dict or after[0] is not dict:
        return None
    old, new = dict(before[1]), dict(after[1])
    return next((str(key) for key in {**old, **new} if old.get(key) != new.get(key)), None)
