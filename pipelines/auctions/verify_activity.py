"""Verification of the flow `activity` by DuckDB, from the bids that were sent and the output topics.

A late bid is in no window. Which bids are late depends on the batches, so both topics are compared together.
Windows that event time had not passed at the end are in neither: the bids say how far it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.auctions.verify import Comparison, compare_rows, query_tables, rows_from_json, with_position

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
from parts where end_ms <= $until_ms group by part
"""
_EXPECTED_SQL: Final = """
select auction_id || ' to ' || (bid_time_ms // 10000 * 10000 + 10000) as part, count(*) as bids,
       max(price) as highest
from sent where bid_time_ms // 10000 * 10000 + 10000 <= $until_ms group by part
"""
_BIDDERS_SQL: Final = "select bidder, count(*) as bids, max(price) as highest from sent group by bidder"
_LATEST_SQL: Final = """
select bidder, arg_max_null(bids, position) as bids, arg_max_null(highest, position) as highest
from updates group by bidder
"""
_WINDOW_MS: Final = 10_000
_WAITS_MS: Final = 1_000
"""How long the flow's watermark waits for late bids."""
_APART_MS: Final = 1_000
"""How far the newest bids of two partitions are apart at most."""


def compare_activity(sent: pa.Table, windows: Sequence[bytes], late: Sequence[bytes]) -> Comparison:
    """Compare each window that was emitted or must have been, with the late bids that belong to it.

    Args:
        sent: All bids that were sent.
        windows: The values in the topic of results; each window once.
        late: The values in the topic of late bids.
    """
    emitted = rows_from_json(windows, pa.schema(_WINDOW | _TOTALS))
    tables = {"windows": emitted, "late": rows_from_json(late, pa.schema(_LATE)), "sent": sent}
    reached_ms = pc.max(sent["bid_time_ms"]).as_py() - _WAITS_MS - _APART_MS
    ends_ms = pc.cast(pc.cast(emitted["window_end"], pa.timestamp("ms")), pa.int64())
    until = {"until_ms": max(reached_ms // _WINDOW_MS * _WINDOW_MS, pc.max(ends_ms).as_py() or 0)}
    schema = pa.schema(_PART | _TOTALS)
    expected, received = (
        query_tables(sql, until, **tables).cast(schema) for sql in (_EXPECTED_SQL, _RECEIVED_SQL)
    )
    return compare_rows(expected, received, schema)


def compare_bidders(sent: pa.Table, updates: Sequence[bytes]) -> Comparison:
    """Compare the last totals of each bidder.

    Args:
        sent: All bids that were sent.
        updates: The values in the topic of totals, in its order for each bidder.
    """
    schema = pa.schema(_BIDDER | _TOTALS)
    latest = query_tables(_LATEST_SQL, updates=with_position(rows_from_json(updates, schema)))
    return compare_rows(query_tables(_BIDDERS_SQL, sent=sent).cast(schema), latest.cast(schema), schema)
