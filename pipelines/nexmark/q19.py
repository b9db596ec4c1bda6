"""Top bids: the ten highest bids of each auction. See q19.sql."""

from flowcore import Flow
from pipelines.nexmark.events import BIDS, result_topic

flow = Flow("nexmark_q19")
bids = flow.read("bids", BIDS).select("auction", "bidder", "price", "channel", "url", "date_time", "extra")
top = bids.top_n(10, by="auction", order=("price desc", "date_time"))
top.write("q19", result_topic("q19"))
