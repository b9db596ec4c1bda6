"""The decoded states that a worker process keeps between steps, within a budget of memory."""

from __future__ import annotations

from flowcore.keyed.manifest import StatePosition
from flowcore.keyed.operator import KeyGroup

__all__ = ["StateCache"]


class StateCache:
    """By query and key group: the position of a state, and the state; the least recently used leave first."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], tuple[StatePosition, KeyGroup, int]] = {}
        self.size_bytes = 0
        """The estimated size of all states."""

    def pop(self, query: str, group: int) -> tuple[StatePosition, KeyGroup] | None:
        """Remove a state; None if there is none."""
        found = self._kept.pop((query, group), None)
        if found is None:
            return None
        position, state, size_bytes = found
        self.size_bytes -= size_bytes
        return position, state

    def put(
        self,
        query: str,
        group: int,
        state: tuple[StatePosition, KeyGroup],
        *,
        size_bytes: int,
        max_bytes: int | None,
    ) -> None:
        """Keep a state, and evict others until all of them fit.

        Args:
            max_bytes: The budget of the worker. A state that is larger is not kept. None for no budget.
        """
        self._kept[query, group] = *state, size_bytes
        self.size_bytes += size_bytes
        while max_bytes is not None and self.size_bytes > max_bytes:
            self.pop(*next(iter(self._kept)))
