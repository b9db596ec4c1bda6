"""The check accepts a right set of records and finds each single fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.auctions.delivery import DELIVERED, Delivery, check_delivery
from pipelines.auctions.verify import expected_enriched
from pipelines.nexmark.generator import NexmarkConfig, live_bids
from pipelines.nexmark.history import write_history

Row = dict[str, Any]
CONFIG = NexmarkConfig()
EVENTS = {"v1": 2_000, "v2": 2_600}
LIVE = 200
BIDS = live_bids(CONFIG, 2_000, 0, LIVE)


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two versions of history, of which the second knows more."""
    folder = tmp_path_factory.mktemp("histories")
    for version, events in EVENTS.items():
        write_history(CONFIG, events, folder / version)
    return {version: folder / version for version in EVENTS}


@pytest.fixture
def rows(histories: dict[str, Path]) -> list[Row]:
    """Half of the bids with the first version, the others with the second, in two partitions."""
    by_version = [
        expected_enriched(folder, BIDS).sort_by("bid_id").to_pylist() for folder in histories.values()
    ]
    return [
        by_version[number >= LIVE // 2][number]
        | {
            "flowcore_id": f"bids:0:{number}:0",
            "version": "v1" if number < LIVE // 2 else "v2",
            "partition": number % 2,
            "place": number // 2,
        }
        for number in range(LIVE)
    ]


def _check(rows: list[Row], histories: dict[str, Path]) -> Delivery:
    return check_delivery(BIDS, pa.Table.from_pylist(rows, schema=DELIVERED), histories)


def test_right_records_pass(rows: list[Row], histories: dict[str, Path]) -> None:
    """Each bid once, with either version."""
    found = _check(rows, histories)

    assert found.complete_and_right
    assert (found.bids, found.records, found.delivered, found.repeats) == (LIVE, LIVE, LIVE, 0)
    assert found.by_version == {"v1": LIVE // 2, "v2": LIVE // 2}


def test_repeat_with_its_id_and_a_newer_version_passes(rows: list[Row], histories: dict[str, Path]) -> None:
    """A bid joined again after a crash is checked by the version it names."""
    again = expected_enriched(histories["v2"], BIDS).sort_by("bid_id").to_pylist()[0]
    late = {name: rows[0][name] for name in ("flowcore_id", "partition")}
    found = _check([*rows, again | late | {"version": "v2", "place": LIVE}], histories)

    assert found.complete_and_right
    assert found.repeats == 1


def _drop(rows: list[Row]) -> list[Row]:
    return rows[1:]


def _change(number: int, **columns: Any) -> Callable[[list[Row]], list[Row]]:
    def changed(rows: list[Row]) -> list[Row]:
        number_ = number % len(rows)
        return [*rows[:number_], rows[number_] | columns, *rows[number_ + 1 :]]

    return changed


def _repeat(**columns: Any) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: [*rows, rows[-1] | {"place": LIVE} | columns]


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        pytest.param(_drop, "missing", id="a-record-is-lost"),
        pytest.param(_change(0, price=-1.0), "wrong", id="a-value-is-wrong"),
        pytest.param(_change(LIVE // 2 - 1, version="v2"), "wrong", id="another-version-is-named"),
        pytest.param(_change(-1, version="v3"), "of_unknown_version", id="a-version-that-never-was"),
        pytest.param(_change(-1, version=None), "of_unknown_version", id="no-version"),
        pytest.param(_change(0, flowcore_id=None), "without_id", id="no-id"),
        pytest.param(_repeat(flowcore_id="bids:0:999:0"), "under_several_ids", id="a-repeat-with-another-id"),
        pytest.param(_change(0, flowcore_id="bids:0:1:0"), "shared_ids", id="one-id-for-two-bids"),
        pytest.param(_change(0, bid_id=7), "unexpected", id="a-bid-that-nobody-sent"),
        pytest.param(_change(0, place=LIVE), "stale", id="an-older-version-after-a-newer-one"),
    ],
)
def test_single_fault_is_found(
    rows: list[Row], histories: dict[str, Path], spoil: Callable[[list[Row]], list[Row]], fault: str
) -> None:
    """Each fault is counted under its name, besides its consequences."""
    found = _check(spoil(rows), histories)

    assert not found.complete_and_right
    assert getattr(found, fault) >= 1
