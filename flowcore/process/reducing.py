"""The process function of `Stream.reduce`: one record for each key, into which new ones are folded."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from flowcore.process.function import KeyedProcessFunction, ProcessContext, RecordMapping
from flowcore.process.opening import OpenContext

__all__ = ["ReduceFunction", "ReducingProcess"]

ReduceFunction = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]
"""``(kept, new) -> kept``, of records with the same columns."""


class ReducingProcess(KeyedProcessFunction):
    """Keeps the folded record of a key, and emits it after each record.

    Args:
        row_type: The type of a record, as Spark DDL.
        keys: Its key's columns, which a folded record has unchanged.
        ttl: How long after its last record the folded record of a key is kept; None for ever.
    """

    def __init__(
        self,
        function: ReduceFunction,
        *,
        row_type: str,
        columns: Sequence[str],
        keys: Sequence[str],
        ttl: timedelta | None = None,
    ) -> None:
        self._function = function
        self._row_type = row_type
        self._columns = tuple(columns)
        self._keys = tuple(keys)
        self._ttl = ttl

    @property
    def is_output_idempotent(self) -> bool:
        """A later record of a key replaces the earlier ones."""
        return True

    def open(self, context: OpenContext) -> None:
        self._kept = context.reducing_state("kept", self._row_type, self._fold, ttl=self._ttl)

    def process(self, record: RecordMapping, context: ProcessContext) -> Iterator[RecordMapping]:  # noqa: ARG002 - its signature
        self._kept.add({name: record[name] for name in self._columns})
        yield dict(self._kept.get())

    def _fold(self, kept: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._function(dict(kept), dict(new)), **{name: new[name] for name in self._keys}}
