"""Workloads of the window benchmark: windows, records, and the expected results."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa

from flowcore import Session, Sliding, Tumbling
from flowcore.errors import RunError

__all__ = [
    "BEGIN_MS",
    "CASES",
    "DELAY_MS",
    "PARTITIONS",
    "SCHEMA",
    "WINDOWS",
    "Case",
    "Sent",
    "check",
    "records_of",
]

PARTITIONS = 2
BEGIN_MS = 1_700_000_000_000
DELAY_MS, SPAN_MS = 2000, 100_000
SCHEMA = "auction_id BIGINT, price BIGINT, at BIGINT"
WINDOWS = pa.schema(
    {
        "auction_id": pa.int64(),
        "total": pa.int64(),
        "n": pa.int64(),
        "window_start": pa.timestamp("us"),
        "window_end": pa.timestamp("us"),
        "firing": pa.int32(),
    }
)
"""Schema of results; those of Spark's own aggregate have no firing."""


@dataclass(frozen=True)
class Case:
    """One workload: windows over records of a number of keys."""

    windows: str
    keys: int
    late: bool = False

    @property
    def name(self) -> str:
        """Name in options and figures."""
        return f"{self.windows}-{self.keys}{'-late' if self.late else ''}"

    @property
    def declared(self) -> Tumbling | Sliding | Session:
        """The windows as flowcore declares them."""
        declared: dict[str, Tumbling | Sliding | Session] = {
            "tumbling": Tumbling(10),
            "sliding": Sliding(10, slide=1),
            "session": Session(5),
        }
        return declared[self.windows]


CASES = [
    Case(windows, keys, late)
    for late in (False, True)
    for windows in ("tumbling", "sliding", "session")
    for keys in (10_000, 1_000_000)
]


@dataclass(frozen=True)
class Sent:
    """A filled topic, and its records."""

    topic: str
    columns: pa.Table


def records_of(case: Case, records: int) -> pa.Table:
    """The records of a case, in order of arrival."""
    random = np.random.default_rng(7)
    late_ms = np.where(random.random(records) < 0.05, random.integers(0, 20_000, records), 0)
    at = BEGIN_MS + np.arange(records) * SPAN_MS // records - random.integers(0, DELAY_MS, records)
    return pa.table(
        {
            "auction_id": pa.array(random.integers(0, case.keys, records)),
            "price": pa.array(random.integers(1, 1000, records)),
            "at": pa.array(at - late_ms if case.late else at),
        }
    )


def check(case: Case, sent: Sent, found: pa.Table, who: str) -> None:
    """Check that every complete window was emitted, and nothing else.

    Windows that the watermark may not have passed may be missing. Without late records each window is emitted
    once. With them the last result of a window counts, and earlier ones have a part of an expected window: a
    late record may merge two sessions that were emitted. A firing of a window is emitted once.

    Raises:
        RunError: A window is missing, wrong, unexpected or there twice.
    """
    records = sent.columns
    at = records["at"].to_numpy()
    last_ms = min(at[partition::PARTITIONS].max() for partition in range(PARTITIONS)) - DELAY_MS - 5000
    with duckdb.connect() as database:
        database.register("records", records)
        database.register("found", found.append_column("place", pa.array(np.arange(len(found)))))
        database.execute(
            f"CREATE TABLE expected AS {_SESSIONS if case.windows == 'session' else _aligned(case)}"
        )
        database.execute(_FOUND)
        complete = f"SELECT * FROM expected WHERE end_ms < {last_ms}"  # noqa: S608
        ((windows,),) = database.execute(f"SELECT count(*) FROM ({complete})").fetchall()  # noqa: S608
        counted = (
            {"missing or wrong": f"({complete}) EXCEPT {_LAST}", **_OF_LATE}
            if case.late
            else {
                "missing or wrong": f"({complete}) EXCEPT ALL {_EMITTED}",
                "unexpected, wrong or repeated": f"{_EMITTED} EXCEPT ALL FROM expected",
            }
        )
        wrong = {
            what: database.execute(f"SELECT count(*) FROM ({rows})").fetchall()[0][0]  # noqa: S608
            for what, rows in counted.items()
        }
    if any(wrong.values()) or not windows:
        found_wrong = ", ".join(f"{number:,} {what}" for what, number in wrong.items())
        msg = f"{case.name}: of {windows:,} windows {who} has {found_wrong}"
        raise RunError(msg)


def _aligned(case: Case) -> str:
    slide = 10_000 if case.windows == "tumbling" else 1000
    windows = f'"at" // {slide} * {slide} - unnest(range(0, 10000, {slide}))'
    return f"""
        SELECT auction_id, first_ms, first_ms + 10000 AS end_ms, sum(price) AS total, count(*) AS n
        FROM (SELECT auction_id, price, {windows} AS first_ms FROM records) GROUP BY ALL
    """  # noqa: S608 - our own numbers


_SESSIONS = """
    SELECT auction_id, min("at") AS first_ms, max("at") + 5000 AS end_ms, sum(price) AS total, count(*) AS n
    FROM (
        SELECT *, count_if(begins) OVER (PARTITION BY auction_id ORDER BY "at") AS number
        FROM (
            SELECT *, "at" - lag("at", 1, "at") OVER (PARTITION BY auction_id ORDER BY "at") > 5000 AS begins
            FROM records
        )
    )
    GROUP BY auction_id, number
"""
_FOUND = """
    CREATE TABLE emitted AS
    SELECT auction_id, epoch_ms(window_start) AS first_ms, epoch_ms(window_end) AS end_ms, total, n,
        firing, place
    FROM found
"""
_EMITTED = "(SELECT auction_id, first_ms, end_ms, total, n FROM emitted)"
_LAST = """(
    SELECT auction_id, first_ms, end_ms,
        last(total ORDER BY firing NULLS FIRST, place), last(n ORDER BY firing NULLS FIRST, place)
    FROM emitted GROUP BY auction_id, first_ms, end_ms
)"""
_OF_LATE = {
    "of no expected window, or with more than it": """
        FROM emitted ASOF LEFT JOIN expected
        ON emitted.auction_id = expected.auction_id AND emitted.first_ms >= expected.first_ms
        WHERE (
            emitted.end_ms <= expected.end_ms AND emitted.n <= expected.n AND emitted.total <= expected.total
        ) IS NOT TRUE
    """,
    "repeated": """
        SELECT 1 FROM emitted WHERE firing IS NOT NULL
        GROUP BY auction_id, first_ms, end_ms, firing HAVING count(*) > 1
    """,
}
