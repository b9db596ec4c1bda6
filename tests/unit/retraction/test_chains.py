"""An aggregate of rows that another flow replaces and deletes agrees with one over that flow's last rows."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.keyed.output_columns import DELETED
from flowcore.retraction.aggregates import RetractingAggregates
from flowcore.retraction.changelog import CHANGE, Changelog
from flowcore.windows.built_in import BuiltIn
from tests.unit.retraction.stored_changes import Stored

BIDS = pa.schema(
    [("bidder", pa.string()), ("shop", pa.string()), ("price", pa.int64()), ("gone", pa.bool_())]
)
SHOPS = pa.schema([("shop", pa.string()), ("bids", pa.int64()), ("total", pa.int64()), ("gone", pa.bool_())])
Row = dict[str, Any]
Steps = list[tuple[list[Row], str, bool]]
"""Rows of a step, what becomes of its worker, and whether its output is written again."""


class Flow:
    """A changelog by one column, and an aggregate of it by another one."""

    def __init__(self, rows: pa.Schema, by: str, group: str, **aggregates: BuiltIn) -> None:
        passed = {name: name for name in rows.names}
        self.rows, self.group = rows, group
        self.changes = Stored(Changelog(keys=(by,), rows=rows, passed=passed, deleted="gone"))
        self.groups = Stored(
            RetractingAggregates(
                keys=(group,), aggregates=tuple(aggregates.items()), change=CHANGE,
                rows=rows.append(pa.field(CHANGE, pa.int8())), passed={},
            )
        )  # fmt: skip

    def step(self, rows: list[Row], fate: str) -> list[Row]:
        """The rows that it emits; a deletion has only its key, as a tombstone does."""
        changed = self.changes.step(pa.RecordBatch.from_pylist(rows, schema=self.rows))
        self.changes.store(fate)
        found = self.groups.step(changed).to_pylist()
        self.groups.store(fate)
        return [
            {self.group: row[self.group], "gone": True}
            if row[DELETED]
            else {name: value for name, value in row.items() if name != DELETED} | {"gone": False}
            for row in found
        ]


@st.composite
def histories(draw: st.DrawFn) -> Steps:
    bid = st.fixed_dictionaries({
        "bidder": st.sampled_from("abcdef"), "shop": st.sampled_from("xyz"), "price": st.integers(-2, 3),
        "gone": st.sampled_from([False, False, False, True]),
    })  # fmt: skip
    fate = st.sampled_from(["delta", "snapshot", "restart", "former worker"])
    return draw(st.lists(st.tuples(st.lists(bid, max_size=6), fate, st.booleans()), max_size=8))


def last_rows(rows: list[Row], key: str) -> list[Row]:
    """The last row of each key that is not deleted."""
    return [row for row in {row[key]: row for row in rows}.values() if not row["gone"]]


def expected(bids: list[Row]) -> dict[int, Row]:
    """For each number of newest bids, the shops that have so many."""
    prices = defaultdict(list)
    for bid in last_rows(bids, "bidder"):
        prices[bid["shop"]].append(bid["price"])
    totals = defaultdict(list)
    for each in prices.values():
        totals[len(each)].append(sum(each))
    return {
        size: {"bids": size, "shops": len(each), "total": sum(each), "least": min(each)}
        for size, each in totals.items()
    }


@settings(max_examples=60, deadline=None)
@given(histories(), st.data())
def test_sums_over_another_flows_rows_are_those_of_its_last_rows(steps: Steps, data: st.DataObject) -> None:
    """This holds for any batches of both flows, and if the first flow writes rows again after a failure."""
    first = Flow(BIDS, "bidder", "shop", bids=BuiltIn("count"), total=BuiltIn("sum", ("price",)))
    topic: list[Row] = []
    for rows, fate, again in steps:
        written = first.step(rows, fate)
        topic += written * 2 if again else written
    second = Flow(
        SHOPS, "shop", "bids", shops=BuiltIn("count", ("shop",), distinct=True),
        total=BuiltIn("sum", ("total",)), least=BuiltIn("min", ("total",)),
    )  # fmt: skip
    cuts = sorted(data.draw(st.sets(st.integers(0, len(topic)), max_size=8)) | {0, len(topic)})
    table: list[Row] = []
    for start, end in pairwise(cuts):
        table += second.step(topic[start:end], data.draw(st.sampled_from(["delta", "restart"])))

    found = {row["bids"]: {k: v for k, v in row.items() if k != "gone"} for row in last_rows(table, "bids")}
    assert found == expected([row for rows, _, _ in steps for row in rows])
