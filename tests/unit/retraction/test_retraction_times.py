"""Times of rows that replace each other: of their groups, and of their expiry."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from flowcore.keyed.content import StoredSchemas, read_content
from flowcore.keyed.output_columns import TIMESTAMP
from flowcore.retraction.aggregates import RetractingAggregates
from flowcore.retraction.changelog import CHANGE
from tests.unit.retraction.stored_changes import CHANGED, ROWS, Stored, changelog, state_of, totals


def timed(*names: str) -> RetractingAggregates:
    """Aggregates of rows whose timestamp is ``n``."""
    return replace(totals(("shop",), *names), passed={TIMESTAMP: "n", "@id": "id"})


@pytest.mark.parametrize("how", ["delta", "snapshot", "restart"])
def test_a_result_has_the_newest_timestamp_of_the_rows_of_its_group(how: str) -> None:
    """Also if the last change is that of an older row, or takes the newest row back."""
    stored, seen = Stored(timed("rows")), []
    for id_, time_ms, change in (("a", None, 1), ("b", 9, 1), ("c", 3, 1), ("b", 9, -1), ("d", None, 1)):
        row = {"id": id_, "shop": "x", "n": time_ms, CHANGE: change}
        found = stored.step(pa.RecordBatch.from_pylist([row], schema=CHANGED)).to_pylist()
        seen += [(each["@id"], each[TIMESTAMP]) for each in found]
        stored.store(how)

    assert seen == [("a", None), ("b", 9), ("c", 9), ("b", 9), ("d", 9)]


def test_state_without_timestamps_is_read() -> None:
    """An earlier version wrote it; later pieces have them."""
    former, now = Stored(totals(("shop",), "rows")), Stored(timed("rows"))
    rows = [{"id": "a", "shop": shop, "n": 9, CHANGE: 1} for shop in "xy"]
    former.step(pa.RecordBatch.from_pylist(rows, schema=CHANGED))
    former.store("delta")
    now.pieces = former.pieces
    now.store("restart")
    later = pa.RecordBatch.from_pylist([{**rows[0], "n": 5}], schema=CHANGED)

    assert now.step(later).select(["rows", TIMESTAMP]).to_pylist() == [{"rows": 2, TIMESTAMP: 5}]
    now.store("delta")
    schemas = StoredSchemas(pa.schema([ROWS.field("shop")]), pa.schema([]))
    (found,) = read_content(now.config.layout, now.header, now.pieces, schemas)
    again = Stored(now.config)
    again.group.restore(now.header, found.encode(np.arange(found.keys.num_rows)))
    assert state_of(again) == state_of(now)
    assert again.step(later).column(TIMESTAMP).to_pylist() == [5]


@pytest.mark.parametrize("how", ["delta", "snapshot"])
def test_a_restart_changes_no_order_of_rows_that_expire(how: str) -> None:
    """Their keys were renewed at one time, in another order than they came."""
    kept, restored, emitted = Stored(changelog(ttl_ms=5)), Stored(changelog(ttl_ms=5)), []
    for stored in (kept, restored):
        for at, ids in enumerate(("abcd", "cadb")):
            rows = [{"id": id_, "n": at, "gone": False} for id_ in ids]
            stored.step(pa.RecordBatch.from_pylist(rows, schema=ROWS), at)
            stored.store(how)
        if stored is restored:
            stored.store("restart")
        emitted.append(stored.step(pa.RecordBatch.from_pylist([], schema=ROWS), 6).to_pylist())

    assert emitted[0] == emitted[1]
    assert [row["id"] for row in emitted[0]] == [*"abcd"]
