"""A buffer is state: a checkpoint needs it, and output that cannot be buffered is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, KeyedProcessFunction, Tumbling
from flowcore.errors import PlanError
from flowcore.planner import plan_flow
from flowcore.planner.model import LiveQuery
from flowcore.planner.rules.compatibility import CheckpointNeeds, derive_needs, find_differences
from flowcore.spark.run.running_query import uses_processing_time
from tests.idle_functions import IdleRich

SALE = "shop STRING, price DOUBLE"
FLUSH = timedelta(minutes=2)


class Latest(IdleRich):
    """Its output replaces earlier output of the same shop."""

    def is_output_idempotent(self) -> bool:
        return True


class OneByOne(KeyedProcessFunction):
    """The same for records."""

    def is_output_idempotent(self) -> bool:
        return True

    def process(self, record: Mapping[str, Any], _context: Any) -> Iterator[Mapping[str, Any]]:
        yield record


class ByBatch(OneByOne):
    """The same for batches."""

    def process_batch(self, _keys: Any, batch: Any, _context: Any) -> list[Any]:
        return [batch]


def query_of(kind: str, flush: timedelta) -> LiveQuery:
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema=SALE))
    match kind:
        case "function":
            found = bids.map(Latest(), schema=SALE, key="shop", flush=flush, name="found")
        case "process":
            found = bids.process(OneByOne(), schema=SALE, by="shop", flush=flush, name="found")
        case _:
            windows = bids.window(Tumbling(60), by="shop", time="processing", flush=flush, name="found")
            found = windows.aggregate(top="max(price)")
    found.write("out", KafkaTopic("out"))
    live = plan_flow(flow).live
    assert live is not None
    return next(query for query in live.queries if query.sinks)


@pytest.mark.parametrize("kind", ["function", "process", "window"])
def test_buffer_is_part_of_the_needs_on_a_checkpoint(kind: str) -> None:
    """State with and without a buffer differs, and the error names the operator; intervals may change."""
    with_buffer, without = query_of(kind, FLUSH), query_of(kind, timedelta(0))
    needs, before = derive_needs(with_buffer), derive_needs(without)

    assert "the latest output until a flush" in " ".join(find_differences(before, needs))
    assert "'found'" in " ".join(find_differences(before, needs))
    assert derive_needs(query_of(kind, 2 * FLUSH)) == needs
    assert needs != CheckpointNeeds(needs.sources, ())


@pytest.mark.parametrize("kind", ["function", "process"])
def test_query_with_a_buffer_uses_processing_time(kind: str) -> None:
    """It is flushed without input, and its key groups get watermarks."""
    query = query_of(kind, FLUSH)

    assert uses_processing_time(query)
    assert query.keeps_key_groups
    assert not query_of("function", timedelta(0)).keeps_key_groups


def test_a_function_of_batches_cannot_be_buffered() -> None:
    """Its output has no single key; the error states this."""
    bids = Flow("f").read("bids", KafkaTopic("bids", schema=SALE))

    with pytest.raises(PlanError, match="a batch that its function returns has no one key"):
        bids.process(ByBatch(), schema=SALE, by="shop", flush=FLUSH, name="found")
