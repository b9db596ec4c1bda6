"""Latency markers pass through live queries without reaching a user's function."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic
from flowcore.elements import LatencyMarkerEvent
from flowcore.errors import RunError
from flowcore.kafka.markers import ensure_companion
from flowcore.kafka.topics import partition_counts
from flowcore.serializers import LatencyMarkerEventSerializer
from tests.sampling import sample

pytestmark = pytest.mark.kafka

Live = Any
BID = "id BIGINT NOT NULL, shop STRING, price DOUBLE"
EVENTS = LatencyMarkerEventSerializer()
SOME_INTERVAL = timedelta(hours=1)  # the marker source sends only its first marker


def _bid(number: int, shop: str = "a") -> dict[str, Any]:
    return {"id": number, "shop": shop, "price": 1.0}


def _event(number: int, subtask: int = 0) -> bytes:
    return EVENTS.encode(LatencyMarkerEvent(1_000 + number, "test/source", subtask))


def _tracked(live: Live, interval: timedelta = SOME_INTERVAL) -> Live:
    live.settings = replace(live.settings, latency_interval=interval)
    return live


def _mine(live: Live, topic: KafkaTopic) -> list[tuple[int, bytes]]:
    """Partition and bytes of the events that this test has sent."""
    records = live.records(topic.events)
    return [(r.partition, r.value) for r in records if EVENTS.decode(r.value).operator_id == "test/source"]


def _send_events(live: Live, topic: KafkaTopic, *events: bytes | None, partitions: int = 1) -> None:
    ensure_companion(live.servers, topic.name)
    live.send(KafkaTopic(topic.events), *events, partitions=partitions)


def test_markers_reach_the_companion_of_every_sink(live: Live) -> None:
    """Each sink's companion gets each marker once and unchanged, however the branches filter records."""
    bids, high, low = live.topic("bids", schema=BID, partitions=2), live.topic("high"), live.topic("low")
    live.send(bids, _bid(1), b"bad", _bid(2), partitions=2)
    _send_events(live, bids, _event(1), _event(2, 1), _event(3), partitions=2)
    flow = Flow("f")
    source = flow.read("bids", bids)
    source.where("id > 1").select("id").write("high", high)
    source.where("false").with_columns(twice="price * 2").write("low", low)

    _tracked(live).run(flow)

    for sink in (high, low):
        assert _mine(live, sink) == [(0, _event(1)), (0, _event(3)), (1, _event(2, 1))]
    assert live.values(high) == [{"id": 2}]
    assert live.values(low) == []
    assert [record.value for record in live.records(bids.dead_letter)] == [b"bad"]


def test_markers_pass_through_state(live: Live) -> None:
    """An aggregate emits the newest marker of each batch and sender and does not count markers as records."""
    bids, out = live.topic("bids", schema=BID, partitions=2), live.topic("out")
    live.send(bids, _bid(1), _bid(2), _bid(3, "b"), partitions=2)
    _send_events(live, bids, _event(1), _event(2, 1), _event(3), partitions=2)
    flow = Flow("f")
    flow.read("bids", bids).aggregate(by="shop", n="count(*)", name="counted").write("out", out)

    _tracked(live).run(flow)
    assert sorted(_mine(live, out)) == [(0, _event(3)), (1, _event(2, 1))]
    assert sorted(value["n"] for value in live.values(out)) == [1, 2]

    live.send(bids, _bid(4, "b"), partitions=2)
    _send_events(live, bids, _event(4), partitions=2)
    live.run(flow)
    assert sorted(_mine(live, out))[-2:] == [(0, _event(4)), (1, _event(2, 1))]
    assert [value["n"] for value in live.values(out)][-1] == 2


def test_bad_events_are_dead_letters(live: Live) -> None:
    """Bad events keep their bytes and coordinates; good events between them are delivered."""
    good = _event(1)
    bad = [
        b"", None, good[:-1], good + b"x", b"\x02" + good[1:], b"\x01\x02" + good[2:], b"{}", bytes(270),
        good[:10] + b"\xff" + good[11:], good[:-1] + b"\xff", b"x" * 100_000,
    ]  # fmt: skip
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    live.send(bids, _bid(1))
    _send_events(live, bids, *bad, good)
    flow = Flow("f")
    flow.read("bids", bids).select("id").write("out", out)

    _tracked(live).run(flow)

    dead_letters = live.records(bids.dead_letter)
    assert [record.value for record in dead_letters] == bad
    assert {record.headers["flowcore-topic"] for record in dead_letters} == {bids.events.encode()}
    assert [int(record.headers["flowcore-offset"]) for record in dead_letters] == list(range(len(bad)))
    assert all(b"not an event" in record.headers["flowcore-reason"] for record in dead_letters)
    assert _mine(live, out) == [(0, good)]
    assert live.values(out) == [{"id": 1}]


