"""Windows over bids, for tests of their declaration."""

from datetime import timedelta
from typing import Any

from flowcore import Flow, KafkaTopic, Stream, bounded_out_of_orderness
from flowcore.api.operators import Window

BID = "category STRING, price DOUBLE, gap_ms BIGINT, tags ARRAY<STRING>, at TIMESTAMP"
WINDOW_COLUMNS = ("window_start", "window_end", "firing", "is_late")


def bids_of(flow: Flow | None = None, name: str = "bids", **topic: Any) -> Stream:
    topic = {"event_time": "at", "watermark": bounded_out_of_orderness(timedelta(seconds=4)), **topic}
    return (flow or Flow("f")).read(name, KafkaTopic(name, schema=BID, **topic))


def window_of(stream: Stream) -> Window:
    assert isinstance(stream.operator, Window)
    return stream.operator
