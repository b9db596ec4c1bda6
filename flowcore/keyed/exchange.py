"""Run one step of one key group: all operators with state of the same depth.

The operators share the shuffle, the store and the worker. Each has its own records, watermark and state. Rows
that none of them processes pass the exchange.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flowcore.keyed.control import decode_control
from flowcore.keyed.manifest import StateManifest
from flowcore.keyed.packed import EVERY, Packed, PackedKind, sort_packed
from flowcore.keyed.runtime import Runtime, StepResult
from flowcore.keyed.state_cache import StateCache
from flowcore.keyed.store import GroupStore, OperatorStore, read_manifests, write_manifests

__all__ = ["Exchange", "ExchangeResult"]

_OWN = (PackedKind.ROWS, PackedKind.ROWS_WITH_PLACES, PackedKind.MARKER)


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """The result of a step.

    Attributes:
        steps: The results of the operators that had something to do, with the number of the operator.
        passing: Rows that no operator processed, packed as they arrived.
        wake_before_ms: The processing time of the next step without input, as it was before this step.
        wake_ms: The same after the step; None if no such step is necessary.
    """

    steps: Sequence[tuple[int, StepResult]]
    passing: Sequence[bytes]
    wake_before_ms: int | None
    wake_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """All operators with state of one depth; sent to the workers.

    Attributes:
        query: Distinguishes it from the exchanges of other queries in a worker.
        runtimes: The operators, by number.
    """

    query: str
    runtimes: tuple[Runtime, ...]

    def step(
        self,
        group: int,
        items: Iterable[Packed],
        processing_time_ms: int,
        store: GroupStore,
        cache: StateCache,
    ) -> ExchangeResult:
        """Process the input of a key group.

        State of an operator that is not in the exchange any more is removed.

        Args:
            items: Its input; empty if only processing time made the step necessary.
            processing_time_ms: The same for all groups of a batch, also when the batch is repeated.

        Raises:
            StateError: Another version wrote the state of an operator, or it has another layout.
        """
        ordered = sort_packed(items)
        control = [item for item in ordered if item.kind == PackedKind.CONTROL]
        decoded = decode_control(tuple(sorted((item.channel, item.payload) for item in control)))
        manifests = read_manifests(store.manifests())
        before_ms = _wake_ms(manifests.values())
        for name in manifests.keys() - {runtime.name for runtime in self.runtimes}:
            gone = StateManifest.read(manifests.pop(name))
            for written in (*gone.snapshot, *gone.deltas):
                store.remove_segment(name, written.segment)
        steps = []
        for number, runtime in enumerate(self.runtimes):
            mine = [item for item in ordered if item.kind in _OWN and item.operator in (number, EVERY)]
            due_ms = manifests.get(runtime.name, {}).get("wake_ms")
            if mine or decoded.of(runtime.sources) or (due_ms is not None and due_ms <= processing_time_ms):
                own = OperatorStore(store, runtime.name, manifests)
                steps.append((number, runtime.step(group, [*control, *mine], processing_time_ms, own, cache)))
        store.put_manifests(write_manifests(manifests))
        passing = [item.payload for item in ordered if item.kind == PackedKind.PASSING]
        return ExchangeResult(steps, passing, before_ms, _wake_ms(manifests.values()))

    def close(self) -> None:
        """Close the resources of a task, which a later task may open again."""
        for runtime in self.runtimes:
            runtime.operator.close()


def _wake_ms(manifests: Iterable[Any]) -> int | None:
    return min((each["wake_ms"] for each in manifests if each["wake_ms"] is not None), default=None)
