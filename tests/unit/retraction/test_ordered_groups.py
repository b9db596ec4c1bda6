"""Rows of groups cost what a step changes, and leave no trace when they are removed."""

from __future__ import annotations

from typing import Any

import pytest

from flowcore.ranking.order import find_first, sort_rows
from flowcore.retraction import ordered_groups
from flowcore.retraction.changelog import CHANGE
from tests.unit.retraction.test_ranking import Stored, batch, change, ranking


def test_a_large_group_is_neither_sorted_nor_written_for_a_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other rows are looked at when so many of the first ones are removed that a rank has none."""
    sorted_rows: list[int] = []
    selected_rows: list[int] = []

    def sort(columns: Any) -> Any:
        sorted_rows.append(len(columns[0][0]))
        return sort_rows(columns)

    def select(columns: Any, count: int) -> Any:
        selected_rows.append(len(columns[0][0]))
        return find_first(columns, count)

    monkeypatch.setattr(ordered_groups, "sort_rows", sort)
    monkeypatch.setattr(ordered_groups, "find_first", select)
    stored = Stored(ranking(3, "shop"))
    stored.step(batch(*(change(number, "x", float(number)) for number in range(20_000))))
    assert (sorted_rows, selected_rows) == ([20_000], [])
    sorted_rows.clear()
    for top in range(19_999, 19_599, -1):  # the best one is removed, and a bad one comes
        stored.step(batch(change(top, "x", float(top), -1), change(500_000 + top, "x", -1.0)))
    assert max(sorted_rows) < 1_000
    assert selected_rows == [20_000, 20_000]
    group = stored.group._groups
    for start in range(30_000, 130_000, 1_000):
        rows = [change(start + each, "x", 5.0) for each in range(1_000)]
        stored.step(batch(*rows, *({**row, CHANGE: -1} for row in rows[1:])))
        stored.step(batch({**rows[0], CHANGE: -1}))
    assert len(group._rows) < 45_000
    assert len(group) == 20_000


def test_groups_that_are_gone_take_no_memory() -> None:
    """Also those that were read from state."""
    stored = Stored(ranking(2, "shop"))
    rows = [change(number, str(number), 1.0) for number in range(6_000)]
    for sign in (1, -1, 1, -1):
        stored.step(batch(*({**row, CHANGE: sign} for row in rows)))
        stored.store("delta")
    stored.store("restart")
    groups = stored.group._groups
    assert (len(groups), len(groups._groups)) == (0, 0)
    assert len(groups._rows) <= 6_000
    assert [*stored.group.snapshot()] == []
