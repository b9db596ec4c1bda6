"""Streams whose rows replace earlier ones, and their plans, for tests of what is declared."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flowcore import Flow, KafkaTopic, Stream
from flowcore.api.operators import Write
from flowcore.planner import Plan, plan_flow
from flowcore.watermarks import monotonous

BID = "auction BIGINT, shop STRING, price DOUBLE, at BIGINT"
HOUR = timedelta(hours=1)


def bids(flow: Flow, name: str = "bids") -> Stream:
    return flow.read(name, KafkaTopic(name, BID, event_time="at", watermark=monotonous()))


def top(flow: Flow) -> Stream:
    """The best bid of each auction."""
    return bids(flow).top_n(1, by="auction", order="price desc", name="top")


def same(record: dict[str, Any]) -> Any:
    return record


def written(stream: Stream, **options: Any) -> Write:
    stream.write("out", KafkaTopic("out"), **options)
    (sink,) = stream.graph.sinks  # type: ignore[attr-defined]
    assert isinstance(sink, Write)
    return sink


def plan(stream: Stream) -> Plan:
    stream.write("out", KafkaTopic("out"))
    return plan_flow(stream.graph)  # type: ignore[arg-type]
