"""The base class of users' keyed process functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowcore.process.context import ProcessContext
from flowcore.process.opening import OpenContext

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KeyedProcessFunction", "Outputs", "RecordMapping"]

RecordMapping = Mapping[str, Any]
"""A record: values by column."""

Outputs = Iterable[RecordMapping] | None
"""What a function returns or yields: records of its schema, or nothing."""


class KeyedProcessFunction:
    """Processes records and timers of a key; a base class.

    One object serves all keys of a worker. Data of a key belongs into states, which are declared in `open`
    and are read and written for the key of the current record or timer. A function has `process`, or
    `process_batch` where whole columns are faster.
    """

    def open(self, context: OpenContext) -> None:
        """Declare states and open resources; called in the worker before anything else."""

    def process(self, record: RecordMapping, context: ProcessContext) -> Outputs:
        """Process one record."""
        raise NotImplementedError

    def process_batch(
        self, keys: Sequence[Any], batch: pa.RecordBatch, context: ProcessContext
    ) -> Iterable[pa.RecordBatch] | None:
        """Process many records of many keys at once, in order of arrival.

        Set ``context.key`` to access states and timers of a key. `ProcessContext.timestamps_ms` has the rows'
        timestamps. The outputs belong to no single record and have no timestamp.

        Args:
            keys: The key of each row.
            batch: The rows.
            context: As for `process`, without a current key.
        """
        raise NotImplementedError

    def on_timer(self, time_ms: int, context: ProcessContext) -> Outputs:
        """Process a timer of the key that is due."""

    def close(self) -> None:
        """Release resources; called after the last record."""

    @classmethod
    def by_batch(cls) -> bool:
        """Whether the function takes batches."""
        return cls.process_batch is not KeyedProcessFunction.process_batch
