"""Expanded bids: each bid joined with its auction, for auctions of category 10. See q20.sql."""

from flowcore import Flow
from pipelines.nexmark.events import AUCTIONS, BIDS, result_topic

flow = Flow("nexmark_q20")
bids = flow.read("bids", BIDS).select("auction", "bidder", "price", "channel", "url", "date_time")
auctions = flow.read("auctions", AUCTIONS).where("category = 10")
auction_columns = auctions.select(
    "id AS auction", "initial_bid", "reserve", "date_time AS opened", "expires", "seller", "category"
)
bids.join(auction_columns, on="auction", ttl=None).write("q20", result_topic("q20"))
