"""Highest bid: the bids with the highest price of every 10 seconds. See q7.sql."""

from flowcore import Flow, Tumbling
from pipelines.nexmark.events import BIDS, result_topic

flow = Flow("nexmark_q7")
bids = flow.read("bids", BIDS).select("auction", "price", "bidder", "date_time", "extra")
dearest = bids.window(Tumbling(10), name="dearest").top_n(1, order="price desc", ties=True)
dearest.drop("rank", "window_start", "firing", "is_late").write("q7", result_topic("q7"))
