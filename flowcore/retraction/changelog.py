"""A changelog, as an operator on key groups: each row of a key, after the row of that key that it replaces.

It keeps the last row of each key. A new row is emitted as an insertion, and the row that it replaces is
emitted before it as a retraction. Of several rows of a key in one call only the last one counts. A deletion,
which is a row with a true flag, only retracts. A row that was not replaced within the time to live is
retracted, too, or only forgotten.

Source: Flink's ChangelogNormalize, from an upsert stream to one with ``UPDATE_BEFORE`` and ``UPDATE_AFTER``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from flowcore.keyed.key_index import Ints
from flowcore.keyed.operator import StepOutputs
from flowcore.keyed.output_columns import RESULTS
from flowcore.keyed.timers import rank_key
from flowcore.ranking.keyed import Ranking, RankingGroup

__all__ = ["CHANGE", "INSERTED", "RETRACTED", "Changelog", "ChangelogGroup"]

CHANGE = "@change"
"""The column that says whether a row is inserted or retracted."""
INSERTED, RETRACTED = 1, -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Changelog(Ranking):
    """Configuration: a ranking whose only row of a key is the last that arrived.

    Attributes:
        deleted: The column that is true where a row deletes its key; None if no row does.
        retracts_expired: A row is retracted at the end of its time to live.
    """

    n: int = 1
    order: tuple[tuple[str, bool], ...] = ()
    newest_first: bool = True
    timestamp: str | None = None
    deleted: str | None = None
    retracts_expired: bool = True

    @property
    def stored(self) -> Sequence[str]:
        """The columns that are kept of a row."""
        return tuple(dict.fromkeys((*self.passed.values(), *([self.deleted] if self.deleted else []))))

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        fields = [pa.field(name, self.rows.field(column).type) for name, column in self.passed.items()]
        return {RESULTS: pa.schema([*fields, pa.field(CHANGE, pa.int8())])}

    def open(self) -> ChangelogGroup:
        return ChangelogGroup(self)


class ChangelogGroup(RankingGroup):
    """A key group."""

    def __init__(self, config: Changelog) -> None:
        super().__init__(config)
        self._deleted = config.deleted
        self._retracts_expired = config.retracts_expired
        self._gone: dict[Any, None] = {}
        """The keys whose row is a deletion."""

    def _expire(self, keys: Sequence[Any], out: StepOutputs) -> None:
        """Retract the rows of keys that expire, if they are not only forgotten.

        Those of one time are in an order that a restart does not change.
        """
        if keys and self._retracts_expired:
            keys = sorted(keys, key=lambda key: (self._touched_ms[key], rank_key(key)))
            found = [self._places[key] for key in keys]
            self._emit_changes(self._rows.take(np.concatenate(found)), RETRACTED, out)

    def header(self) -> Mapping[str, Any]:
        """That of a ranking and, for readers of the state, the column that marks deletions."""
        return {**super().header(), "deleted": self._deleted}

    def delta(self) -> bytes | None:
        found = super().delta()
        self._forget_deleted()
        return found

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:
        super().restore(header, pieces)
        if self._deleted is not None and self._places:
            keys = [*self._places]
            rows = self._rows.take(np.concatenate([*self._places.values()]))
            self._gone = {keys[place]: None for place in np.flatnonzero(self._are_deleted(rows)).tolist()}
        self._forget_deleted()

    def _keep(
        self, keys: Sequence[Any], rows: pa.RecordBatch, chosen: Ints, code_of: Ints, changed: Any
    ) -> None:
        super()._keep(keys, rows, chosen, code_of, changed)
        if self._deleted is None:
            return
        flags = self._are_deleted(rows.take(chosen))
        for code, deleted in zip(code_of.tolist(), flags.tolist(), strict=True):
            self._gone.pop(keys[code], None)
            if deleted:
                self._gone[keys[code]] = None

    def _emit(
        self, rows: pa.RecordBatch, chosen: Ints, rank_of: Ints, replaced: Ints, out: StepOutputs
    ) -> None:
        """Emit the rows that were replaced, then those that replace them."""
        del rank_of
        self._emit_changes(rows.take(replaced), RETRACTED, out)
        self._emit_changes(rows.take(chosen), INSERTED, out)

    def _emit_changes(self, rows: pa.RecordBatch, change: int, out: StepOutputs) -> None:
        if self._deleted is not None:
            rows = rows.filter(pa.array(~self._are_deleted(rows)))
        columns = [rows.column(name) for name in self._config.passed.values()]
        changes = pa.array(np.full(rows.num_rows, change, np.int8))
        out.rows(
            RESULTS, pa.RecordBatch.from_arrays([*columns, changes], schema=self._config.outputs[RESULTS])
        )

    def _forget_deleted(self) -> None:
        """Forget the keys that were deleted, once their deletion is written."""
        for key in self._gone:
            if key in self._places:
                del self._places[key]
                self._touched_ms.pop(key, None)
                self._live -= 1
        self._gone = {}

    def _are_deleted(self, rows: pa.RecordBatch) -> Any:
        flags = rows.column(self._deleted or "").fill_null(fill_value=False)
        return flags.to_numpy(zero_copy_only=False)
