"""Changelogs and aggregates over them, with what a step of them emits and what is stored."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from flowcore.keyed.inspection import _keys
from flowcore.keyed.manifest import StateManifest
from flowcore.keyed.operator import StepOutputs
from flowcore.retraction.aggregates import RetractingAggregates
from flowcore.retraction.changelog import CHANGE, Changelog
from flowcore.windows.built_in import BuiltIn
from tests.unit.keyed.stored_group import StoredGroup

__all__ = ["AGGREGATES", "CHANGED", "ROWS", "Row", "Stored", "changelog", "state_of", "totals"]

ROWS = pa.schema([
    ("id", pa.string()), ("shop", pa.string()), ("n", pa.int64()), ("price", pa.float64()),
    ("cost", pa.decimal128(9, 2)), ("word", pa.string()), ("gone", pa.bool_()),
])  # fmt: skip
CHANGED = ROWS.append(pa.field(CHANGE, pa.int8()))
AGGREGATES = {
    "rows": BuiltIn("count"),
    "numbers": BuiltIn("count", ("n",)),
    "total": BuiltIn("sum", ("n",)),
    "mean": BuiltIn("avg", ("n",)),
    "paid": BuiltIn("sum", ("price",)),
    "price": BuiltIn("avg", ("price",)),
    "least": BuiltIn("min", ("price",)),
    "greatest": BuiltIn("max", ("price",)),
    "prices": BuiltIn("count", ("price",), distinct=True),
    "spent": BuiltIn("sum", ("cost",)),
    "cost": BuiltIn("avg", ("cost",)),
    "first": BuiltIn("min", ("word",)),
    "words": BuiltIn("count", ("word",), distinct=True),
}
Row = dict[str, Any]


def changelog(*, ttl_ms: int | None = None) -> Changelog:
    passed = {name: name for name in ROWS.names}
    return Changelog(keys=("id",), rows=ROWS, passed=passed, deleted="gone", ttl_ms=ttl_ms)


def totals(keys: tuple[str, ...] = ("shop",), *names: str) -> RetractingAggregates:
    return RetractingAggregates(
        keys=keys,
        aggregates=tuple((name, each) for name, each in AGGREGATES.items() if name in (names or AGGREGATES)),
        change=CHANGE,
        rows=CHANGED,
        passed={"@id": "id"},
    )


class Stored(StoredGroup):
    """A group, with what a step of it emits."""

    def step(self, rows: pa.RecordBatch, processing_time_ms: int = 0) -> pa.RecordBatch:
        out = StepOutputs()
        self.group.advance_processing_time(processing_time_ms, out)
        for piece in (rows.slice(0, rows.num_rows // 2), rows.slice(rows.num_rows // 2)):
            if piece.num_rows:
                self.group.rows(piece, out)
        self.group.finish(out, idle=False)
        batches = [batch for _, batch in out.batches]
        schema = self.config.outputs["results"]
        return (
            pa.Table.from_batches(batches, schema).combine_chunks().to_batches()[0]
            if batches
            else (pa.RecordBatch.from_pylist([], schema=schema))
        )


def state_of(stored: Stored) -> list[str]:
    manifest = StateManifest(layout=stored.config.layout, key_groups=1)
    manifest.header = stored.group.header()
    return sorted(str(each.shown()) for each in _keys(manifest, [*stored.group.snapshot()]) or ())
