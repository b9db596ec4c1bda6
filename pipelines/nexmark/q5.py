"""Hot items: the auctions with the most bids of the last 10 seconds, every 2 seconds. See q5.sql."""

from flowcore import Flow, Sliding, Tumbling
from pipelines.nexmark.events import BIDS, result_topic

flow = Flow("nexmark_q5")
bids = flow.read("bids", BIDS)
counts = bids.window(Sliding(10, slide=2), by="auction", name="counts").aggregate(num="count(*)")
same_end = counts.window(Tumbling(2), uses=["auction", "num"], name="hottest")
hottest = same_end.top_n(1, order="num desc", ties=True)
hottest.select("auction", "num", "window_end").write("q5", result_topic("q5"))
