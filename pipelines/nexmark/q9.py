"""Winning bids: the highest bid of each auction while it was open. See q9.sql."""

from flowcore import Flow
from pipelines.nexmark.events import AUCTIONS, BIDS, result_topic

flow = Flow("nexmark_q9")
bids = flow.read("bids", BIDS).select("auction", "bidder", "price", "date_time", "extra AS bid_extra")
auctions = flow.read("auctions", AUCTIONS).select(
    "id AS auction", "item_name", "description", "initial_bid", "reserve", "date_time AS opened", "expires",
    "seller", "category", "extra AS auction_extra",
)  # fmt: skip
in_time = bids.join(auctions, on="auction", ttl=None).where("date_time BETWEEN opened AND expires")
winning = in_time.top_n(1, by="auction", order=("price desc", "date_time"))
winning.write("q9", result_topic("q9"))
