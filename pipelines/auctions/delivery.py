"""Did each live bid come out, joined with the version of history that its record names?

A stream that takes over fresh results and is started again after crashes may write a bid more than once, and
with a newer version than before; then its ``flowcore-id`` is the same, and no older version comes after a
newer one. `verify` says what is right for one version; here every version is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa

from pipelines.auctions.messages import messages_of
from pipelines.auctions.verify import ENRICHED, compare_enriched, expected_enriched, rows_from_json

if TYPE_CHECKING:
    from confluent_kafka import Message

__all__ = ["DELIVERED", "Delivery", "check_delivery", "delivered"]

DELIVERED: Final = pa.schema(
    [
        *ENRICHED,
        pa.field("flowcore_id", pa.string()),
        pa.field("version", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("place", pa.int64()),
    ]
)
"""Columns of enriched bids as they were read; ``partition`` and ``place`` (the offset) are the topic's."""

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
    """What came out of a stream, beside what was to.

    Args:
        bids: Bids that were sent.
        records: Records that came out.
        delivered: Bids of which at least one did.
        missing: Bids of which none did.
        unexpected: Records of bids that nobody sent.
        without_id: Records without a ``flowcore-id``.
        under_several_ids: Bids that came out more than once, and not with the same id.
        shared_ids: Ids that several bids have.
        of_unknown_version: Records that name no version that there was.
        stale: Records that name an older version than an earlier one of their partition.
        wrong: Bids of which a record differs from what the version it names says.
        by_version: Records by version, oldest first.
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
        """Records beyond the first of their bid; those with the same id are what is promised."""
        return self.records - self.delivered

    @property
    def complete_and_right(self) -> bool:
        """Every bid came out, right by the version it names; repeats have the id of the first."""
        faults = (self.missing, self.unexpected, self.wrong, self.stale, self.of_unknown_version)
        return not any((*faults, self.without_id, self.under_several_ids, self.shared_ids))


def check_delivery(bids: pa.Table, records: pa.Table, histories: Mapping[str, Path]) -> Delivery:
    """Compare what came out with what each version of history says.

    Args:
        bids: The live bids that were sent.
        records: What came out, in the columns of `DELIVERED`.
        histories: By version, oldest first, the folder of the history that it was made of.
    """
    names = list(histories)
    versions = pa.table({"version": pa.array(names, pa.string()), "number": pa.array(range(len(names)))})
    with duckdb.connect() as connection:
        for name, table in {"bids": bids, "delivered": records, "versions": versions}.items():
            connection.register(name, table)
        counts = connection.sql(_COUNTS_SQL).to_arrow_table().to_pylist()[0]
        wrong, by_version = 0, {}
        for version, history in histories.items():
            mine = _where(connection, "select * from delivered where version = $1", version)
            sent = "select * from bids semi join (from delivered where version = $1) d using (bid_id)"
            expected = expected_enriched(history, _where(connection, sent, version))
            found = compare_enriched(expected, mine)
            wrong, by_version[version] = wrong + found.wrong, mine.num_rows
    return Delivery(
        bids=bids.num_rows, records=records.num_rows, wrong=wrong, by_version=by_version, **counts
    )


def delivered(bootstrap_servers: str, topic: str) -> pa.Table:
    """Read all enriched bids that are in a topic now, in the columns of `DELIVERED`.

    Raises:
        BrokerError: The broker cannot be reached, or has no such topic.
    """
    chunks = [_rows(messages) for messages in messages_of(bootstrap_servers, topic)]
    return pa.concat_tables(chunks) if chunks else DELIVERED.empty_table()


def _rows(messages: list[Message]) -> pa.Table:
    table = rows_from_json([message.value() or b"" for message in messages], ENRICHED)
    headers: list[Mapping[str, Any]] = [dict(message.headers() or ()) for message in messages]
    beside: dict[str, list[Any]] = {
        "flowcore_id": [_text(each.get("flowcore-id")) for each in headers],
        "version": [_text(each.get("flowcore-bounded-version")) for each in headers],
        "partition": [message.partition() for message in messages],
        "place": [message.offset() for message in messages],
    }
    for name, values in beside.items():
        kind: Any = DELIVERED.field(name).type
        table = table.append_column(name, pa.array(values, kind))
    return table


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _where(connection: duckdb.DuckDBPyConnection, sql: str, version: str) -> pa.Table:
    found: pa.Table = connection.sql(sql, params=[version]).to_arrow_table()
    return found
