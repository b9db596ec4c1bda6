"""The decoded states that a worker process keeps between steps, within a budget of memory."""

from __future__ import annotations

from flowcore.keyed.manifest import StatePosition
from flowcore.keyed.operator import KeyGroup

__all__ = ["StateCache"]


class StateCache:
    """By query and key group: the position of a state, and the state.

    Each batch uses most key groups, one after the other. If they do not all fit, the least recently used
    state is the one that is needed next. So a state is evicted only for a state that was used again since.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], tuple[StatePosition, KeyGroup, int]] = {}
        """In the order of their last use."""
        self._used_at: dict[tuple[str, int], int] = {}
        """The last use of each state, also of those that are not kept."""
        self._uses = 0
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
        """Keep a state if it fits, and evict states that were not used since its last use.

        Args:
            max_bytes: The budget of the worker; None for no budget.
        """
        key = query, group
        before = self._used_at.get(key, 0)
        self._uses += 1
        self._used_at[key] = self._uses
        self._kept[key] = *state, size_bytes
        self.size_bytes += size_bytes
        while max_bytes is not None and self.size_bytes > max_bytes:
            oldest = next(iter(self._kept))
            self.pop(*(oldest if self._used_at[oldest] < before else key))
