"""Expanded bids: each bid joined with its auction, for auctions of category 10. See q20.sql."""

from flowcore import Flow
from pipelines.nexmark.events import AUCTIONS, BIDS, result_topic

flow = Flow("nexmark_q20")
bids = flow.read("bids", BIDS).select(
    "auction", "bidder", "price", "channel", "url", "date_time", "extra AS bid_extra"
)
auctions = flow.read("auctions", AUCTIONS).where("category = 10").select(
    "id AS auction", "item_name", "description", "initial_bid", "reserve", "date_time AS opened", "expires",
    "seller", "category", "extra AS auction_extra",
)  # fmt: skip
bids.join(auctions, on="auction", ttl=None).write("q20", result_topic("q20"))
