"""The workloads as flows: `flowcore run flowcore_flows:join`."""

from __future__ import annotations

import os
from datetime import timedelta

from flowcore import Csv, Flow, KafkaTopic, Tumbling
from flowcore.watermarks import bounded_out_of_orderness

INPUT, OUTPUT = os.environ["INPUT"], os.environ["OUTPUT"]

join = Flow("join")
auctions = join.read("auctions", Csv(os.environ["TABLE"], schema="key BIGINT, category BIGINT"))
bids = join.read("bids", KafkaTopic(INPUT, schema="bid BIGINT, key BIGINT, sent_us BIGINT"))
enriched = bids.join(auctions, on="key").select("bid", "key", "category", "sent_us")
enriched.write("enriched", KafkaTopic(OUTPUT))

latency = join

sum = Flow("sum")  # noqa: A001 - the workload's name
values = sum.read("records", KafkaTopic(INPUT, schema="key BIGINT, value BIGINT"))
values.aggregate(by="key", total="sum(value)").write("totals", KafkaTopic(OUTPUT))

windows = Flow("windows")
timed = KafkaTopic(
    INPUT,
    schema="key BIGINT, at BIGINT",
    event_time="at",
    watermark=bounded_out_of_orderness(timedelta(seconds=2)),
)
counts = windows.read("records", timed).window(Tumbling(10), by="key").aggregate(n="count(*)")
counts.select("key", "window_start", "n").write("counts", KafkaTopic(OUTPUT))
