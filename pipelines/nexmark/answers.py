"""Check of Nexmark's queries: what the flows wrote to Kafka, against DuckDB's answers over the same events.

The SQL text of a query is in the file beside its flow. It reads the tables `person`, `auction` and `bid`.
Their column `ts` is `date_time` as a timestamp.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
from confluent_kafka import Message

from flowcore import Flow
from pipelines.auctions.readers import read_messages
from pipelines.auctions.verify import rows_from_json
from pipelines.nexmark.events import Tables, result_topic

__all__ = ["QUERIES", "Answer", "check_answer", "compare_answer", "load_query"]

_FOLDER: Final = Path(__file__).parent
QUERIES: Final = tuple(
    sorted((path.stem for path in _FOLDER.glob("q*.sql")), key=lambda name: int(name.removeprefix("q")))
)
"""The names of all queries, by number."""

_COMPARED: Final = """
WITH results AS (SELECT DISTINCT * FROM received),
    found AS (SELECT * EXCLUDE record_id FROM results)
SELECT (SELECT count(*) FROM answer),
    (SELECT count(*) FROM (FROM answer EXCEPT ALL FROM found)),
    (SELECT count(*) FROM (FROM found EXCEPT ALL FROM answer)),
    (SELECT count(*) FROM received) - (SELECT count(*) FROM results),
    (SELECT count(*) - count(DISTINCT record_id) FROM results)
"""


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
    """Compare the content of a query's result topic with DuckDB's answer.

    Args:
        query: Its name, for instance ``q5``.
        events: All rows in the topics that it reads.
        servers: Address of the broker.
        since: The first offset to compare, by partition. Default: the beginning.

    Raises:
        BrokerError: The broker cannot be reached, or stops answering.
    """
    topic = result_topic(query).name
    results = (map(_identified, messages) for messages in read_messages(servers, topic, since))
    return compare_answer(query, events, map(list, results))


def compare_answer(query: str, events: Tables, results: Iterable[Sequence[tuple[bytes, bytes]]]) -> Answer:
    """Compare results, the ``flowcore-id`` and the value of each record, with DuckDB's answer.

    Windows that the last events did not complete are left out.
    """
    with duckdb.connect() as database:
        for name, table in events.items():
            database.register(f"{name}_events", table)
            timed = f"SELECT *, epoch_ms(date_time) AS ts FROM {name}_events"  # noqa: S608 - our own names
            database.execute(f"CREATE VIEW {name} AS {timed}")
        text = (_FOLDER / f"{query}.sql").read_text()
        columns = database.sql(text).columns
        complete = "window_end <= (SELECT max(ts) FROM bid)" if "window_end" in columns else "true"
        database.execute(f"CREATE TABLE answer AS FROM ({text}) WHERE {complete}")
        schema = database.sql("FROM answer LIMIT 0").to_arrow_table().schema
        received = pa.concat_tables([_rows((), schema), *(_rows(part, schema) for part in results)])
        database.register("received", received)
        return Answer(*database.execute(_COMPARED).fetchall()[0])


def _identified(message: Message) -> tuple[bytes, bytes]:
    headers: dict[str, Any] = dict(message.headers() or ())
    return headers["flowcore-id"], message.value() or b""


def _rows(results: Sequence[tuple[bytes, bytes]], schema: pa.Schema) -> pa.Table:
    rows = rows_from_json([value for _, value in results], schema)
    return rows.append_column("record_id", pa.array([record_id for record_id, _ in results], pa.binary()))
