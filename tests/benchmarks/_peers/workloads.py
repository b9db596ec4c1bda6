"""Workloads of the comparison with other engines: their records, and the check of what an engine wrote.

Each record has a key as text, and a JSON object as value. The last records of the topic of windows are one of
each key, a day later, since some engines close a window of a key only when that key has a later record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
from confluent_kafka import Message

__all__ = [
    "KEYS",
    "MATCHED",
    "PARTITIONS",
    "WORKLOADS",
    "Answer",
    "Workload",
    "bids_of",
    "read_outputs",
    "write_auctions",
]

PARTITIONS = 2
KEYS, RECORDS_OF_A_KEY = 10_000, 20
MATCHED = 0.9
"""The share of auctions that the bounded table has."""
BEGIN_MS, SPAN_MS, DAY_MS = 1_700_000_000_000, 100_000, 86_400_000
WINDOW_MS, DELAY_MS = 10_000, 1_500

_APPENDED = "appended_ms"


@dataclass(frozen=True, slots=True)
class Answer:
    """What an engine has written.

    Attributes:
        outputs: How many records.
        missing: Expected results that are not there (yet).
        wrong: Records that should not be there: other values, repeats, unknown keys.
        first_ms: When the broker appended the first record.
        last_ms: When it appended the last one that belongs to the answer.
    """

    outputs: int
    missing: int
    wrong: int
    first_ms: int
    last_ms: int

    @property
    def right(self) -> bool:
        """Whether the answer is complete and has nothing else."""
        return not self.missing and not self.wrong


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload.

    Attributes:
        what: What the engines do.
        expected: SQL of the right results over the tables ``records`` and ``auctions``, and which are needed.
        found: SQL of the results in ``outputs``, how often each is there, and when it was appended.
    """

    name: str
    what: str
    expected: str
    found: str

    def records(self, count: int) -> pa.Table:
        """The records of the topic, in order."""
        keys = min(KEYS, max(count // RECORDS_OF_A_KEY, 1))
        random = np.random.default_rng(7)
        if self.name in {"join", "latency"}:
            return bids_of(np.arange(count))
        key = random.integers(0, keys, count)
        if self.name == "sum":
            return _table(number=np.arange(count), key=key, value=random.integers(1, 100, count))
        at = BEGIN_MS + np.arange(count) * SPAN_MS // count - random.integers(0, DELAY_MS, count)
        closing = np.arange(keys)
        return _table(
            key=np.concatenate([key, closing]),
            at=np.concatenate([at, np.full(keys, BEGIN_MS + DAY_MS)]),
        )

    def check(self, records: pa.Table, auctions: Path, outputs: pa.Table) -> Answer:
        """Compare the outputs of an engine with what DuckDB computes from the records."""
        with duckdb.connect() as database:
            database.register("records", records)
            database.register("auctions", pyarrow.csv.read_csv(auctions))
            database.register("outputs", outputs)
            database.execute(f"CREATE TABLE expected AS {self.expected}")
            database.execute(f"CREATE TABLE found AS {self.found}")
            missing, wrong, last_ms = database.execute(_COMPARED).fetchall()[0]
        first_ms = pa.compute.min(outputs[_APPENDED]).as_py()
        return Answer(outputs.num_rows, missing, wrong, first_ms or 0, last_ms or 0)


# Only results that are needed may not be missing.
_COMPARED = """
    WITH compared AS (
        SELECT e.result AS expected, e.needed, f.result AS found, f.appended_ms, f.copies
        FROM expected e FULL JOIN found f ON e.result = f.result
    )
    SELECT
        count(*) FILTER (needed AND found IS NULL),
        count(*) FILTER (expected IS NULL OR copies > 1),
        max(appended_ms) FILTER (expected IS NOT NULL)
    FROM compared
"""
_EACH = "count(*) AS copies, max(appended_ms) AS appended_ms FROM outputs GROUP BY ALL"
_JOINED = """
    SELECT row(r.bid, r.key, a.category) AS result, true AS needed
    FROM records r JOIN auctions a ON r.key = a.key
"""
_ENRICHED = f"SELECT row(bid, key, category) AS result, {_EACH}"
_SUMS = """
    SELECT
        row(key, (sum(value) OVER so_far)::BIGINT) AS result,
        lead(key) OVER (PARTITION BY key ORDER BY number) IS NULL AS needed
    FROM records WINDOW so_far AS (PARTITION BY key ORDER BY number)
"""
# A sum that is not larger than the one before it replaces a newer one: it counts as a repeat.
_TOTALS = """
    SELECT
        row(key, total) AS result,
        count(*) + count_if(total <= before) AS copies,
        max(appended_ms) AS appended_ms
    FROM (SELECT *, lag(total) OVER (PARTITION BY key ORDER BY place) AS before FROM outputs)
    GROUP BY ALL
"""
_COUNTS = f"""
    SELECT row(key, "at" // {WINDOW_MS} * {WINDOW_MS}, count(*)) AS result, true AS needed
    FROM records WHERE "at" < {BEGIN_MS + DAY_MS} GROUP BY key, "at" // {WINDOW_MS}
"""
_WINDOWS = f"SELECT row(key, window_start, n) AS result, {_EACH}"

WORKLOADS = {
    each.name: each
    for each in (
        Workload(
            "join", "bids joined with a bounded table that has 90 % of their auctions", _JOINED, _ENRICHED
        ),
        Workload(
            "sum", "the running sum of each key, of which only the last must be written", _SUMS, _TOTALS
        ),
        Workload(
            "windows", "records of each key in each 10 s of event time, 1.5 s out of order", _COUNTS, _WINDOWS
        ),
        Workload("latency", "the same join, of bids that arrive at random moments", _JOINED, _ENRICHED),
    )
}


def bids_of(ids: npt.NDArray[np.int64]) -> pa.Table:
    """The bids with these ids."""
    # Pathway reserves the name id. A multiplication spreads the keys, so that a feed can begin anywhere.
    return _table(bid=ids, key=ids * 2_654_435_761 % 2**32 % KEYS)


def write_auctions(file: Path) -> None:
    """Write the bounded table: the category of each auction."""
    keys = np.arange(int(KEYS * MATCHED))
    pyarrow.csv.write_csv(_table(key=keys, category=keys % 10), file)


def read_outputs(parts: Iterable[Sequence[Message]]) -> pa.Table:
    """The outputs as a table of integers, with the time at which the broker appended each, and its place."""
    tables = []
    for messages in parts:
        lines = b"\n".join(message.value() or b"{}" for message in messages)
        table = pyarrow.json.read_json(BytesIO(lines))
        times = pa.array([message.timestamp()[1] for message in messages], pa.int64())
        places = pa.array([message.offset() for message in messages], pa.int64())
        table = table.append_column(_APPENDED, times).append_column("place", places)
        if (
            "diff" in table.column_names
        ):  # Pathway takes the earlier row of a key back before it writes another
            table = table.filter(pa.compute.greater(table["diff"], pa.scalar(0)))
        tables.append(table)
    if not tables:
        return pa.table({_APPENDED: pa.array([], pa.int64())})
    return pa.concat_tables([_with_integers(table) for table in tables], promote_options="default")


def _table(**columns: npt.NDArray[np.int64]) -> pa.Table:
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


def _with_integers(table: pa.Table) -> pa.Table:
    """The start of a window is milliseconds, or a text or a time as engines write them."""
    if "window_start" not in table.column_names:
        return table
    number = table.column_names.index("window_start")
    start = table.column(number)
    if not pa.types.is_integer(start.type):
        with duckdb.connect() as database:
            database.register("outputs", table)
            starts = database.execute("SELECT epoch_ms(window_start::TIMESTAMP) AS start FROM outputs")
            start = pa.chunked_array([starts.fetchnumpy()["start"]])
    return table.set_column(number, "window_start", start)
