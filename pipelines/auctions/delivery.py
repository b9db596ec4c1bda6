"""Verification that each live bid was delivered, joined with the version of history that its record names.

A stream that joins refreshed results and restarts after crashes may write a bid more than once, and with a
newer version. Then the ``flowcore-id`` is the same, and no older version follows a newer one. `verify`
computes the expected rows for each version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa

from pipelines.auctions.readers import read_messages
from pipelines.auctions.verify import ENRICHED, compare_enriched, expected_enriched, rows_from_json

if TYPE_CHECKING:
    from confluent_kafka import Message

__all__ = ["DELIVERED", "Delivery", "check_delivery", "read_delivered"]

DELIVERED: Final = pa.schema(
    [
        *ENRICHED,
        pa.field("flowcore_id", pa.string()),
        pa.field("version", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("place", pa.int64()),
    ]
)
"""Columns of enriched bids from a topic; ``place`` is the offset."""

_COUNTS_SQL = """
with written as (select d.*, v.number from delivered d left join versions v on d.version = v.version),
     running as (
         select number, max(number) over (partition by partition order by place) as newest from written
     )
select (select count(distinct bid_id) from delivered) as delivered,
       (select count(*) from bids b anti join delivered d on b.bid_id = d.bid_id) as missing,
       (select count(*) from delivered d anti join bids b on b.bid_id = d.bid_id) as unexpected,
       (select count(*) from delivered where flowcore_id is null) as without_id,
       (select count(*) from (
            select 1 from delivered group by bid_id having count(distinct flowcore_id) > 1
        )) as under_several_ids,
       (select count(*) from (
            select 1 from delivered group by flowcore_id having count(distinct bid_id) > 1
        )) as shared_ids,
       (select count(*) from written where number is null) as of_unknown_version,
       (select count(*) from running where number < newest) as stale
"""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Comparison of a stream's output with the expected output.

    Args:
        bids: Number of sent bids.
        records: Number of output records.
        delivered: Bids with at least one record.
        missing: Bids without a record.
        unexpected: Records of bids that were not sent.
        without_id: Records without a ``flowcore-id``.
        under_several_ids: Bids with several records that have different ids.
        shared_ids: Ids of more than one bid.
        of_unknown_version: Records with a version that never existed.
        stale: Records with an older version than an earlier record of their partition.
        wrong: Bids with a record that differs from the result for its version.
        by_version: Number of records by version, oldest first.
    """

    bids: int
    records: int
    delivered: int
    missing: int
    unexpected: int
    without_id: int
    under_several_ids: int
    shared_ids: int
    of_unknown_version: int
    stale: int
    wrong: int
    by_version: Mapping[str, int]

    @property
    def repeats(self) -> int:
        """Records beyond the first of their bid; they are allowed if they have its id."""
        return self.records - self.delivered

    @property
    def complete_and_right(self) -> bool:
        """Whether every bid was delivered with right values for its version, and repeats have one id."""
        faults = (self.missing, self.unexpected, self.wrong, self.stale, self.of_unknown_version)
        return not any((*faults, self.without_id, self.under_several_ids, self.shared_ids))


def check_delivery(bids: pa.Table, records: pa.Table, histories: Mapping[str, Path]) -> Delivery:
    """Compare output records with the expected results for each version of history.

    Args:
        bids: The sent live bids.
        records: The output, in the columns of `DELIVERED`.
        histories: The folder of the history of each version, oldest first.
    """
    names = list(histories)
    versions = pa.table({"version": pa.array(names, pa.string()), "number": pa.array(range(len(names)))})
    with duckdb.connect() as connection:
        for name, table in {"bids": bids, "delivered": records, "versions": versions}.items():
            connection.register(name, table)
        counts = connection.sql(_COUNTS_SQL).to_arrow_table().to_pylist()[0]
        wrong, by_version = 0, {}
        for version, history in histories.items():
            records_of = _where(connection, "select * from delivered where version = $1", version)
            sent = "select * from bids semi join (from delivered where version = $1) d using (bid_id)"
            expected = expected_enriched(history, _where(connection, sent, version))
            found = compare_enriched(expected, records_of)
            wrong, by_version[version] = wrong + found.wrong, records_of.num_rows
    return Delivery(
        bids=bids.num_rows, records=records.num_rows, wrong=wrong, by_version=by_version, **counts
    )


def read_delivered(bootstrap_servers: str, topic: str) -> pa.Table:
    """Read all enriched bids of a topic, in the columns of `DELIVERED`.

    Raises:
        BrokerError: The broker cannot be reached, or has no such topic.
    """
    chunks = [_to_rows(messages) for messages in read_messages(bootstrap_servers, topic)]
    return pa.concat_tables(chunks) if chunks else DELIVERED.empty_table()


def _to_rows(messages: list[Message]) -> pa.Table:
    table = rows_from_json([message.value() or b"" for message in messages], ENRICHED)
    headers: list[Mapping[str, Any]] = [dict(message.headers() or ()) for message in messages]
    more: dict[str, list[Any]] = {
        "flowcore_id": [_text(each.get("flowcore-id")) for each in headers],
        "version": [_text(each.get("flowcore-bounded-version")) for each in headers],
        "partition": [message.partition() for message in messages],
        "place": [message.offset() for message in messages],
    }
    for name, values in more.items():
        kind: Any = DELIVERED.field(name).type
        table = table.append_column(name, pa.array(values, kind))
    return table


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _where(connection: duckdb.DuckDBPyConnection, sql: str, version: str) -> pa.Table:
    found: pa.Table = connection.sql(sql, params=[version]).to_arrow_table()
    return found
