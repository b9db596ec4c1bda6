"""Average price of a seller: the mean of the closing prices of the last ten auctions. See q6.sql."""

from datetime import timedelta

from flowcore import Flow
from pipelines.nexmark.events import AUCTIONS, BIDS, result_topic
from pipelines.nexmark.open_auctions import OpenAuctions

TIMES = ["opened", "expires"]

flow = Flow("nexmark_q6")
bids = flow.read("bids", BIDS).select("auction", "price", "date_time")
auctions = flow.read("auctions", AUCTIONS).select("id AS auction", "seller", "date_time AS opened", "expires")
offers = bids.join_interval(auctions, on="auction", before=timedelta(days=1), after=timedelta(0))
in_time = offers.where("date_time <= expires")
closing = in_time.window(OpenAuctions(), by=("seller", "auction"), uses=TIMES, name="closing")
prices = closing.aggregate(final="max(price)")
last = prices.top_n(10, by="seller", order=("window_end desc", "auction desc"), name="last")
last.aggregate(by="seller", price="avg(final)", name="averages").write("q6", result_topic("q6"))
