"""The check: does every function keep what it promised of its records?

Runs the same steps as the generated text, one after the other and slowly, and looks at the records around
each call of a user's function. So it knows whose call has changed a record that is not its own any more, or
still another's. It raises at once: from there on no result could be trusted.

It cannot see a part of a record that a function keeps, only the record itself.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from flowcore.chains.copiers import copier_of
from flowcore.chains.failures import Where, failed, failed_in_part, show
from flowcore.chains.fingerprints import changed_column, fingerprint
from flowcore.chains.generated import Part
from flowcore.chains.steps import Copy, Receiver, Step
from flowcore.errors import ObjectReuseError

__all__ = ["CheckMode", "Checked"]

CheckMode = Literal["off", "sample", "full"]
_EVERY = 1000
_PAIR = 2
"""Two records in a row: what a function changes in its next call is seen then."""
_REMEMBERED = 4


@dataclass(slots=True)
class _Guard:
    """A record that several may look at, or its sender still does."""

    record: Any
    before: Any
    sender: Step
    others: str


@dataclass(slots=True)
class Checked:
    """Per-record steps that are checked, all or a sample of their records.

    Attributes:
        part: The same steps, compiled.
        sender: Whose output the input is, None for the chain's.
        schema: The input's columns.
        receivers: The steps that read it.
        mode: ``"sample"`` or ``"full"``.
        where: The coordinates of an input record.
        every: Of a sample, two records in so many are checked.
    """

    part: Part
    sender: Step | None
    schema: Any
    receivers: Sequence[Receiver]
    mode: CheckMode
    where: Where = lambda _: None
    every: int = _EVERY
    _seen: int = 0
    _guards: list[_Guard] = field(default_factory=list)
    _emitted: dict[Step, deque[Any]] = field(default_factory=dict)
    _copiers: dict[int, Callable[[Any], Any]] = field(default_factory=dict)
    _exits: Sequence[tuple[Callable[..., Any], Callable[..., Any]]] = ()
    _number: int = 0
    _record: Any = None

    def run(self, records: Sequence[Any], start: int, exits: Sequence[Any]) -> None:
        """As the compiled part does it."""
        self._exits = exits
        self._guards.clear()  # of a record that failed
        position = 0
        while position < len(records):
            phase = (self._seen + position) % self.every
            if self.mode == "full":
                size = len(records)
                self._checked(records, start)
            elif phase < _PAIR:
                size = _PAIR - phase
                self._checked(records[position : position + size], start + position)
            else:
                size = self.every - phase
                self._unchecked(records[position : position + size], start + position)
            position += size
        self._seen += len(records)

    def _unchecked(self, records: Sequence[Any], start: int) -> None:
        try:
            self.part.run(records, start, self._exits)
        except Exception as error:
            raise failed_in_part(error, self.part, self.where) from error

    def _checked(self, records: Sequence[Any], start: int) -> None:
        for number, record in enumerate(records, start):
            self._number, self._record = number, record
            self._emit(record, self.sender, self.schema, self.receivers, is_input=True)

    def place(self) -> str:
        """The input record that is being looked at."""
        return self.where(self._number) or show(self._record)

    def _emit(
        self, record: Any, sender: Step | None, schema: Any, receivers: Sequence[Receiver], *, is_input: bool
    ) -> None:
        given = [(self._copied(record, receiver.copy, schema, sender), receiver) for receiver in receivers]
        leaves = sender is not None and sender.outlet is not None and not is_input
        if leaves and sender is not None:
            self._leave(sender, None, self._copied(record, sender.outlet_copy, schema, sender))
        sharing = [receiver.step.name for receiver in receivers if receiver.copy != "deep"]
        sharing += ["the output"] if leaves and sender is not None and sender.outlet_copy != "deep" else []
        guarded = sender is not None and sharing and (len(sharing) > 1 or sender.stores_output)
        if guarded and sender is not None:
            stored = [sender.name] if sender.stores_output else []
            others = " and ".join(map(repr, [*stored, *sharing]))
            self._guards.append(_Guard(record, fingerprint(record), sender, others))
        for each, receiver in given:
            self._receive(each, sender, receiver)
        if guarded:
            self._guards.pop()

    def _copied(self, record: Any, copy: Copy, schema: Any, sender: Step | None) -> Any:
        if copy == "reuse":
            return record
        try:
            if copy == "shallow":
                return record.copy()
            if id(schema) not in self._copiers:
                self._copiers[id(schema)] = copier_of(schema)
            return self._copiers[id(schema)](record)
        except Exception as error:
            raise failed(sender, error, self.place(), number=self._number) from error

    def _leave(self, sender: Step | None, receiver: Step | None, record: Any) -> None:
        for (take, count), way in zip(self._exits, self.part.exits, strict=True):
            if way.sender is sender and way.receiver is receiver:
                take(record)
                count(self._number)

    def _receive(self, record: Any, sender: Step | None, receiver: Receiver) -> None:
        step = receiver.step
        if step.kind == "map_batches":
            self._leave(sender, step, record)
            return
        # Of a record that nobody else has, its first owner may do what it likes.
        lent = sender is not None and receiver.copy == "reuse" and not step.stores_input
        watched = _Watched(self, step, sender, record if lent else None)
        references = sys.getrefcount(record)
        with watched:
            result = step.function(record)
        if lent and step.kind != "flat_map" and _more(record, references + _inside(result, record)):
            _kept(step, sender)
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
                    _kept(step, sender)

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
        self._emit(record, step, step.schema, step.receivers, is_input=False)
        if not step.stores_output:
            self._emitted.setdefault(step, deque(maxlen=_REMEMBERED)).append(record)


class _Watched:
    """Around each piece of a user's code: the records that it must leave alone."""

    def __init__(self, check: Checked, step: Step, sender: Step | None, lent: Any) -> None:
        self.check = check
        self.step = step
        self.sender = sender
        self.lent = lent
        self.before: Any = None
        self.emitted: list[tuple[Any, Any]] = []

    def __enter__(self) -> None:
        check = self.check
        if self.lent is not None:
            self.before = fingerprint(self.lent)
        self.emitted = [
            (record, fingerprint(record))
            for record in check._emitted.get(self.step, ())  # noqa: SLF001 - of this module
            if record is not self.lent
        ]
        for guard in check._guards:  # noqa: SLF001
            guard.before = fingerprint(guard.record)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        check, step = self.check, self.step
        if isinstance(error, Exception):
            raise failed(step, error, check.place(), number=check._number) from error  # noqa: SLF001
        if error is not None:
            return
        for record, before in self.emitted:
            after = fingerprint(record)
            if after != before:
                _changed_later(step, changed_column(before, after))
        for guard in check._guards:  # noqa: SLF001
            after = fingerprint(guard.record)
            if after != guard.before:
                _changed_shared(step, guard, changed_column(guard.before, after))
        if self.lent is not None:
            after = fingerprint(self.lent)
            if after != self.before:
                _changed_lent(step, self.sender, changed_column(self.before, after))
        self.emitted = []


