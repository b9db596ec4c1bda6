"""Average price of a category: the mean of the highest bids of its auctions. See q4.sql."""

from flowcore import Flow
from pipelines.nexmark.events import AUCTIONS, BIDS, result_topic

flow = Flow("nexmark_q4")
bids = flow.read("bids", BIDS).select("auction", "price", "date_time")
auctions = flow.read("auctions", AUCTIONS).select(
    "id AS auction", "category", "date_time AS opened", "expires"
)
in_time = bids.join(auctions, on="auction", ttl=None).where("date_time BETWEEN opened AND expires")
highest = in_time.aggregate(by=("auction", "category"), final="max(price)", name="highest")
averages = highest.aggregate(by="category", price="avg(final)", name="averages")
averages.write("q4", result_topic("q4"))
