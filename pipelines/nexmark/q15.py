"""Bidding statistics: bids, bidders and auctions of each day, in three ranges of price. See q15.sql."""

from datetime import timedelta

from flowcore import Flow, Tumbling
from pipelines.nexmark.events import BIDS, result_topic

flow = Flow("nexmark_q15")
ranked = flow.read("bids", BIDS).with_columns(rank="1 + int(price >= 10000) + int(price >= 1000000)")
statistics = ranked.window(Tumbling(timedelta(days=1)), name="days").aggregate(
    total_bids="count(*)",
    total_bidders="count(distinct bidder)",
    total_auctions="count(distinct auction)",
    rank1_bids="count_if(rank = 1)",
    rank2_bids="count_if(rank = 2)",
    rank3_bids="count_if(rank = 3)",
    rank1_bidders="count(distinct if(rank = 1, bidder, null))",
    rank2_bidders="count(distinct if(rank = 2, bidder, null))",
    rank3_bidders="count(distinct if(rank = 3, bidder, null))",
    rank3_auctions="count(distinct if(rank = 3, auction, null))",
)
statistics.drop("window_start", "firing", "is_late").write("q15", result_topic("q15"))
