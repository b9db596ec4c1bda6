"""Verification of the reference flow's results by an independent computation in DuckDB.

DuckDB computes the expected results from the same history and bids, without code of the flow, and compares
them with the content of the output topics. Numbers may differ by a relative ``TOLERANCE``, since two engines
may add in different orders.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = [
    "ENRICHED",
    "HIGHEST",
    "Comparison",
    "compare_enriched",
    "compare_highest",
    "compare_rows",
    "expected_enriched",
    "expected_highest",
    "query_tables",
    "rows_from_json",
    "with_position",
]

TOLERANCE: Final = 1e-9

_ENRICHED_TYPES: dict[str, pa.DataType] = {
    "bid_id": pa.int64(),
    "auction_id": pa.int64(),
    "bidder": pa.int64(),
    "price": pa.float64(),
    "category": pa.int64(),
    "seller": pa.int64(),
    "sold": pa.int64(),
    "ratio": pa.float64(),
}
_HIGHEST_TYPES: dict[str, pa.DataType] = {"auction_id": pa.int64(), "highest": pa.float64()}
ENRICHED: Final = pa.schema(_ENRICHED_TYPES)
HIGHEST: Final = pa.schema(_HIGHEST_TYPES)

_ENRICHED_SQL = """
with sellers as (
    select a.seller, count(distinct a.auction_id) as sold, median(b.price) as median
    from auctions a join past_bids b on a.auction_id = b.auction_id
    group by a.seller
)
select l.bid_id, l.auction_id, l.bidder, l.price,
       case when s.seller is not null then a.category end as category,
       s.seller, s.sold, l.price / s.median as ratio
from live_bids l
left join auctions a on l.auction_id = a.auction_id
left join sellers s on a.seller = s.seller
"""

_HIGHEST_SQL = "select auction_id, max(price) as highest from live_bids group by auction_id"

# An expected row is right if it arrived and all its copies are right. It is missing if no copy arrived.
_COMPARE_SQL = """
with arrived as (
    select {key}, count(*) as copies, bool_and(coalesce(right_copy, false)) as right_row,
           bool_or(right_copy is null) as unexpected
    from (
        select r.{key}, case when e.{key} is not null then {same} end as right_copy
        from received r left join expected e on r.{key} = e.{key}
    )
    group by {key}
),
joined as (
    select count(*) as rows_in, count(*) filter (a.right_row) as good,
           count(*) filter (a.copies is null) as missing,
           count(*) filter (not a.right_row) as wrong
    from expected e left join arrived a on e.{key} = a.{key}
)
select rows_in, good, missing, wrong,
       (select coalesce(sum(copies - 1), 0) from arrived where not unexpected)::bigint,
       (select coalesce(sum(copies), 0) from arrived where unexpected)::bigint
from joined
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences of received and expected rows: ``rows_in == joined + missing + wrong``.

    Args:
        rows_in: Expected rows.
        joined: Expected rows that arrived with right values in every copy.
        missing: Expected rows that did not arrive.
        wrong: Expected rows of which a copy has a wrong value.
        duplicates: Copies of expected rows beyond the first, which a restarted query may write.
        unexpected: Rows with an unexpected key.
    """

    rows_in: int
    joined: int
    missing: int
    wrong: int
    duplicates: int
    unexpected: int

    @property
    def nothing_lost_or_wrong(self) -> bool:
        """Whether exactly the expected rows arrived with right values; copies are allowed."""
        return self.missing == self.wrong == self.unexpected == 0

    @property
    def exact(self) -> bool:
        """Whether exactly the expected rows arrived, once and with right values."""
        return self.nothing_lost_or_wrong and self.duplicates == 0


def expected_enriched(history: Path, bids: pa.Table) -> pa.Table:
    """Compute the flow's output for each live bid, in the columns of ``ENRICHED``.

    Args:
        history: Folder from ``history.write_history``.
        bids: The live bids that were sent.
    """
    return query_tables(
        _ENRICHED_SQL,
        live_bids=bids,
        auctions=_parquet(history / "auctions"),
        past_bids=_parquet(history / "bids"),
    ).cast(ENRICHED)


def expected_highest(bids: pa.Table) -> pa.Table:
    """Compute the highest price of each auction, in the columns of ``HIGHEST``."""
    return query_tables(_HIGHEST_SQL, live_bids=bids).cast(HIGHEST)


def compare_enriched(expected: pa.Table, received: pa.Table) -> Comparison:
    """Compare enriched bids, which may arrive in any order.

    Args:
        expected: From ``expected_enriched``.
        received: The output, with at least the columns of ``ENRICHED``.
    """
    return compare_rows(expected, received, ENRICHED)


def compare_highest(expected: pa.Table, received: pa.Table) -> Comparison:
    """Compare the last price of each auction; earlier prices are ignored.

    Args:
        expected: From ``expected_highest``.
        received: All updates, in the order of the topic for each auction.
    """
    last = query_tables(
        "select auction_id, arg_max_null(highest, position) as highest from updates group by auction_id",
        updates=with_position(received.select(HIGHEST.names)),
    )
    return compare_rows(expected, last, HIGHEST)


def rows_from_json(values: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """Parse one JSON object from each value; missing members are null.

    >>> rows_from_json([b'{"auction_id":7}'], HIGHEST).to_pylist()
    [{'auction_id': 7, 'highest': None}]

    Args:
        values: Kafka values of the flow (Spark omits null fields).
        schema: The columns of the result; other members are ignored.
    """
    if not values:
        return schema.empty_table()
    options = pa.json.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior="ignore", newlines_in_values=False
    )
    table = pa.json.read_json(BytesIO(b"\n".join(values)), parse_options=options)
    return table.select(schema.names)


def compare_rows(expected: pa.Table, received: pa.Table, schema: pa.Schema) -> Comparison:
    """Compare rows by the first column of the schema, which is their key."""
    key, *others = schema.names
    same = " and ".join(
        f"(e.{name} is not distinct from r.{name} or coalesce(abs(e.{name} - r.{name})"
        f" <= {TOLERANCE} * greatest(abs(e.{name}), abs(r.{name})), false))"
        if pa.types.is_floating(schema.field(name).type)
        else f"e.{name} is not distinct from r.{name}"
        for name in others
    )
    counts = query_tables(
        _COMPARE_SQL.format(key=key, same=same),
        expected=expected,
        received=received.select(schema.names),
    )
    return Comparison(*(column[0].as_py() for column in counts.columns))


def query_tables(sql: str, parameters: dict[str, Any] | None = None, **tables: Any) -> pa.Table:
    """Return what DuckDB answers over tables, and over views that are given as text."""
    with duckdb.connect() as connection:
        for name, table in tables.items():
            if isinstance(table, str):
                connection.execute(f"create view {name} as from {table}")
            else:
                connection.register(name, table)
        result: pa.Table = connection.sql(sql, params=parameters).to_arrow_table()
        return result


def _parquet(folder: Path) -> str:
    quoted = str(folder / "*.parquet").replace("'", "''")
    return f"read_parquet('{quoted}')"


def with_position(table: pa.Table) -> pa.Table:
    """The rows with their numbers, in the column ``position``."""
    return table.append_column("position", pa.array(np.arange(table.num_rows)))
