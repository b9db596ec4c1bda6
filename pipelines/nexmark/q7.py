"""Highest bid: the bids with the highest price of every 10 seconds. See q7.sql."""

from flowcore import Flow, Tumbling
from pipelines.nexmark.events import BIDS, result_topic
from pipelines.nexmark.largest import keep_largest

BID = "auction BIGINT, price BIGINT, bidder BIGINT, date_time BIGINT, extra STRING"

flow = Flow("nexmark_q7")
bids = flow.read("bids", BIDS).select("auction", "price", "bidder", "date_time", "extra")
dearest = bids.window(Tumbling(10), name="dearest").process(keep_largest("price"), schema=BID)
dearest.drop("window_start", "firing", "is_late").write("q7", result_topic("q7"))
