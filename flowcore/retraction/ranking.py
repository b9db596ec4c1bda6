"""Ranking of a changelog, as an operator on key groups: later rows move up when a ranked one is taken back.

It keeps all rows of each group, since each may have a rank later. At the end of a step, and before a control
element in it, each rank that has another row is emitted once, so that a later row of a group and rank
replaces the earlier one. For a rank that has vanished, a row says that it is deleted. Rows that are equal in
the order are in ascending order of their own key, so that ranks do not depend on the order of arrival.

Source: Flink's ``RetractableTopNFunction``, whose state is all rows of each key, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from flowcore.keyed import segments
from flowcore.keyed.columns import concat_batches
from flowcore.keyed.content import ROW_KEY
from flowcore.keyed.key_index import find_last_rows, to_key_columns
from flowcore.keyed.operator import KeyGroupOperator, StepOutputs
from flowcore.keyed.output_columns import DELETED, RESULTS
from flowcore.ranking.kept_rows import KeptRows
from flowcore.ranking.keyed import RANK
from flowcore.retraction.collecting import CollectingGroup
from flowcore.retraction.ordered_groups import OrderedGroups

__all__ = ["RetractingRanking", "RetractingRankingGroup"]

_TABLE = "grouped"
_ROWS_AT_ONCE = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class RetractingRanking(KeyGroupOperator):
    """Configuration.

    Attributes:
        keys: The columns of a group. Null equals null.
        row_key: The columns that identify a row in its group.
        n: How many rows of a group have a rank.
        order: The columns of the order, each with whether larger values come first.
        change: The column that is 1 where a row is inserted, and -1 where it is retracted.
        rows: The columns of a row.
        results: The columns of an emitted row that are those of the ranked row: their name in the output, and
            in ``rows``. They are null where a rank has vanished.
        passed: The same of columns that are those of the last row that has changed the group.
    """

    keys: tuple[str, ...]
    row_key: tuple[str, ...]
    n: int
    order: tuple[tuple[str, bool], ...]
    change: str
    rows: pa.Schema
    results: Mapping[str, str]
    passed: Mapping[str, str]
    memory_factor: ClassVar[int] = 8

    @property
    def columns(self) -> Sequence[str]:
        """The columns that are kept of a row: those of its group and its key, and the others."""
        others = dict.fromkeys((*(name for name, _ in self.order), *self.results.values()))
        return (*self.keys, *self.row_key, *others)

    @property
    def stored(self) -> pa.Schema:
        """The columns of a stored row, in the order of ``columns``."""
        keys = [f"key{place}" for place in range(len(self.keys))]
        own = [f"{ROW_KEY}{place}" for place in range(len(self.row_key))]
        names = [*keys, *own, *self.columns[len(keys) + len(own) :]]
        return pa.schema([
            pa.field(name, self.rows.field(column).type)
            for name, column in zip(names, self.columns, strict=True)
        ])  # fmt: skip

    @property
    def layout(self) -> str:
        """The state layout."""
        types = ", ".join(str(self.rows.field(name).type) for name in self.keys)
        order = ", ".join(f"{name}{' desc' * descending}" for name, descending in self.order)
        kept = ", ".join(f"{name} {self.rows.field(name).type}" for name in self.columns[len(self.keys) :])
        return (
            f"grouped by {', '.join(self.keys)}: {types}; {self.n} in order of {order} of {kept}; "
            f"a row by {', '.join(self.row_key)}"
        )

    @property
    def outputs(self) -> Mapping[str, pa.Schema]:
        columns = {**{name: name for name in self.keys}, **self.results, **self.passed}
        fields = [pa.field(name, self.rows.field(column).type) for name, column in columns.items()]
        return {RESULTS: pa.schema([*fields, pa.field(RANK, pa.int32()), pa.field(DELETED, pa.bool_())])}

    def open(self) -> RetractingRankingGroup:
        return RetractingRankingGroup(self)


class RetractingRankingGroup(CollectingGroup):
    """A key group."""

    def __init__(self, config: RetractingRanking) -> None:
        self._config = config
        self._groups = OrderedGroups(
            schema=config.stored,
            group_columns=len(config.keys),
            row_key_columns=len(config.keys) + len(config.row_key),
            order=config.order,
            n=config.n,
            compared=[*dict.fromkeys(config.results.values())],
        )
        self._key_types = [config.rows.field(name).type for name in config.keys]
        self._waiting: list[pa.RecordBatch] = []
        """The rows that have not changed any group yet."""
        self._waiting_rows = 0
        self._last: dict[Any, int] = {}
        """Of each group that has changed since the last emission, the position of its last row."""
        self._passed = pa.schema([config.rows.field(name) for name in dict.fromkeys(config.passed.values())])
        self._passed_rows = KeptRows(self._passed)

    def rows(self, rows: pa.RecordBatch, out: StepOutputs) -> None:  # noqa: ARG002 - emitted later, once for each rank
        """Collect rows, which change groups together: that is faster than one after the other."""
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        if self._waiting_rows >= _ROWS_AT_ONCE:
            self._change()

    def header(self) -> Mapping[str, Any]:
        return {}

    def delta(self) -> bytes | None:
        """The rows that have changed since the last delta, also those that were removed."""
        found = self._groups.take_unsaved()
        return None if found is None else segments.encode({_TABLE: found})

    def snapshot(self) -> Iterator[bytes]:
        for rows in self._groups.take_all():
            yield segments.encode({_TABLE: rows})

    def restore(self, header: Mapping[str, Any], pieces: Iterator[bytes]) -> None:  # noqa: ARG002 - it is empty
        for piece in pieces:
            for _, table in segments.decode(piece):
                self._groups.load(table)

    def _change(self) -> None:
        """Insert and remove the collected rows."""
        if not self._waiting:
            return
        config, rows = self._config, concat_batches(self._waiting)
        self._waiting, self._waiting_rows = [], 0
        inserted = rows.column(config.change).to_numpy() > 0
        kept = pa.RecordBatch.from_arrays(
            [rows.column(name) for name in config.columns], schema=config.stored
        )
        names, codes = self._groups.change(kept, inserted)
        start = self._passed_rows.add(rows.select(self._passed.names))
        last = start + find_last_rows(codes, len(names))
        self._last.update(zip(names, last.tolist(), strict=True))

    def emit_changes(self, out: StepOutputs) -> None:
        """Emit each rank that has another row, or none."""
        self._change()
        if not self._last:
            return
        config, changes = self._config, self._groups.take_changes()
        last = np.array([self._last[name] for name in changes.groups], np.int64)
        passed = self._passed_rows.take(last[changes.code_of])
        groups = [changes.groups[code] for code in changes.code_of.tolist()]
        columns = [
            *(to_key_columns(groups, self._key_types) if self._key_types else []),
            *(changes.rows.column(name) for name in config.results.values()),
            *(passed.column(name) for name in config.passed.values()),
            pa.array(changes.ranks, pa.int32()),
            pa.array(changes.vanished),
        ]
        out.rows(RESULTS, pa.RecordBatch.from_arrays(columns, schema=config.outputs[RESULTS]))
        self._last, self._passed_rows = {}, KeptRows(self._passed)
