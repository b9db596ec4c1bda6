"""Nexmark's queries are short flows, and a wrong result of one is noticed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipelines.nexmark
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from pipelines.nexmark.answers import QUERIES, check_folder, compare_answer, load_query
from tests.benchmarks._pyflink.rival import query_text

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


BIDDERS = {"bid": pa.table({"bidder": [1, 1, 2], "date_time": [1, 2, 3]})}
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def _window(bidder: int, bids: int, start_s: float, seconds: float = 10) -> bytes:
    start, end = (NOON + timedelta(seconds=each) for each in (start_s, start_s + seconds))
    times = {"window_start": start.isoformat(), "window_end": end.isoformat()}
    return json.dumps({"bidder": bidder, "bid_count": bids, **times}).encode()


@pytest.mark.parametrize(
    ("windows", "missing"),
    [
        ([_window(1, 2, 0), _window(2, 1, 10)], 0),
        ([_window(1, 1, 0), _window(2, 1, 10), _window(1, 1, 20)], 0),
        ([_window(1, 1, 0), _window(2, 1, 10)], 1),
        ([_window(1, 1, 0), _window(1, 1, 0), _window(2, 1, 10)], 1),
        ([_window(1, 2, 5), _window(2, 1, 10)], 1),
        ([_window(1, 2, 0, 20), _window(2, 1, 10)], 1),
    ],
    ids=["right", "several", "too-few", "window-twice", "not-aligned", "too-long"],
)
def test_windows_of_the_clock_are_aligned_and_add_up(windows: list[bytes], missing: int) -> None:
    """In which window a bid is counted does not matter."""
    results = [(str(number).encode(), value) for number, value in enumerate(windows)]

    assert compare_answer("q12", BIDDERS, [results]).missing == missing


def test_windows_beyond_the_last_event_of_a_rival_are_left_out() -> None:
    """The end of its input completes them; flowcore must not write them."""
    bids = pa.table({"bidder": [1, 2], "date_time": [0, 60_000]})
    windows = [
        b'{"bidder":1,"bid_count":1,"window_start":"1970-01-01T00:00:00","window_end":"1970-01-01T00:00:10"}',
        b'{"bidder":2,"bid_count":1,"window_start":"1970-01-01T00:01:00","window_end":"1970-01-01T00:01:10"}',
    ]
    results = [(str(number).encode(), value) for number, value in enumerate(windows)]

    assert compare_answer("q11", {"bid": bids}, [results], only_complete=True).right
    assert compare_answer("q11", {"bid": bids}, [results]).unexpected == 1


def _write_file(folder: Path, bids: pa.Table, name: str) -> str:
    file = folder / "day=1970-01-01" / "minute=00%3A00" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(bids, file)
    return json.dumps({"path": f"file://{quote(str(file))}", "action": "add"})


def test_only_files_of_committed_batches_count(tmp_path: Path) -> None:
    """A killed task leaves a file that the log of the folder does not name."""
    folder = tmp_path / "nexmark" / "q10"
    bids = BIDS.append_column("bidder", BIDS["auction"]).append_column("extra", pa.array(["a", "b", "c"]))
    first, second = _write_file(folder, bids[:2], "1.parquet"), _write_file(folder, bids[2:], "2.parquet")
    _write_file(folder, bids[:2], "killed.parquet")
    log = folder / "_spark_metadata"
    log.mkdir()
    (log / "0.compact").write_text(f"v1\n{first}")
    (log / ".1.crc").write_text("")
    assert check_folder("q10", {"bid": bids}, tmp_path).missing == 1

    (log / "1").write_text(f"v1\n{first}\n{second}")
    answer = check_folder("q10", {"bid": bids}, tmp_path)
    assert (answer.right, answer.rows) == (True, 3)


def test_q4_for_flink_asks_for_the_same_averages() -> None:
    """Flink's mean of integers is an integer, so its text casts; a bid after the end does not count."""
    auctions = pa.table(
        {"id": [1, 2, 3, 4], "category": [10, 10, 11, 12], "date_time": [0, 0, 0, 0], "expires": [9, 9, 9, 9]}
    )
    bids = pa.table({"auction": [1, 1, 2, 3, 3], "price": [3, 5, 8, 7, 100], "date_time": [0, 9, 4, 5, 10]})
    text = query_text("q4") or ""
    with duckdb.connect() as database:
        database.register("auction", auctions)
        database.register("bid", bids)
        found = database.sql(text).to_arrow_table().to_pylist()

    results = [(str(number).encode(), json.dumps(row).encode()) for number, row in enumerate(found)]
    assert compare_answer("q4", {"auction": auctions, "bid": bids}, [results]).right
    assert {row["category"]: row["price"] for row in found} == {10: 6.5, 11: 7}
    assert "avg(CAST(final AS DOUBLE))" in text
