"""Generate one Python function that runs a whole tree of per-record steps.

A chain is known when its task starts, so nothing is decided per record: between two calls of users' functions
is a copy, or nothing. The text covers one *part* of a chain, the steps that records reach without becoming an
Arrow batch in between:

    def run(records, start, f, d, o):
        f0, f1, = f
        d0, = d
        (o0, x0), = o
        for i, r0 in enumerate(records, start):
            r1 = f0(r0)
            if f1(r1):
                c2 = d0(r1)
                ...
                o0(r1); x0(i)

It contains no ``try``: if a function fails, the line number in the traceback identifies the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from flowcore.chains.copiers import make_copier
from flowcore.chains.steps import Copy, Receiver, Step

__all__ = ["FILENAME", "CompiledPart", "PartExit", "compile_part"]

_MOST_BLOCKS = 12
"""Python allows 20 nested loops."""
FILENAME = "<flowcore chain>"


@dataclass(frozen=True, slots=True, eq=False)
class PartExit:
    """A place where records leave a part.

    Attributes:
        sender: The step that emits the records, None for the part's own input.
        receiver: The step that takes them as an Arrow batch, None if they leave the chain.
    """

    sender: Step | None
    receiver: Step | None
    copy: Copy


@dataclass(frozen=True, slots=True, eq=False)
class CompiledPart:
    """Per-record steps, compiled.

    Attributes:
        run: ``run(records, start, exits)``. Each exit is two functions: one takes a record, the other the
            number of the input record that it was made from.
        exits: The exits, in the order that `run` expects.
        owners: For each line of the text, the step whose function it calls, or None.
    """

    text: str
    run: Callable[[Iterable[Any], int, Sequence[tuple[Callable[..., Any], Callable[..., Any]]]], None]
    exits: tuple[PartExit, ...]
    owners: tuple[Step | None, ...]
    steps: tuple[Step, ...]


def compile_part(
    sender: Step | None, schema: Any, receivers: Sequence[Receiver], *, indexed: bool
) -> CompiledPart:
    """Compile the steps downstream of an input of records.

    Args:
        sender: The step whose output is the input, None for the chain's input.
        indexed: Pass the number of the input record to the exits.
    """
    return _Writer(indexed=indexed).compile(sender, schema, receivers)


@dataclass(slots=True)
class _Writer:
    indexed: bool
    lines: list[str] = field(default_factory=list)
    owners: list[Step | None] = field(default_factory=list)
    functions: list[Callable[..., Any]] = field(default_factory=list)
    copiers: list[Callable[[Any], Any]] = field(default_factory=list)
    exits: list[PartExit] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    numbers: count[int] = field(default_factory=lambda: count(1))
    deferred: list[tuple[str, str, Step]] = field(default_factory=list)

    def compile(self, sender: Step | None, schema: Any, receivers: Sequence[Receiver]) -> CompiledPart:
        body = _Writer(indexed=self.indexed)
        body.add(1, "for i, r0 in enumerate(records, start):", None)
        body.emit(2, "r0", sender, schema, receivers)
        inner: list[tuple[str, Step | None]] = []
        # Steps that are nested too deep for Python become a function, defined before its call.
        main = list(zip(body.lines, body.owners, strict=True))
        while body.deferred:
            name, record, step = body.deferred.pop()
            body.lines, body.owners = [], []
            body.add(1, f"def {name}(i, {record}):", None)
            body.emit(2, record, step, step.schema, step.receivers)
            inner += zip(body.lines, body.owners, strict=True)
        self.add(0, "def run(records, start, exits):", None)
        for letter, many in (("f", body.functions), ("d", body.copiers)):
            if many:
                names = "".join(f"{letter}{number}, " for number in range(len(many)))
                self.add(1, f"{names}= {letter}", None)
        for number in range(len(body.exits)):
            self.add(1, f"o{number}, x{number} = exits[{number}]", None)
        for line, owner in (*inner, *main):
            self.add(0, line, owner)
        text = "\n".join(self.lines) + "\n"
        scope: dict[str, Any] = {"f": tuple(body.functions), "d": tuple(body.copiers)}
        exec(compile(text, FILENAME, "exec"), scope)  # noqa: S102 - the text contains only generated names
        return CompiledPart(text, scope["run"], tuple(body.exits), tuple(self.owners), tuple(body.steps))

    def add(self, depth: int, line: str, owner: Step | None) -> None:
        self.lines.append("    " * depth + line)
        self.owners.append(owner)

    def emit(
        self, depth: int, record: str, sender: Step | None, schema: Any, receivers: Sequence[Receiver]
    ) -> None:
        """Write what happens to a record that a step emits."""
        if depth > _MOST_BLOCKS and sender is not None and receivers:
            name = f"part{next(self.numbers)}"
            self.deferred.append((name, record, sender))
            self.add(depth, f"{name}(i, {record})", None)
            return
        leaves = sender is not None and sender.leaves_as_records
        # All copies are made before a function is called that could change the record.
        inputs = [
            (self.add_copy(depth, record, receiver.copy, schema, sender), receiver) for receiver in receivers
        ]
        if leaves and sender is not None:
            left = self.add_copy(depth, record, sender.outlet_copy, schema, sender)
            self.add_exit(depth, left, PartExit(sender, None, sender.outlet_copy))
        for variable, receiver in inputs:
            self.add_call(depth, variable, sender, receiver)
        if not leaves and not receivers:
            self.add(depth, "pass", None)

    def add_copy(self, depth: int, record: str, copy: Copy, schema: Any, sender: Step | None) -> str:
        if copy == "reuse":
            return record
        variable = f"c{next(self.numbers)}"
        if copy == "shallow":
            self.add(depth, f"{variable} = {record}.copy()", sender)
        else:
            self.add(depth, f"{variable} = d{len(self.copiers)}({record})", sender)
            self.copiers.append(make_copier(schema))
        return variable

    def add_exit(self, depth: int, record: str, leaving: PartExit) -> None:
        number = len(self.exits)
        self.exits.append(leaving)
        self.add(depth, f"o{number}({record})" + (f"; x{number}(i)" if self.indexed else ""), None)

    def add_call(self, depth: int, record: str, sender: Step | None, receiver: Receiver) -> None:
        step = receiver.step
        if step.kind == "map_batches":
            self.add_exit(depth, record, PartExit(sender, step, receiver.copy))
            return
        function = f"f{len(self.functions)}"
        self.functions.append(step.function)
        self.steps.append(step)
        emitted = record if step.kind == "filter" else f"r{next(self.numbers)}"
        match step.kind:
            case "map":
                self.add(depth, f"{emitted} = {function}({record})", step)
            case "filter":
                self.add(depth, f"if {function}({record}):", step)
            case "flat_map":
                self.add(depth, f"for {emitted} in {function}({record}):", step)
        inner = depth if step.kind == "map" else depth + 1
        self.emit(inner, emitted, step, step.schema, step.receivers)
