"""Nexmark's queries are short flows, and a wrong result of one is noticed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import pipelines.nexmark
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from pipelines.nexmark.answers import QUERIES, compare_answer, load_query

FOLDER = Path(pipelines.nexmark.__file__).parent
SHORT = {"q5": 15, "q7": 15}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_is_one_short_flow(query: str) -> None:
    """Under 25 lines, those of windows over windows under 15; the plan has one live stage."""
    lines = (FOLDER / f"{query}.py").read_text().splitlines()

    assert len(lines) < SHORT.get(query, 25)
    assert plan_flow(load_query(query), settings=Settings.of(environment={})).live is not None


BIDS = pa.table({"auction": [123, 246, 5], "price": [7, 8, 9], "date_time": [1, 2, 3]})
FIRST, SECOND = (b"bids:0:0:0", b'{"auction":123,"price":7}'), (b"bids:0:1:0", b'{"auction":246,"price":8}')


@pytest.mark.parametrize(
    ("results", "differences"),
    [
        ([FIRST, SECOND], {}),
        ([SECOND, FIRST, SECOND], {"repeats": 1}),
        ([FIRST], {"missing": 1}),
        ([], {"missing": 2}),
        ([FIRST, SECOND, (b"bids:0:2:0", SECOND[1])], {"unexpected": 1}),
        ([FIRST, (SECOND[0], b'{"auction":246,"price":9}')], {"missing": 1, "unexpected": 1}),
        ([FIRST, SECOND, (SECOND[0], FIRST[1])], {"unexpected": 1, "altered": 1}),
    ],
    ids=["right", "repeated", "missing", "nothing", "twice", "wrong", "altered"],
)
def test_differences_from_duckdb_are_counted(
    results: list[tuple[bytes, bytes]], differences: dict[str, int]
) -> None:
    """Only repeats are right."""
    answer = compare_answer("q2", {"bid": BIDS}, [results])

    assert {name: getattr(answer, name) for name in ("missing", "unexpected", "repeats", "altered")} == {
        "missing": 0, "unexpected": 0, "repeats": 0, "altered": 0, **differences
    }  # fmt: skip
    assert answer.right is (differences.keys() <= {"repeats"})
