"""The function: what does a user write to keep state and timers for each key?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["KeyedProcessFunction"]

Record = Mapping[str, Any]


class KeyedProcessFunction:
    """Does something with each record of a key, and with time; a base to inherit from.

    One object serves all keys of a worker. What differs from key to key belongs into states, which are
    declared in `open`, and read and written for the key of the record or timer at hand.
    """

    def open(self, context: Any) -> None:
        """Declare states, get what is needed: called in the worker, before anything else."""

    def process(self, record: Record, context: Any) -> Iterable[Record] | None:
        """Do something with one record; return or yield what to put out."""
        raise NotImplementedError

    def on_timer(self, time_ms: int, context: Any) -> Iterable[Record] | None:
        """A timer of the key is due; return or yield what to put out."""

    def close(self) -> None:
        """Give back what was got: called after the last record."""