def _more(record: Any, references: int) -> bool:
    """Whether more than so many refer to a record; one more is this function's own."""
    if sys.getrefcount(record) <= references + 1:
        return False
    gc.collect()  # a function of the user's that calls itself holds its arguments until then
    return sys.getrefcount(record) > references + 1


def _inside(result: Any, record: Any) -> int:
    """How often a result refers to a record."""
    if result is record:
        return 1
    if type(result) is dict:
        return sum(_inside(each, record) for each in result.values())
    if type(result) is list or type(result) is tuple:
        return sum(_inside(each, record) for each in result)
    return 0


def _column(column: str | None) -> str:
    return f" (column {column!r})" if column is not None else ""


def _changed_later(step: Step, column: str | None) -> NoReturn:
    msg = (
        f"operator {step.name!r}: its function changed a record after it had put it out{_column(column)}, "
        "though it declares is_output_value_stored=False: whoever has the record sees the change; make a new "
        "record each time, or declare is_output_value_stored=True"
    )
    raise ObjectReuseError(msg)


def _changed_shared(step: Step, guard: _Guard, column: str | None) -> NoReturn:
    sender = guard.sender.name
    if guard.sender.stores_output:
        cause = f"pipeline.object-reuse is true, though {sender!r} declares is_output_value_stored=True"
        remedy = "or set pipeline.object-reuse=false"
    else:
        cause = f"{step.name!r} has input_record_stored={step.stores_input}, {sender!r} stores no output"
        remedy = f"or declare is_output_value_stored=True on {sender!r}, so that each gets a deep copy"
    msg = (
        f"operator {step.name!r}: its function changes a record that {sender!r} put out{_column(column)} and "
        f"that {guard.others} share ({cause}): the others see the change; make a new record, {remedy}"
    )
    raise ObjectReuseError(msg)


def _changed_lent(step: Step, sender: Step | None, column: str | None) -> NoReturn:
    source = sender.name if sender is not None else "the input"
    msg = (
        f"operator {step.name!r}: its function changes the record that it was given{_column(column)}, the "
        f"very object of {source!r}, though it declares input_record_stored=False: whoever else has the "
        "record would see the change; make a new record, or declare input_record_stored=True"
    )
    raise ObjectReuseError(msg)


def _kept(step: Step, sender: Step | None) -> NoReturn:
    source = sender.name if sender is not None else "the input"
    msg = (
        f"operator {step.name!r}: its function keeps the record that it was given, the very object of "
        f"{source!r}, though it declares input_record_stored=False: it would change when others change it; "
        "keep a copy, or declare input_record_stored=True"
    )
    raise ObjectReuseError(msg)
