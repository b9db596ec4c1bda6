"""Running aggregates run by key group where other operators with state are around them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, OperatorAttributesBuilder, Stream, Tumbling
from flowcore.api.keyed_aggregate import KeyedAggregate
from flowcore.api.operators import Operator
from flowcore.errors import PlanError
from flowcore.planner import plan_flow
from flowcore.watermarks import monotonous

SCHEMA = "user STRING, price DOUBLE, tags ARRAY<STRING>, at TIMESTAMP"


def _events(flow: Flow) -> Stream:
    topic = KafkaTopic("events", schema=SCHEMA, event_time="at", watermark=monotonous())
    return flow.read("events", topic)


def _planned(flow: Flow, stream: Stream) -> dict[str, Operator]:
    stream.write("out", KafkaTopic("out"))
    return {node.name: node for query in plan_flow(flow).live_queries for node in query.operators}


def _same(record: Any) -> Any:
    return record


@pytest.mark.parametrize(
    ("own", "downstream", "buffers"), [(10, 5, False), (10, 10, False), (5, 10, True), (None, 5, True)]
)
def test_function_with_a_flush_interval_counts_if_it_has_a_buffer(
    own: int | None, downstream: int, buffers: bool
) -> None:
    """It has none downstream of an aggregate that emits no more often: Spark's own may have any function."""
    flow = Flow("f")
    interval = None if own is None else timedelta(seconds=own)
    total = _events(flow).aggregate(by="user", total="sum(price)", flush=interval, name="totals")
    mapped = total.map(
        _same, passes=["user"], schema="user STRING", flush=timedelta(seconds=downstream),
        attributes=OperatorAttributesBuilder().set_output_idempotent(True),
    )  # fmt: skip

    assert isinstance(_planned(flow, mapped)["totals"], KeyedAggregate) == buffers


def test_aggregate_by_the_time_of_a_window_keeps_its_columns() -> None:
    """It has no window of its own."""
    flow = Flow("f")
    counted = _events(flow).window(Tumbling(60), by="user").aggregate(n="count(*)")
    totals = counted.aggregate(by="window_start", total="sum(n)", is_late="bool_or(is_late)", name="totals")

    node = _planned(flow, totals)["totals"]

    assert isinstance(node, KeyedAggregate)
    assert node.columns == ("window_start", "total", "is_late")
    assert not node.emits_without_input


def test_key_that_cannot_find_state_is_refused() -> None:
    """As where an operator is declared by key group."""
    flow = Flow("f")
    first = _events(flow).deduplicate(by="user", within=None)

    with pytest.raises(PlanError, match=r"by='tags' is ARRAY<STRING>.*a key would not be found again"):
        _planned(flow, first.aggregate(by="tags", n="count(*)", name="totals"))
