"""A key group through deltas, snapshots and restarts, for properties of operators."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flowcore.keyed.manifest import StateManifest
from flowcore.keyed.operator import KeyGroup
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.store import OperatorStore

__all__ = ["StoredGroup", "read_state"]


def read_state(runtime: Runtime, store: OperatorStore) -> tuple[StateManifest, KeyGroup]:
    """Read the state of a key group as a worker does that has nothing in memory."""
    manifest = runtime._manifest(store)
    return manifest, runtime._state(manifest, store, None)


@dataclass
class StoredGroup:
    """A key group, and what a store has of it.

    Attributes:
        config: The operator that opens it.
        former: The group of another worker, and how many pieces it has applied.
    """

    config: Any
    group: Any = field(init=False)
    header: Any = None
    pieces: list[bytes] = field(default_factory=list)
    former: tuple[Any, int] | None = None

    def __post_init__(self) -> None:
        self.group = self.config.open()

    def store(self, how: str) -> None:
        """Store the changes, as a delta or snapshot; then another worker continues if ``how`` says so.

        A former worker reads its last piece again, which must change nothing.
        """
        delta = self.group.delta()
        self.pieces += [] if delta is None else [delta]
        if how == "snapshot":
            self.pieces, self.former = [*self.group.snapshot()], None
        self.header = self.group.header()
        if how == "restart":
            self.former = self.group, len(self.pieces)
            self.group = self.config.open()
            self.group.restore(self.header, iter(self.pieces))
        elif how == "former worker" and self.former is not None:
            self.group, applied = self.former
            self.group.restore(self.header, iter(self.pieces[max(applied - 1, 0) :]))
            self.former = None
