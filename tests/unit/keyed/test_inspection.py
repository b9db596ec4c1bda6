"""The content of a state store is shown without the operator that wrote it."""

from __future__ import annotations

from typing import Any

import pytest

from flowcore.errors import StateError
from flowcore.keyed.inspection import InspectedGroup, inspect_state
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.state_cache import StateCache
from flowcore.keyed.store import MemoryStore
from flowcore.windows import SessionWindows, TumblingWindows
from tests.unit.keyed.test_runtime import by_column, by_record, rows, runtime_of, windows

RECORDS = [("a", 1, 1), ("a", 2, 2), ("b", 12, 4), ("b", 30, 8)]


def left_by(operator: Any, *batches: list[tuple[str, int, int]]) -> InspectedGroup:
    runtime: Runtime = runtime_of(operator)
    store, remembered = MemoryStore(), StateCache()
    for clock, batch in enumerate(batches):
        runtime.step(0, rows(*batch), clock, store, remembered)
    return inspected(store)


def inspected(store: MemoryStore, change: tuple[bytes, bytes] = (b"", b"")) -> InspectedGroup:
    """The state of the one operator in a store, after a change of the manifest's text."""
    assert store.kept is not None
    segments = {("windows", number): content for number, content in store.segments.items()}
    (found,) = inspect_state(b'{"windows": ' + store.kept.replace(*change) + b"}", segments)
    return found


def shown(found: InspectedGroup) -> dict[str, list[tuple[Any, ...]]]:
    assert found.keys is not None
    return {
        key.key["user"]: [
            (each["start_ms"], each["end_ms"], each.get("records", each.get("fields", {}).get("sum:v")))
            for each in (*key.windows, *key.panes)
        ]
        for key in found.keys
    }


@pytest.mark.parametrize("operator", [by_column, by_record], ids=["by column", "by record"])
def test_deleted_windows_are_not_shown(operator: Any) -> None:
    """Older segments may still contain them."""
    found = left_by(operator(windows(allowed_lateness_ms=5)), RECORDS, [("c", 24, 16)], [("b", 33, 32)])

    ends = {key: [each[:2] for each in held] for key, held in shown(found).items()}
    assert ends == {"b": [(30, 40)]} | ({"c": [(20, 30)]})
    assert found.watermark_ms == 32


def test_later_segment_takes_precedence() -> None:
    """This holds for a pane and for a key's sessions."""
    panes = left_by(by_column(windows()), [("a", 1, 1)], [("a", 2, 2), ("b", 3, 5)])
    sessions = left_by(
        by_column(windows(assigner=SessionWindows(5))), [("a", 1, 1)], [("a", 4, 2), ("a", 9, 7)]
    )

    assert shown(panes) == {"a": [(0, 10, 3)], "b": [(0, 10, 5)]}
    assert shown(sessions) == {"a": [(1, 14, 10)]}


def test_unknown_state_layout_is_shown_by_size_only() -> None:
    """A newer version may have written the state."""
    runtime = runtime_of(by_column(windows()))
    store = MemoryStore()
    runtime.step(0, rows(("a", 1, 1)), 0, store, StateCache())

    found = inspected(store, (b"panes of", b"tiles of"))

    assert found.keys is None
    assert found.bytes > 0


def test_state_of_another_version_is_refused() -> None:
    """It is refused as a query would refuse it."""
    store = MemoryStore()
    runtime_of(by_column(windows(assigner=TumblingWindows(10)))).step(
        0, rows(("a", 1, 1)), 0, store, StateCache()
    )

    with pytest.raises(StateError, match="state of version 99"):
        inspected(store, (b'"version":3', b'"version":99'))
