"""Records that an operator with state made, and for which a function downstream of it fails."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, KeyedProcessFunction, Tumbling
from flowcore.elements import LatencyMarkerEvent
from flowcore.errors import RunError
from flowcore.kafka.markers import ensure_companion
from flowcore.serializers import LatencyMarkerEventSerializer
from flowcore.watermarks import monotonous
from tests.kafka.conftest import Live

pytestmark = pytest.mark.kafka

EVENTS = LatencyMarkerEventSerializer()
CLICK = "user STRING, price BIGINT, at BIGINT"


def _clicks(live: Live, **options: Any) -> KafkaTopic:
    return live.topic("clicks", schema=CLICK, event_time="at", watermark=monotonous(), **options)


def _click(user: str, price: int, at: int = 1000) -> dict[str, Any]:
    return {"user": user, "price": price, "at": at}


def _share(record: dict[str, Any]) -> dict[str, Any]:
    return {"user": record["user"], "share": 60 // (record["total"] - 3)}


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_failing_result_of_a_window_is_a_dead_letter(live: Live, delivery: Any) -> None:
    """It has what the function received; it passes the next exchange, and the other results are emitted."""
    clicks, (shares, totals) = (
        _clicks(live),
        (live.topic(name, delivery=delivery) for name in ("shares", "totals")),
    )
    live.send(
        clicks, _click("a", 4), _click("b", 1), _click("b", 2), b"bad", _click("c", 5), _click("d", 0, 99_000)
    )
    flow = Flow("shared")
    windows = flow.read("clicks", clicks).window(Tumbling(10), by="user", name="counted")
    counted = windows.aggregate(total="sum(price)", n="count(*)")
    counted.write("totals", totals)
    shared = counted.map(_share, schema="user STRING, share BIGINT", uses=["user", "total"], name="shared")
    shared.deduplicate(by="user", within=timedelta(hours=1)).write("shares", shares)

    live.run(flow)
    live.run(flow)

    assert sorted((each["user"], each["share"]) for each in live.values(shares)) == [("a", 60), ("c", 30)]
    assert sorted((each["user"], each["total"]) for each in live.values(totals)) == [
        ("a", 4),
        ("b", 3),
        ("c", 5),
    ]
    bad, dead = sorted(live.records(clicks.dead_letter), key=lambda record: len(record.value))
    assert bad.value == b"bad"
    assert dead.json == {"user": "b", "total": 3}
    assert dead.headers["flowcore-operator"] == b"shared"
    assert dead.headers["flowcore-stage"] == b"function"
    assert b"ZeroDivisionError" in dead.headers["flowcore-reason"]
    assert dead.headers["flowcore-id"].endswith(b':{"user":"b"}:0:10000:1')


def test_failing_late_record_is_a_dead_letter_of_its_source(live: Live) -> None:
    """It has no bytes any more, but its place; the record of another source goes to that one's."""
    clicks, taps = _clicks(live), replace(_clicks(live), name=live.topic("taps").name)
    live.send(clicks, _click("a", 1, 50_000))
    live.send(taps, _click("a", 1, 50_000), _click("a", 4, 60_000))
    flow = Flow("late")
    both = flow.read("clicks", clicks).union(flow.read("taps", taps))
    windows = both.window(Tumbling(10), by="user", late="side-output")
    counted = windows.aggregate(total="sum(price)")
    counted.write("totals", live.topic("totals"))
    shown = counted.late.map(
        lambda record: {"share": 60 // (record["price"] - 3)}, schema="share BIGINT", name="shared"
    )
    shown.write("late", live.topic("late"))
    live.run(flow)
    live.send(clicks, _click("a", 4, 70_000))
    live.run(flow)
    live.send(taps, _click("b", 3, 1_000), _click("b", 5, 1_000))

    live.run(flow)

    assert not live.records(clicks.dead_letter)
    (dead,) = live.records(taps.dead_letter)
    assert dead.json == {"user": "b", "price": 3, "at": 1_000}
    assert (dead.headers["flowcore-partition"], dead.headers["flowcore-offset"]) == (b"0", b"2")


class _Share(KeyedProcessFunction):
    def process(self, record: Any, _context: Any) -> Any:
        return [_share({"user": "x", "total": record["price"]})]


def test_outputs_of_batches_of_two_sources_have_ids_of_their_topic(live: Live) -> None:
    """So have the dead letters of a process function. The place is that of the batch's first record."""
    clicks, taps, out = _clicks(live), replace(_clicks(live), name=live.topic("taps").name), live.topic("out")
    live.send(clicks, _click("a", 4))
    live.send(taps, _click("b", 5), _click("c", 3))
    flow = Flow("batched")
    both = flow.read("clicks", clicks).union(flow.read("taps", taps))
    batched = both.map_batches(lambda batch: batch, schema="user STRING, price BIGINT", name="batched")
    shares = batched.process(_Share(), by="user", schema="user STRING, share BIGINT", name="shares")
    shares.write("out", out)

    live.run(flow)

    assert sorted(each["share"] for each in live.values(out)) == [30, 60]
    ids = {record.id for record in live.records(out)}
    assert len(ids) == 2
    assert all(live.topic_id(clicks) in each or live.topic_id(taps) in each for each in ids)
    (dead,) = live.records(taps.dead_letter)
    assert dead.json == {"user": "c", "price": 3}
    assert not live.records(clicks.dead_letter)


def test_marker_passes_two_exchanges_of_a_source_that_stops(live: Live) -> None:
    """Rows between exchanges have no offset if no bad record can be among them."""
    clicks, out = _clicks(live, on_error="fail"), live.topic("out")
    live.settings = replace(live.settings, latency_interval=timedelta(hours=1))
    event = EVENTS.encode(LatencyMarkerEvent(1_000, "test/source", 0))
    live.send(clicks, _click("a", 4), _click("d", 0, 99_000))
    ensure_companion(live.servers, clicks.name)
    live.send(KafkaTopic(clicks.events), event)
    flow = Flow("marked")
    windows = flow.read("clicks", clicks).window(Tumbling(10), by="user")
    counted = windows.aggregate(total="sum(price)")
    counted.deduplicate(by="user", within=timedelta(hours=1)).write("out", out)

    live.run(flow)

    assert [each["user"] for each in live.values(out)] == ["a"]
    assert event in [record.value for record in live.records(out.events)]


def test_date_that_python_lacks_in_a_result_is_a_dead_letter(live: Live) -> None:
    """A sum of seconds may be a time after the year 9999; the dead letter shows it."""
    clicks, out = _clicks(live), live.topic("out")
    live.send(clicks, _click("a", 4), _click("b", 10**12), _click("d", 0, 99_000))
    flow = Flow("dated")
    windows = flow.read("clicks", clicks).window(Tumbling(10), by="user", name="counted")
    timed = windows.aggregate(total="sum(price)").select("user", "timestamp_seconds(total) AS until")
    timed.map(lambda record: record, schema="user STRING, until TIMESTAMP", name="same").write("out", out)

    live.run(flow)

    assert [each["user"] for each in live.values(out)] == ["a"]
    (dead,) = live.records(clicks.dead_letter)
    assert dead.json["user"] == "b"
    assert b"outside the years 1 to 9999" in dead.headers["flowcore-reason"]


def test_failing_result_stops_a_query_whose_source_asks_for_it(live: Live) -> None:
    """Its error names operator and record."""
    clicks = _clicks(live, on_error="fail")
    live.send(clicks, _click("b", 3), _click("d", 0, 99_000))
    flow = Flow("strict")
    windows = flow.read("clicks", clicks).window(Tumbling(10), by="user")
    counted = windows.aggregate(total="sum(price)")
    counted.map(_share, schema="user STRING, share BIGINT", name="shared").write("out", live.topic("out"))

    with pytest.raises(RunError, match=r"operator 'shared'.*ZeroDivisionError"):
        live.run(flow)
