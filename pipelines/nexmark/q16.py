"""Channel statistics: the latest minute, bids, bidders and auctions of each channel and day. See q16.sql."""

from datetime import timedelta

from flowcore import Flow, Tumbling
from pipelines.nexmark.events import BIDS, result_topic
from pipelines.nexmark.ranks import RANK, STATISTICS

flow = Flow("nexmark_q16")
minute = "date_format(timestamp_millis(date_time), 'HH:mm')"
bids = flow.read("bids", BIDS).with_columns(rank=RANK, time_of_day=minute)
days = bids.window(Tumbling(timedelta(days=1)), by="channel", name="days")
statistics = days.aggregate(minute="max(time_of_day)", **STATISTICS)
statistics.drop("window_start", "firing", "is_late").write("q16", result_topic("q16"))
