"""The statistics that the queries of days and channels share: of all bids, and of three ranges of price."""

from typing import Any, Final

__all__ = ["RANK", "STATISTICS"]

RANK: Final = "1 + int(price >= 10000) + int(price >= 1000000)"

_OF_RANK: Final = {
    f"rank{rank}_{name}": aggregate.format(rank=rank)
    for name, aggregate in {
        "bids": "count_if(rank = {rank})",
        "bidders": "count(distinct if(rank = {rank}, bidder, null))",
        "auctions": "count(distinct if(rank = {rank}, auction, null))",
    }.items()
    for rank in (1, 2, 3)
}
STATISTICS: Final[dict[str, Any]] = {
    "total_bids": "count(*)",
    "total_bidders": "count(distinct bidder)",
    "total_auctions": "count(distinct auction)",
    **_OF_RANK,
}
