"""The function: what does a user write to keep state and timers for each key?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowcore.process.context import ProcessContext
from flowcore.process.opening import OpenContext

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KeyedProcessFunction", "Outputs", "Record"]

Record = Mapping[str, Any]
"""From column to value."""

Outputs = Iterable[Record] | None
"""What a function returns or yields: records of its schema, or nothing."""


class KeyedProcessFunction:
    """Does something with each record of a key, and with time; a base to inherit from.

    One object serves all keys of a worker. What differs from key to key belongs into states, which are
    declared in `open`, and read and written for the key of the record or timer at hand. A function has
    `process`, or `process_batch` where whole columns are faster.
    """

    def open(self, context: OpenContext) -> None:
        """Declare states, and get what is needed: called in the worker, before anything else."""

    def process(self, record: Record, context: ProcessContext) -> Outputs:
        """Do something with one record."""
        raise NotImplementedError

    def process_batch(
        self, keys: Sequence[Any], batch: pa.RecordBatch, context: ProcessContext
    ) -> Iterable[pa.RecordBatch] | None:
        """Do something with many records of many keys at once, in order of arrival.

        Set ``context.key`` to reach states and timers of a key; `ProcessContext.timestamps_ms` has the rows'
        timestamps. What is returned was made of no single record and has no timestamp.

        Args:
            keys: The key of each row.
            batch: The rows.
            context: As for `process`, with no key selected.
        """
        raise NotImplementedError

    def on_timer(self, time_ms: int, context: ProcessContext) -> Outputs:
        """A timer of the key is due."""

    def close(self) -> None:
        """Give back what was got: called after the last record."""

    @classmethod
    def by_batch(cls) -> bool:
        """Whether it takes batches."""
        return cls.process_batch is not KeyedProcessFunction.process_batch
