"""Auction statistics: number and prices of the bids on each auction of each day. See q17.sql."""

from datetime import timedelta

from flowcore import Flow, Tumbling
from pipelines.nexmark.events import BIDS, result_topic

flow = Flow("nexmark_q17")
days = flow.read("bids", BIDS).window(Tumbling(timedelta(days=1)), by="auction", name="days")
statistics = days.aggregate(
    total_bids="count(*)",
    rank1_bids="count_if(price < 10000)",
    rank2_bids="count_if(price >= 10000 AND price < 1000000)",
    rank3_bids="count_if(price >= 1000000)",
    min_price="min(price)",
    max_price="max(price)",
    avg_price="avg(price)",
    sum_price="sum(price)",
)
statistics.drop("window_start", "firing", "is_late").write("q17", result_topic("q17"))
