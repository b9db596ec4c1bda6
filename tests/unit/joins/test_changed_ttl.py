"""A time to live of a join that is changed on existing state: what has expired stays so."""

from __future__ import annotations

from typing import Any

import pytest

from flowcore.keyed.inspection import _keys
from flowcore.keyed.manifest import StateManifest
from flowcore.keyed.operator import StepOutputs
from tests.unit.joins import test_interval, test_latest
from tests.unit.joins.sided_rows import Row, batch_of, found_in, left, right
from tests.unit.keyed.stored_group import StoredGroup


def latest(ttl_ms: int) -> Any:
    return test_latest.join("left", ttl_ms=ttl_ms)


def regular(ttl_ms: int) -> Any:
    return test_interval.join("left", ttl_ms, ttl_ms, time="processing")


def step(stored: StoredGroup, processing_time_ms: int, *rows: Row, how: str = "delta") -> list[Any]:
    """The keys of left rows and their partners, by key."""
    out = StepOutputs()
    stored.group.advance_processing_time(processing_time_ms, out)
    stored.group.rows(batch_of([*rows]), out)
    stored.store(how)
    return sorted((key, partner) for key, _, partner, _ in found_in(out))


def start(stored: StoredGroup, config: Any, header: Any = None) -> None:
    """Start again with another time to live."""
    stored.config, stored.group = config, config.open()
    stored.group.restore(stored.header if header is None else header, iter(stored.pieces))


def shown(stored: StoredGroup) -> dict[str, Any]:
    """What `flowcore state` shows of the right side, by key."""
    manifest = StateManifest(layout=stored.config.layout, key_groups=1)
    manifest.header = stored.header
    found = {each.key["key"]: each.states for each in _keys(manifest, stored.pieces) or ()}
    return {key: states["right_ms"] for key, states in found.items() if "right_ms" in states}


@pytest.mark.parametrize("how", ["delta", "snapshot"])
@pytest.mark.parametrize("join", [latest, regular])
def test_a_longer_time_to_live_brings_no_row_back(join: Any, how: str) -> None:
    """Whether it is still in the state depends on when that was written."""
    stored = StoredGroup(join(60))
    assert step(stored, 0, right("a", 0, 1), how=how) == []
    assert step(stored, 30, right("b", 0, 2)) == []
    assert step(stored, 65, right("c", 0, 3)) == []

    start(stored, join(120))
    assert step(stored, 66, left("a", 0, 4), left("b", 0, 5)) == [("a", None), ("b", "2")]
    assert shown(stored) == {"b": [30], "c": [65]}
    assert step(stored, 149, left("b", 0, 6)) == [("b", "2")]

    start(stored, join(100))
    assert step(stored, 150, left("b", 0, 7), left("c", 0, 8)) == [("b", None), ("c", "3")]
    start(stored, join(1000))
    assert step(stored, 151, left("b", 0, 9), left("c", 0, 10)) == [("b", None), ("c", "3")]
    assert shown(stored) == {"c": [65]}


@pytest.mark.parametrize("join", [latest, regular])
def test_what_had_expired_follows_from_the_state_of_an_earlier_version(join: Any) -> None:
    """It has the time, and the time to live of then."""
    stored = StoredGroup(join(60))
    step(stored, 0, right("a", 0, 1))
    step(stored, 65, right("c", 0, 3))
    header = {name: each for name, each in stored.header.items() if name != "expired_ms"}
    assert len(header) == len(stored.header) - 1

    start(stored, join(120), header)
    assert step(stored, 66, left("a", 0, 4), left("c", 0, 5)) == [("a", None), ("c", "3")]


@pytest.mark.parametrize("join", [latest, regular])
def test_expired_rows_are_not_kept_by_a_longer_time_to_live(join: Any) -> None:
    """They could not be found any more, and would stay until they expire again."""
    stored = StoredGroup(join(60))
    step(stored, 0, right("a", 0, 1))
    step(stored, 65, right("c", 0, 3))

    start(stored, join(1000))

    assert [len(side) for side in stored.group._sides] == [0, 1]
