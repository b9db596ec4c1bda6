"""Log to the file system: every bid, in folders by day and minute. See q10.sql."""

from flowcore import Flow, Parquet
from pipelines.nexmark.events import BIDS

flow = Flow("nexmark_q10")
bids = flow.read("bids", BIDS).with_columns(at="timestamp_millis(date_time)")
folders = ("date_format(at, 'yyyy-MM-dd') AS day", "date_format(at, 'HH:mm') AS minute")
logged = bids.select("auction", "bidder", "price", "date_time", "extra", *folders)
logged.write("q10", Parquet("nexmark/q10", partition_by=("day", "minute")))
