"""Check of Nexmark's queries: what the flows wrote to Kafka, against DuckDB's answers over the same events.

The SQL text of a query is in the file beside its flow. It reads the tables `person`, `auction` and `bid`.
Their column `ts` is `date_time` as a timestamp, and `arrival` is the place among the events of the table.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import duckdb
import numpy as np
import pyarrow as pa
from confluent_kafka import Message
from pyarrow.dataset import dataset, partitioning

from flowcore import Flow
from pipelines.auctions.readers import read_messages
from pipelines.auctions.verify import rows_from_json
from pipelines.nexmark.events import Tables, result_topic

__all__ = [
    "BY_CLOCK",
    "QUERIES",
    "Answer",
    "check_answer",
    "check_folder",
    "check_messages",
    "compare_answer",
    "load_query",
]

_FOLDER: Final = Path(__file__).parent
QUERIES: Final = tuple(
    sorted((path.stem for path in _FOLDER.glob("q*.sql")), key=lambda name: int(name.removeprefix("q")))
)
"""The names of all queries, by number."""

BY_CLOCK: Final = frozenset({"q12"})
"""The queries in which processing time decides which rows there are; their sums are compared."""

_COMPARED: Final = """
WITH results AS (SELECT DISTINCT * FROM received),
    found AS ({found})
SELECT (SELECT count(*) FROM answer),
    (SELECT count(*) FROM (FROM answer EXCEPT ALL FROM found)),
    (SELECT count(*) FROM (FROM found EXCEPT ALL FROM answer)),
    (SELECT count(*) FROM received) - (SELECT count(*) FROM results),
    (SELECT count(*) - count(DISTINCT record_id) FROM results)
"""
_COMPLETE: Final = "window_end <= (SELECT max(ts) FROM bid)"
_ROWS: Final = "SELECT * EXCLUDE record_id FROM results"
# A bidder with a window that is not ten aligned seconds, or that is there twice, has no sum.
_SUMS: Final = """
SELECT bidder, sum(bid_count)::BIGINT AS bid_count
FROM results
GROUP BY bidder
HAVING count(*) = count(DISTINCT window_start)
    AND bool_and(epoch_us(window_start) % 10000000 = 0 AND window_end = window_start + INTERVAL 10 SECONDS)
"""
_WINDOW: Final = [(f"window_{name}", pa.timestamp("us")) for name in ("start", "end")]


@dataclass(frozen=True, slots=True)
class Answer:
    """Differences of a query's results and DuckDB's.

    Attributes:
        rows: Rows of DuckDB.
        missing: Rows of DuckDB that the query did not write.
        unexpected: Rows that the query wrote and DuckDB does not have.
        repeats: Records that were written again with the same ``flowcore-id`` and the same value.
        altered: Records with the ``flowcore-id`` of another one and a different value.
    """

    rows: int
    missing: int
    unexpected: int
    repeats: int
    altered: int

    @property
    def right(self) -> bool:
        """Whether exactly DuckDB's rows were written, each under one id; repeats are allowed."""
        return self.rows > 0 and self.missing == self.unexpected == self.altered == 0


def load_query(name: str) -> Flow:
    """The flow of a query, for instance of ``q5``."""
    flow: Flow = importlib.import_module(f"pipelines.nexmark.{name}").flow
    return flow


def check_answer(query: str, events: Tables, servers: str, since: Mapping[int, int] | None = None) -> Answer:
    """Compare the content of a query's result topic with DuckDB's answer; of results that change, the last.

    Args:
        query: Its name, for instance ``q5``.
        events: All rows in the topics that it reads.
        servers: Address of the broker.
        since: The first offset to compare, by partition. Default: the beginning.

    Raises:
        BrokerError: The broker cannot be reached, or stops answering.
    """
    return check_messages(query, events, read_messages(servers, result_topic(query).name, since))


