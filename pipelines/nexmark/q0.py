"""Pass through: every bid. See q0.sql."""

from flowcore import Flow
from pipelines.nexmark.events import BIDS, result_topic

flow = Flow("nexmark_q0")
bids = flow.read("bids", BIDS)
bids.select("auction", "bidder", "price", "date_time", "extra").write("q0", result_topic("q0"))
