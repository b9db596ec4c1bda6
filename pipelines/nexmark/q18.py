"""Last bids: the newest bid of each bidder on each auction. See q18.sql."""

from flowcore import Flow
from pipelines.nexmark.events import BIDS, result_topic

flow = Flow("nexmark_q18")
bids = flow.read("bids", BIDS).select("auction", "bidder", "price", "channel", "url", "date_time", "extra")
bids.latest(by=("bidder", "auction")).write("q18", result_topic("q18"))
