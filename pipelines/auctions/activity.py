"""A second flow over the same bids: the activity of each auction in windows, and the totals of each bidder.

It has queries and checkpoints of its own, so the real-time join of the reference flow keeps its latency.
"""

from __future__ import annotations

from datetime import timedelta

from flowcore import Flow, KafkaTopic, Tumbling, bounded_out_of_orderness
from pipelines.auctions.flow import LIVE_BID

__all__ = ["flow"]

flow = Flow("activity")

# Bids arrive up to two seconds late. The windows wait for one second; later bids leave as late records.
watermark = bounded_out_of_orderness(timedelta(seconds=1)).with_idleness(timedelta(minutes=1))
timed_bids = flow.read(
    "timed_bids", KafkaTopic("bids", schema=LIVE_BID, event_time="bid_time_ms", watermark=watermark)
)
activity = timed_bids.window(Tumbling(10), by="auction_id", late="side-output", name="activity").aggregate(
    bids="count(*)", highest="max(price)"
)

# Totals need no event time, so no timestamp is written. They change with each bid, and leave once in 5 s.
bids = flow.read("bids", KafkaTopic("bids", schema=LIVE_BID))
bidders = bids.aggregate(
    by="bidder", bids="count(*)", highest="max(price)", flush=timedelta(seconds=5), name="bidders"
)

activity.write("auction_activity", KafkaTopic("auction-activity"))
activity.late.write("late_bids", KafkaTopic("late-bids"))
bidders.write("bidder_totals", KafkaTopic("bidder-totals", elements="value-only"))
