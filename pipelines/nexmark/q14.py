"""Calculation: bids of some prices, the time of day, and how often the filler has a letter. See q14.sql."""

from flowcore import Flow
from pipelines.nexmark.events import BIDS, result_topic

TIME = """CASE WHEN hour BETWEEN 8 AND 18 THEN 'dayTime'
               WHEN hour <= 6 OR hour >= 20 THEN 'nightTime'
               ELSE 'otherTime' END AS bid_time_type"""

flow = Flow("nexmark_q14")
bids = flow.read("bids", BIDS).with_columns(
    price="0.908D * price",
    hour="hour(timestamp_millis(date_time))",
    c_counts="length(extra) - length(replace(extra, 'c', ''))",
)
found = bids.where("price > 1000000 AND price < 50000000")
found.select("auction", "bidder", "price", TIME, "date_time", "extra", "c_counts").write(
    "q14", result_topic("q14")
)
