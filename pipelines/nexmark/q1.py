"""Currency conversion: the price of every bid in euros. See q1.sql."""

from flowcore import Flow
from pipelines.nexmark.events import BIDS, result_topic

flow = Flow("nexmark_q1")
bids = flow.read("bids", BIDS)
euros = bids.select("auction", "bidder", "0.908D * price AS price", "date_time", "extra")
euros.write("q1", result_topic("q1"))
