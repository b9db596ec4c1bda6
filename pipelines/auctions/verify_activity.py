"""Verification of the flow `activity` by DuckDB, from the bids that were sent and the output topics.

A late bid is in no window. Which bids are late depends on the batches, so both topics are compared together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from pipelines.auctions.verify import Comparison, compare_rows, query_tables, rows_from_json

__all__ = ["compare_activity", "compare_bidders"]

_TOTALS: Final[dict[str, pa.DataType]] = {"bids": pa.int64(), "highest": pa.float64()}
_WINDOW: Final[dict[str, pa.DataType]] = {"auction_id": pa.int64(), "window_end": pa.timestamp("us")}
_LATE: Final[dict[str, pa.DataType]] = {
    "auction_id": pa.int64(), "price": pa.float64(), "bid_time_ms": pa.int64()
}  # fmt: skip
_PART: Final[dict[str, pa.DataType]] = {"part": pa.string()}
_BIDDER: Final[dict[str, pa.DataType]] = {"bidder": pa.int64()}

_RECEIVED_SQL: Final = """
with parts as (
    select auction_id, epoch_ms(window_end) as end_ms, bids, highest from windows
    union all
    select auction_id, bid_time_ms // 10000 * 10000 + 10000, 1, price from late
)
select auction_id || ' to ' || end_ms as part, sum(bids)::bigint as bids, max(highest) as highest
from parts where end_ms <= (select epoch_ms(max(window_end)) from windows) group by part
"""
_EXPECTED_SQL: Final = """
select auction_id || ' to ' || (bid_time_ms // 10000 * 10000 + 10000) as part, count(*) as bids,
       max(price) as highest
from sent
where bid_time_ms // 10000 * 10000 + 10000 <= (select epoch_ms(max(window_end)) from windows) group by part
"""
_BIDDERS_SQL: Final = "select bidder, count(*) as bids, max(price) as highest from sent group by bidder"
_LATEST_SQL: Final = "select bidder, max(bids) as bids, max(highest) as highest from updates group by bidder"


def compare_activity(sent: pa.Table, windows: Sequence[bytes], late: Sequence[bytes]) -> Comparison:
    """Compare each window that was emitted, with the late bids that belong to it.

    Args:
        sent: All bids that were sent.
        windows: The values in the topic of results; each window once.
        late: The values in the topic of late bids.
    """
    tables = {
        "windows": rows_from_json(windows, pa.schema(_WINDOW | _TOTALS)),
        "late": rows_from_json(late, pa.schema(_LATE)),
        "sent": sent,
    }
    schema = pa.schema(_PART | _TOTALS)
    expected, received = (query_tables(sql, **tables).cast(schema) for sql in (_EXPECTED_SQL, _RECEIVED_SQL))
    return compare_rows(expected, received, schema)


def compare_bidders(sent: pa.Table, updates: Sequence[bytes]) -> Comparison:
    """Compare the latest totals of each bidder, which only rise.

    Args:
        sent: All bids that were sent.
        updates: The values in the topic of totals.
    """
    schema = pa.schema(_BIDDER | _TOTALS)
    latest = query_tables(_LATEST_SQL, updates=rows_from_json(updates, schema))
    return compare_rows(query_tables(_BIDDERS_SQL, sent=sent).cast(schema), latest.cast(schema), schema)
