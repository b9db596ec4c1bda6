"""Channel ids: a number for each hot channel, and for the others the one in their URL. See q21.sql."""

from flowcore import Flow
from pipelines.nexmark.events import BIDS, result_topic

CHANNEL_ID = """CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
                                    WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
                ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '') END AS channel_id"""

flow = Flow("nexmark_q21")
bids = flow.read("bids", BIDS).select("auction", "bidder", "price", "channel", CHANNEL_ID)
bids.where("channel_id IS NOT NULL").write("q21", result_topic("q21"))