def test_bad_event_stops_the_query_with_on_error_fail(live: Live) -> None:
    """The error is one line that names the companion topic's message."""
    bids = live.topic("bids", schema=BID, on_error="fail")
    live.send(bids, _bid(1))
    _send_events(live, bids, _event(1), b"\x02\x01")
    flow = Flow("f")
    flow.read("bids", bids).write("out", live.topic("out"))

    with pytest.raises(RunError, match=rf"{bids.events}\[0\]@1 is not an event that") as caught:
        _tracked(live).run(flow)

    assert "\n" not in str(caught.value)


def test_latency_tracking_without_an_interval_is_off(live: Live) -> None:
    """Without an interval there is no companion topic, thread or column for latency; with one there are."""
    found: dict[bool, tuple[bool, bool]] = {}
    for is_tracked in (True, False):
        bids, out = live.topic(f"bids{is_tracked}", schema=BID), live.topic(f"out{is_tracked}")
        live.send(bids, _bid(1))
        flow = Flow(f"f{is_tracked}")
        flow.read("bids", bids).write("out", out)

        def inspect_run(run: Any, is_tracked: bool = is_tracked) -> None:
            names = [thread.name for thread in threading.enumerate()]
            assert run.wait(60)
            plan = run.running["bids"]._jsq.explainInternal(False)
            found[is_tracked] = (
                any(name.startswith(("latency", "markers")) for name in names),
                ".events" in plan,
            )

        _tracked(live, SOME_INTERVAL if is_tracked else timedelta(0)).run(flow, "slice", inspect_run)

    assert found == {True: (True, True), False: (False, False)}
    assert set(partition_counts(live.servers, [bids.events, out.events]).values()) == {None}


@pytest.mark.thorough
def test_tracking_can_be_turned_on_and_off_between_runs(live: Live) -> None:
    """A query without state can start tracking; if it is turned off, the query still reads the companion."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    flow = Flow("f")
    flow.read("bids", bids).select("id").write("out", out)
    live.send(bids, _bid(1))
    live.run(flow)

    live.send(bids, _bid(2))
    _send_events(live, bids, _event(1))
    _tracked(live).run(flow)
    assert _mine(live, out) == [(0, _event(1))]

    live.send(bids, _bid(3))
    _send_events(live, bids, _event(2))
    _tracked(live, timedelta(0)).run(flow)
    assert _mine(live, out) == [(0, _event(1)), (0, _event(2))]
    assert live.values(out) == [{"id": 1}, {"id": 2}, {"id": 3}]


@pytest.mark.thorough
def test_state_made_without_tracking_is_kept(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    """Its groups have no column for markers: the query runs without latency and logs a warning."""
    bids, out = live.topic("bids", schema=BID), live.topic("out")
    flow = Flow("f")
    flow.read("bids", bids).aggregate(by="shop", n="count(*)", name="counted").write("out", out)
    live.send(bids, _bid(1))
    live.run(flow)

    live.send(bids, _bid(2))
    _tracked(live).run(flow)

    assert [value["n"] for value in live.values(out)] == [1, 2]
    assert "its latency is not measured" in caplog.text


@pytest.mark.parametrize("mode", sample(["realtime", "micro-batch"], "realtime"))
def test_latency_is_measured_live_and_through_two_flows(live: Live, mode: Any) -> None:
    """Latency is measured from source to sink of each flow, and from the first source to the last sink."""
    bids, middle, out = live.topic("bids", schema=BID), live.topic("middle"), live.topic("out")
    live.send(bids, _bid(1))
    first, second = Flow("first"), Flow("second")
    first.read("bids", bids).select("id", "shop", "price").write("middle", middle)
    second.read("bids", KafkaTopic(middle.name, schema=BID)).select("id").write("out", out)
    _tracked(live, timedelta(milliseconds=200))

    def seen(outer: Any) -> None:
        def both(inner: Any) -> None:
            end = time.monotonic() + 300
            while {s.source for s in inner.latency() if s.count > 2} < {"first/bids", "second/bids"}:
                assert not inner.wait(0.2)
                assert not outer.wait(0)
                assert time.monotonic() < end, inner.latency()
            assert {s.sink for s in inner.latency()} == {"second/out"}
            assert [s.source for s in outer.latency()] == ["first/bids"]

        live.run(second, mode, both)

    live.run(first, mode, seen)

    assert live.values(out) == [{"id": 1}]
