"""URL directories: the first three folders of every bid's URL. See q22.sql."""

from flowcore import Flow
from pipelines.nexmark.events import BIDS, result_topic

flow = Flow("nexmark_q22")
folders = (f"split_part(url, '/', {number + 3}) AS dir{number}" for number in (1, 2, 3))
bids = flow.read("bids", BIDS).select("auction", "bidder", "price", "channel", *folders)
bids.write("q22", result_topic("q22"))
