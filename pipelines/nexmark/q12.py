"""Processing-time windows: the bids of each bidder in each 10 seconds of the machine's clock. See q12.sql."""

from flowcore import Flow, Tumbling
from pipelines.nexmark.events import BIDS, result_topic

flow = Flow("nexmark_q12")
bids = flow.read("bids", BIDS).select("bidder")
windows = bids.window(Tumbling(10), by="bidder", time="processing", name="windows")
counts = windows.aggregate(bid_count="count(*)")
counts.drop("firing", "is_late").write("q12", result_topic("q12"))
