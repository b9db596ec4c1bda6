"""Bidding statistics: bids, bidders and auctions of each day, in three ranges of price. See q15.sql."""

from datetime import timedelta

from flowcore import Flow, Tumbling
from pipelines.nexmark.events import BIDS, result_topic
from pipelines.nexmark.ranks import RANK, STATISTICS

flow = Flow("nexmark_q15")
bids = flow.read("bids", BIDS).with_columns(rank=RANK)
days = bids.window(Tumbling(timedelta(days=1)), name="days").aggregate(**STATISTICS)
days.drop("window_start", "firing", "is_late").write("q15", result_topic("q15"))
