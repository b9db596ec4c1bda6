"""Operators that record the objects of a chain, and chains of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from flowcore.api.attributes import OperatorAttributes
from flowcore.chains import ChainSpec, ChainTask, Copy, Receiver, RecordDict, Step, StepKind
from flowcore.planner.rules.copies import choose_copy

SCHEMA = pa.schema(
    [("n", pa.int64()), ("tags", pa.list_(pa.string())), ("at", pa.struct([("x", pa.int64())]))]
)
INPUT = pa.RecordBatch.from_pylist(
    [{"n": number, "tags": [f"t{number}"], "at": {"x": number}} for number in range(3)], schema=SCHEMA
)

Tree = tuple["Op", tuple["Tree", ...]]


class Op:
    """An operator that records the objects that it received and emitted."""

    def __init__(
        self, name: str, function: Callable[[Any], Any] = dict, kind: StepKind = "map", **declared: bool
    ) -> None:
        self.name, self.function, self.kind = name, function, kind
        self.attributes = OperatorAttributes(**declared)
        self.received: list[RecordDict] = []
        self.emitted: list[RecordDict] = []

    def __call__(self, record: RecordDict) -> Any:
        """Call the function; keep argument and result, so that no address is reused."""
        self.received.append(record)
        result = self.function(record)
        if self.kind == "flat_map":
            return self._each(result)
        self.emitted.append(record if self.kind == "filter" else result)
        return result

    def _each(self, results: Iterable[RecordDict]) -> Iterable[RecordDict]:
        for result in results:
            self.emitted.append(result)
            yield result


def plain(name: str, function: Callable[[Any], Any] = dict, kind: StepKind = "map") -> Op:
    """An operator like a plain function: it keeps neither input nor output."""
    return Op(name, function, kind, output_value_stored=False, input_record_stored=False)


def rich(name: str, function: Callable[[RecordDict], Any] = dict) -> Op:
    """An operator like a function with state: it may keep its output."""
    return Op(name, function, output_value_stored=True, input_record_stored=False)


def chain(
    tree: Tree, *, everywhere: Copy | None = None, object_reuse: bool = False, spied: bool = True
) -> ChainSpec:
    """The chain of a tree of operators; leaves are outlets, numbered from the left.

    Args:
        tree: The operators.
        everywhere: Copies that are made whatever was declared.
        object_reuse: The setting.
        spied: Operators remember records, which the check would find.
    """
    outlets = iter(range(99))

    def step(op: Op, downstream: tuple[Tree, ...]) -> Step:
        def between(receiver: OperatorAttributes) -> Any:
            return everywhere or choose_copy(op.attributes, receiver, object_reuse=object_reuse).value

        receivers = tuple(
            Receiver(step(other, rest), between(other.attributes)) for other, rest in downstream
        )
        return Step(
            name=op.name, kind=op.kind, function=op if spied else op.function, schema=SCHEMA,
            receivers=receivers,
            outlet=None if downstream else next(outlets),
            outlet_copy=between(OperatorAttributes(input_record_stored=False)),
            stores_output=op.attributes.output_value_stored, stores_input=op.attributes.input_record_stored,
        )  # fmt: skip

    return ChainSpec(SCHEMA, step(*tree))


def line(*ops: Op) -> Tree:
    """Consecutive operators."""
    first, *rest = ops
    return first, (line(*rest),) if rest else ()


def outputs(spec: ChainSpec, batch: pa.RecordBatch = INPUT, **settings: Any) -> list[list[RecordDict]]:
    """The records of each outlet."""
    task = ChainTask(spec, **settings)
    with task.running():
        found = task.run(batch)
    number = 1 + max((output.outlet for output in found), default=-1)
    return [
        [row for output in found if output.outlet == each for row in output.batch.to_pylist()]
        for each in range(number)
    ]