def check_messages(
    query: str, events: Tables, messages: Iterable[Sequence[Message]], *, rival: bool = False
) -> Answer:
    """Compare messages, in the order of each partition, with DuckDB's answer; of changing results, the last.

    Args:
        rival: Another engine has written them: without ids, and with the windows that the end of its input
            has completed, which are left out.
    """
    if any(sink.updating for sink in load_query(query).sinks):  # a later result replaces one of its key
        latest = {message.key(): message for part in messages for message in part}
        messages = [[message for message in latest.values() if message.value() is not None]]
    identified = _placed if rival else _identified
    results = ([identified(each) for each in part] for part in messages)
    return compare_answer(query, events, results, only_complete=rival)


def compare_answer(
    query: str,
    events: Tables,
    results: Iterable[Sequence[tuple[bytes, bytes]]],
    *,
    only_complete: bool = False,
) -> Answer:
    """Compare results, the ``flowcore-id`` and the value of each record, with DuckDB's answer.

    Windows that the last events did not complete are left out, of the results only if ``only_complete``.
    """
    with _answer(query, events) as database:
        schema = database.sql("FROM answer LIMIT 0").to_arrow_table().schema
        if query in BY_CLOCK:
            schema = pa.schema([*schema, *_WINDOW])
        received = pa.concat_tables([_rows((), schema), *(_rows(part, schema) for part in results)])
        if only_complete and "window_end" in schema.names:
            received = database.sql(f"FROM received WHERE {_COMPLETE}").to_arrow_table()
        return _compared(database, received, _SUMS if query in BY_CLOCK else _ROWS)


def check_folder(query: str, events: Tables, data: Path) -> Answer:
    """Compare the files of a query's sink, which are below the folder ``data``, with DuckDB's answer.

    Only the files of committed batches count: Spark's log in the folder has their names.
    """
    (sink,) = load_query(query).sinks
    files = [str(path) for path in _committed_files(data / getattr(sink.sink, "path", ""))]
    folders = partitioning(pa.schema([(name, pa.string()) for name in sink.partition_by]), flavor="hive")
    with _answer(query, events) as database:
        columns = database.sql("FROM answer LIMIT 0").columns
        found = dataset(files, partitioning=folders).to_table(columns=columns)
        ids = pa.array(np.arange(found.num_rows))
        return _compared(database, found.append_column("record_id", ids), _ROWS)


def _committed_files(folder: Path) -> set[Path]:
    """The files in the log of Spark's file sink: a line of JSON for each, after a line with the version."""
    logs = (path for path in (folder / "_spark_metadata").iterdir() if path.name[0].isdigit())
    lines = (line for path in logs for line in path.read_text().splitlines()[1:])
    return {Path(unquote(urlsplit(json.loads(line)["path"]).path)) for line in lines}


@contextmanager
def _answer(query: str, events: Tables) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database with DuckDB's answer, as the table ``answer``."""
    with duckdb.connect() as database:
        for name, table in events.items():
            arrived = table.append_column("arrival", pa.array(np.arange(table.num_rows)))
            database.register(f"{name}_events", arrived)
            timed = f"SELECT *, epoch_ms(date_time) AS ts FROM {name}_events"  # noqa: S608 - our own names
            database.execute(f"CREATE VIEW {name} AS {timed}")
        text = (_FOLDER / f"{query}.sql").read_text()
        complete = _COMPLETE if "window_end" in database.sql(text).columns else "true"
        database.execute(f"CREATE TABLE answer AS FROM ({text}) WHERE {complete}")
        yield database


def _compared(database: duckdb.DuckDBPyConnection, received: pa.Table, found: str) -> Answer:
    database.register("received", received)
    return Answer(*database.execute(_COMPARED.format(found=found)).fetchall()[0])


def _identified(message: Message) -> tuple[bytes, bytes]:
    headers: dict[str, Any] = dict(message.headers() or ())
    return headers["flowcore-id"], message.value() or b""


def _placed(message: Message) -> tuple[bytes, bytes]:
    return f"{message.partition()}@{message.offset()}".encode(), message.value() or b""


def _rows(results: Sequence[tuple[bytes, bytes]], schema: pa.Schema) -> pa.Table:
    rows = rows_from_json([value for _, value in results], schema)
    return rows.append_column("record_id", pa.array([record_id for record_id, _ in results], pa.binary()))
