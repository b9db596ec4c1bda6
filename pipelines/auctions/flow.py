"""The reference flow: live bids of an online auction, joined with the sales history of their seller."""

from __future__ import annotations

from flowcore import Flow, KafkaTopic, Parquet

__all__ = ["flow"]

AUCTION = """auction_id BIGINT, seller BIGINT, category BIGINT, initial_bid DOUBLE, reserve DOUBLE,
             opened_ms BIGINT, expires_ms BIGINT"""
PAST_BID = "bid_id BIGINT, auction_id BIGINT, bidder BIGINT, price DOUBLE, bid_time_ms BIGINT"
LIVE_BID = f"{PAST_BID}, sent_us BIGINT"

flow = Flow("auctions")

# The history is bounded: its result is complete when all of it was read.
auctions = flow.read("auctions", Parquet("history/auctions", schema=AUCTION))
past_bids = flow.read("past_bids", Parquet("history/bids", schema=PAST_BID))

sellers = auctions.join(past_bids, on="auction_id").aggregate(
    by="seller", sold="count(distinct auction_id)", median="median(price)", name="sellers"
)
catalog = auctions.join(sellers, on="seller").select(
    "auction_id", "category", "seller", "sold", "median", name="catalog"
)

# The stream is unbounded: each bid is emitted at once.
bids = flow.read("bids", KafkaTopic("bids", schema=LIVE_BID))
enriched = bids.join(catalog, on="auction_id", how="left").select(
    "bid_id", "auction_id", "bidder", "price", "category", "seller", "sold",
    "price / median as ratio", "sent_us",
)  # fmt: skip
highest = enriched.aggregate(by="auction_id", highest="max(price)")

enriched.write("enriched", KafkaTopic("enriched-bids"))
highest.write("highest", KafkaTopic("highest-bids"))
