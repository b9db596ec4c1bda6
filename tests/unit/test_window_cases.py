"""The check of the window benchmark finds what is missing, wrong, unexpected or there twice."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner

from flowcore.errors import RunError
from tests.benchmarks import windows
from tests.benchmarks._window_cases import BEGIN_MS, WINDOWS, Case, Sent, check

Rows = list[dict[str, Any]]
_SENT = Sent(
    "in",
    pa.Table.from_pylist(
        [
            {"auction_id": key, "price": 3, "at": BEGIN_MS + at}
            for at in range(0, 60_000, 2_000)
            for key in (1, 2)
        ]
    ),
)


def _row(key: int, first_ms: int, end_ms: int, n: int, firing: int | None = 1) -> dict[str, Any]:
    start, end = (
        datetime(1970, 1, 1) + timedelta(milliseconds=BEGIN_MS + ms)  # noqa: DTZ001 - as Spark writes it
        for ms in (first_ms, end_ms)
    )
    return {
        "auction_id": key, "total": 3 * n, "n": n, "window_start": start, "window_end": end, "firing": firing
    }  # fmt: skip


def _right(case: Case, *, firing: int | None = 1) -> Rows:
    if case.windows == "session":
        return [_row(key, 0, 63_000, 30, firing) for key in (1, 2)]
    return [
        _row(key, first, first + 10_000, 5, firing) for key in (1, 2) for first in range(0, 50_000, 10_000)
    ]


def _check(case: Case, rows: Rows) -> None:
    check(case, _SENT, pa.Table.from_pylist(rows, schema=WINDOWS), "ours")


TUMBLING, LATE = Case("tumbling", 2), Case("tumbling", 2, late=True)


@pytest.mark.parametrize("firing", [1, None])
@pytest.mark.parametrize("case", [TUMBLING, LATE], ids=lambda case: case.name)
def test_complete_windows_once_each_are_right(case: Case, firing: int | None) -> None:
    """The last window may be missing, or be there."""
    rows = _right(case, firing=firing)

    _check(case, rows)
    _check(case, [*rows, _row(1, 50_000, 60_000, 5, firing)])


@pytest.mark.parametrize("case", [TUMBLING, LATE], ids=lambda case: case.name)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda rows: rows[1:],
        lambda rows: [_row(1, 0, 10_000, 4), *rows[1:]],
        lambda rows: [*rows, rows[0]],
        lambda rows: [*rows, _row(3, 0, 10_000, 5)],
        lambda rows: [*rows, _row(1, 5_000, 15_000, 5)],
        lambda rows: [*rows, _row(1, 50_000, 60_000, 6)],
        lambda rows: [*rows, _row(1, 70_000, 80_000, 1)],
    ],
    ids=["missing", "wrong", "repeated", "other-key", "other-window", "wrong-last", "after-the-end"],
)
def test_each_difference_is_refused(case: Case, spoil: Callable[[Rows], Rows]) -> None:
    """Results that nothing expects count as well as those that are missing."""
    with pytest.raises(RunError, match="of 10 windows ours has"):
        _check(case, spoil(_right(case)))


def test_window_fires_again_for_late_records_only() -> None:
    """The last firing counts, and the order of the topic if there are no firings."""
    first = [_row(key, 0, 10_000, 4) for key in (1, 2)]

    _check(LATE, [*first, *_right(LATE, firing=2)])
    _check(LATE, [*(row | {"firing": None} for row in first), *_right(LATE, firing=None)])
    with pytest.raises(RunError, match="2 unexpected, wrong or repeated"):
        _check(TUMBLING, [*first, *_right(TUMBLING, firing=2)])


def test_session_that_was_emitted_before_a_merge_is_part_of_the_merged_one() -> None:
    """A late record merges two sessions that were emitted; a part of none is refused."""
    case = Case("session", 2, late=True)
    ends = Sent("in", pa.concat_tables([_SENT.columns, pa.Table.from_pylist(
        [{"auction_id": key, "price": 1, "at": BEGIN_MS + 90_000} for key in (8, 9)]
    )]))  # fmt: skip
    rows = [_row(1, 0, 21_000, 9), *_right(case)]

    check(case, ends, pa.Table.from_pylist(rows, schema=WINDOWS), "ours")
    for wrong in (_row(1, 0, 64_000, 9), _row(1, 0, 21_000, 31)):
        with pytest.raises(RunError, match="1 of no expected window, or with more than it"):
            check(case, ends, pa.Table.from_pylist([wrong, *rows], schema=WINDOWS), "ours")


def test_unknown_case_is_refused_with_the_names() -> None:
    """A typo does not end as an empty report."""
    done = CliRunner().invoke(windows.command, ["--case", "tumbling-1000"])

    assert done.exit_code == click.UsageError.exit_code
    assert "session-1000000-late" in done.output
    assert "held" in done.output
