"""Bids with their auctions and sellers: a join of three streams. See q23.sql."""

from flowcore import Flow
from pipelines.nexmark.events import AUCTIONS, BIDS, PERSONS, result_topic

flow = Flow("nexmark_q23")
bids = flow.read("bids", BIDS).select("auction", "bidder", "price", "channel", "url", "date_time")
auctions = flow.read("auctions", AUCTIONS).select("id AS auction", "reserve", "expires", "seller", "category")
persons = flow.read("persons", PERSONS).select("id AS seller", "name", "city", "state")
with_auction = bids.join(auctions, on="auction", ttl=None)
with_auction.join(persons, on="seller", ttl=None).write("q23", result_topic("q23"))
