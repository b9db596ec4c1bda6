"""User sessions: the number of bids of each bidder without a pause of 10 seconds. See q11.sql."""

from flowcore import Flow, Session
from pipelines.nexmark.events import BIDS, result_topic

flow = Flow("nexmark_q11")
sessions = flow.read("bids", BIDS).window(Session(10), by="bidder", name="sessions")
counts = sessions.aggregate(bid_count="count(*)")
counts.drop("firing", "is_late").write("q11", result_topic("q11"))
