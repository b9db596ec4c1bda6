"""Selection: the bids on some auctions. See q2.sql."""

from flowcore import Flow
from pipelines.nexmark.events import BIDS, result_topic

flow = Flow("nexmark_q2")
bids = flow.read("bids", BIDS)
bids.where("auction % 123 = 0").select("auction", "price").write("q2", result_topic("q2"))
