"""Generated: the text of one Python function that runs a whole tree of per-record steps.

A chain is known when its task starts, so nothing about it is decided per record: between two calls of
users' functions stands a copy, or nothing at all. The text is for one *part* of a chain, the steps that
records reach without becoming an Arrow batch in between:

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

No ``try`` is in it: where a function fails, the number of the line tells whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from flowcore.chains.copiers import copier_of
from flowcore.chains.steps import Copy, Receiver, Step

__all__ = ["Exit", "Part", "generate"]

_MOST_BLOCKS = 12
"""Python allows 20 loops within each other."""
FILENAME = "<flowcore chain>"


@dataclass(frozen=True, slots=True, eq=False)
class Exit:
    """Where records leave a part.

    Attributes:
        sender: The step that emits them, None for the part's own input.
        receiver: The step that takes them as an Arrow batch, None if they leave the chain.
        copy: How they leave.
    """

    sender: Step | None
    receiver: Step | None
    copy: Copy


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Per-record steps, compiled.

    Attributes:
        text: The generated text.
        run: ``run(records, start, exits)``, where for each exit there are two functions, which take a record
            and the number of the record that it came from.
        exits: Where records leave.
        owners: For each line of the text the step whose function it calls; None for no function.
        steps: All steps.
    """

    text: str
    run: Callable[[Iterable[Any], int, Sequence[tuple[Callable[..., Any], Callable[..., Any]]]], None]
    exits: tuple[Exit, ...]
    owners: tuple[Step | None, ...]
    steps: tuple[Step, ...]


def generate(sender: Step | None, schema: Any, receivers: Sequence[Receiver], *, indexed: bool) -> Part:
    """Compile the steps behind an input of records.

    Args:
        sender: Whose output the input is, None for the chain's.
        schema: The input's columns.
        receivers: The steps that read it.
        indexed: Exits are also given the number of the input record.
    """
    writer = _Writer(indexed=indexed)
    return writer.part(sender, schema, receivers)


@dataclass(slots=True)
class _Writer:
    indexed: bool
    lines: list[str] = field(default_factory=list)
    owners: list[Step | None] = field(default_factory=list)
    functions: list[Callable[..., Any]] = field(default_factory=list)
    copiers: list[Callable[[Any], Any]] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    numbers: count[int] = field(default_factory=lambda: count(1))
    deferred: list[tuple[str, str, Step]] = field(default_factory=list)

    def part(self, sender: Step | None, schema: Any, receivers: Sequence[Receiver]) -> Part:
        body = _Writer(indexed=self.indexed)
        body.add(1, "for i, r0 in enumerate(records, start):", None)
        body.emit(2, "r0", sender, schema, receivers)
        inner: list[tuple[str, Step | None]] = []
        # What is nested too deep for Python is a function of its own, defined before it is called.
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
        exec(compile(text, FILENAME, "exec"), scope)  # noqa: S102 - the text holds numbered names and no user's text
        return Part(text, scope["run"], tuple(body.exits), tuple(self.owners), tuple(body.steps))

    def add(self, depth: int, line: str, owner: Step | None) -> None:
        self.lines.append("    " * depth + line)
        self.owners.append(owner)

    def emit(
        self, depth: int, record: str, sender: Step | None, schema: Any, receivers: Sequence[Receiver]
    ) -> None:
        """What happens to a record that a step has emitted."""
        if depth > _MOST_BLOCKS and sender is not None and receivers:
            name = f"part{next(self.numbers)}"
            self.deferred.append((name, record, sender))
            self.add(depth, f"{name}(i, {record})", None)
            return
        leaves = sender is not None and sender.outlet is not None
        # All copies are made before anybody is called who could change the record.
        given = [
            (self.copied(depth, record, receiver.copy, schema, sender), receiver) for receiver in receivers
        ]
        if leaves and sender is not None:
            left = self.copied(depth, record, sender.outlet_copy, schema, sender)
            self.leave(depth, left, Exit(sender, None, sender.outlet_copy))
        for variable, receiver in given:
            self.receive(depth, variable, sender, receiver)
        if not leaves and not receivers:
            self.add(depth, "pass", None)

    def copied(self, depth: int, record: str, copy: Copy, schema: Any, sender: Step | None) -> str:
        if copy == "reuse":
            return record
        variable = f"c{next(self.numbers)}"
        if copy == "shallow":
            self.add(depth, f"{variable} = {record}.copy()", sender)
        else:
            self.add(depth, f"{variable} = d{len(self.copiers)}({record})", sender)
            self.copiers.append(copier_of(schema))
        return variable

    def leave(self, depth: int, record: str, way: Exit) -> None:
        number = len(self.exits)
        self.exits.append(way)
        self.add(depth, f"o{number}({record})" + (f"; x{number}(i)" if self.indexed else ""), None)

    def receive(self, depth: int, record: str, sender: Step | None, receiver: Receiver) -> None:
        step = receiver.step
        if step.kind == "map_batches":
            self.leave(depth, record, Exit(sender, step, receiver.copy))
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
