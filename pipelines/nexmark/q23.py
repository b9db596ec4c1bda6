"""Bids of persons who also list auctions: a join of three streams by one key. See q23.sql."""

from flowcore import Flow
from pipelines.nexmark.events import AUCTIONS, BIDS, PERSONS, result_topic

flow = Flow("nexmark_q23")
bids = flow.read("bids", BIDS).select("bidder", "price", "channel", "url", "extra AS bid_extra")
persons = flow.read("persons", PERSONS).select(
    "id AS bidder", "name", "email_address", "credit_card", "city", "state", "extra AS person_extra"
)
auctions = flow.read("auctions", AUCTIONS).select(
    "seller AS bidder", "item_name", "description", "initial_bid", "reserve", "date_time AS opened",
    "expires", "category", "extra AS auction_extra",
)  # fmt: skip
with_person = bids.join(persons, on="bidder", ttl=None)
with_person.join(auctions, on="bidder", ttl=None).write("q23", result_topic("q23"))
