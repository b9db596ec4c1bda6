"""Bounded side input: every bid with the value of its auction's number. See q13.sql."""

from flowcore import Flow, from_frame
from pipelines.nexmark.events import BIDS, result_topic

flow = Flow("nexmark_q13")
side = from_frame(
    lambda spark: spark.range(10_000).selectExpr("id AS key", "concat('value ', id) AS value"),
    schema="key BIGINT, value STRING",
)
side_input = flow.read("side_input", side).select("key", "value", name="side")
bids = flow.read("bids", BIDS).with_columns(key="auction % 10000").join(side_input, on="key")
bids.select("auction", "bidder", "price", "date_time", "value").write("q13", result_topic("q13"))
