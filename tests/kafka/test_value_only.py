"""Live queries whose records need no timestamps, and buffers that are flushed for checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KeyedProcessFunction, OperatorAttributesBuilder, Stream
from flowcore.errors import RunError
from tests.kafka.conftest import Live
from tests.sampling import sample

pytestmark = pytest.mark.kafka

CLICK = "user STRING, price BIGINT"


class Asking(KeyedProcessFunction):
    """Asks for the timestamp of expensive clicks."""

    def process(self, click: Mapping[str, Any], context: Any) -> Iterator[Mapping[str, Any]]:
        yield {"user": context.key, "price": context.timestamp_ms if click["price"] > 5 else click["price"]}


def _click(user: str, price: int) -> dict[str, Any]:
    return {"user": user, "price": price}


def _value_only(live: Live) -> Live:
    settings = replace(live.settings, force_timestamp_support=False, auto_watermark_interval=timedelta(0))
    return Live(live.servers, settings, live.spark)


def test_timestamp_of_a_value_only_record_stops_the_query(live: Live) -> None:
    """No record is to blame, so none becomes a dead letter; a function that does not ask runs."""
    live = _value_only(live)
    source, out = live.topic("clicks", schema=CLICK), live.topic("out")
    flow = Flow("asking")
    read = flow.read("clicks", source)
    read.process(Asking(), by="user", uses=["price"], schema=CLICK, name="asking").write("out", out)
    live.send(source, _click("a", 1), _click("b", 2))
    live.run(flow)
    live.send(source, _click("a", 9))

    with pytest.raises(RunError) as caught:
        live.run(flow)

    assert sorted((row["user"], row["price"]) for row in live.values(out)) == [("a", 1), ("b", 2)]
    assert live.records(source.dead_letter) == []
    assert "operator 'asking' asks for the timestamp of a value-only record, which has none" in str(
        caught.value
    )
    assert "set a watermark strategy on the source" in str(caught.value)


@pytest.mark.parametrize("cut", sample([False, True], False))
def test_join_of_newest_records_gets_the_timestamps_that_it_needs(live: Live, cut: bool) -> None:
    """It takes records without watermarks, also downstream of a cut."""
    live = _value_only(live)
    source, prices, out = live.topic("clicks", schema=CLICK), live.topic("prices"), live.topic("out")
    flow = Flow("newest")
    clicks: Stream = flow.read("clicks", source)
    if cut:
        clicks = clicks.through(live.topic("cut", schema=CLICK), name="cut")
    names = flow.read("names", replace(prices, schema="user STRING, name STRING"))
    clicks.join_latest(names, on="user", load=None, name="newest").write("out", out)
    live.send(source)
    live.send(prices, {"user": "a", "name": "Ada"})
    live.run(flow)
    live.send(source, _click("a", 1), _click("b", 2))

    live.run(flow)

    assert live.values(out) == [{"user": "a", "price": 1, "name": "Ada"}]


def _latest(click: dict[str, Any]) -> dict[str, Any]:
    return click


@pytest.mark.parametrize(
    ("asked", "expected"), sample([(True, [0, 1, 2, 3]), (False, [3])], (True, [0, 1, 2, 3]))
)
def test_buffer_is_flushed_before_each_checkpoint_on_request(
    live: Live, asked: bool, expected: list[int]
) -> None:
    """A slice of several batches commits each of them; without the request it flushes at its end."""
    live = Live(live.servers, replace(live.settings, max_batch_records=1), live.spark)
    source, out = live.topic("clicks", schema=CLICK), live.topic("out")
    promises = OperatorAttributesBuilder().set_output_idempotent(True).set_output_on_checkpoint(asked)
    flow = Flow("latest")
    latest = flow.read("clicks", source).map(
        _latest, schema=CLICK, key="user", flush=timedelta(hours=1), attributes=promises
    )
    latest.write("out", out)
    live.send(source, *(_click("a", price) for price in range(4)))

    live.run(flow)

    assert [row["price"] for row in live.values(out)] == expected
