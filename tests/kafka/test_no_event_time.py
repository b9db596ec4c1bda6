"""A record without event time is bad if windows need event time, and accepted otherwise."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from flowcore import Flow, Global, KafkaTopic, KeyedProcessFunction, Stream, Tumbling
from flowcore.elements import Record, Watermark
from flowcore.errors import RunError
from flowcore.serializers import TaggedSerializer
from flowcore.serializers.formats import JsonFormat
from flowcore.spark.run.live_stage import LiveRun
from flowcore.watermarks import monotonous
from flowcore.windows.triggers import Count
from tests.kafka.conftest import Live
from tests.sampling import sample

pytestmark = pytest.mark.kafka

SCHEMA = "user STRING, price BIGINT, at BIGINT"
TAGGED = TaggedSerializer(JsonFormat.of([("user", "STRING"), ("price", "BIGINT"), ("at", "BIGINT")]))
REASON = "has no event time: at is null"


class Seen(KeyedProcessFunction):
    """Emits each price and does not use event time."""

    def process(self, record: Mapping[str, Any], context: Any) -> Iterator[Mapping[str, Any]]:
        yield {"user": context.key, "price": record["price"]}


def clicks(live: Live, **settings: Any) -> KafkaTopic:
    return live.topic(
        "clicks", **{"schema": SCHEMA, "event_time": "at", "watermark": monotonous(), **settings}
    )


def click(user: str, price: int, at: int | None) -> dict[str, Any]:
    return {"user": user, "price": price, "at": at}


def unchanged(record: dict[str, Any]) -> dict[str, Any]:
    return record


def _added(kept: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**kept, "price": kept["price"] + new["price"]}


def _by_column(read: Stream) -> Stream:
    return read.window(Tumbling(10), by="user", name="windows").aggregate(price="sum(price)")


def _by_record(read: Stream) -> Stream:
    return read.window(Tumbling(10), by="user", name="windows").reduce(_added)


def _prices(live: Live, topic: KafkaTopic) -> list[tuple[str, int]]:
    return sorted((row["user"], row["price"]) for row in live.values(topic))


def _dead_letters(live: Live, topic: KafkaTopic) -> list[tuple[int, dict[str, Any], str]]:
    """Offset, value and reason of the records that the source rejected."""
    found = live.records(topic.dead_letter)
    all_headers = [{name: value.decode() for name, value in each.headers.items()} for each in found]
    assert {(each["flowcore-operator"], each["flowcore-stage"]) for each in all_headers} <= {
        ("clicks", "read")
    }
    assert {each["flowcore-topic"] for each in all_headers} <= {topic.name}
    return [
        (int(headers["flowcore-offset"]), each.json, headers["flowcore-reason"])
        for each, headers in zip(found, all_headers, strict=True)
    ]


@pytest.mark.parametrize(
    ("windows", "event_time"),
    sample(
        itertools.product([_by_column, _by_record], ["at", "timestamp_millis(at\n)"]),
        (_by_record, "timestamp_millis(at\n)"),
    ),
)
def test_windows_ignore_a_record_without_event_time(live: Live, windows: Any, event_time: str) -> None:
    """The record is a dead letter of its source with bytes and coordinates; its neighbours are counted."""
    source, out = clicks(live, event_time=event_time), live.topic("out")
    flow = Flow("windows")
    windows(flow.read("clicks", source)).write("out", out)
    live.send(source, click("a", 1, 1000), click("a", 2, None), click("a", 4, 2000), click("b", 8, 20_000))
    counts: list[int] = []

    def count_dead_letters(run: LiveRun) -> None:
        assert run.wait(180)
        counts.extend(query.dead_letters for query in run.health().queries)

    live.run(flow, "slice", count_dead_letters)

    assert _prices(live, out) == [("a", 5)]
    reason = f"has no event time: {' '.join(event_time.split())} is null"
    assert _dead_letters(live, source) == [(1, click("a", 2, None), reason)]
    assert counts == [1]


def test_windows_downstream_of_another_operator_ignore_a_record_without_event_time(live: Live) -> None:
    """The other one has a reader that needs no event time: the query processes what is left."""
    source, every, out = clicks(live), live.topic("every"), live.topic("out")
    flow = Flow("behind")
    once = flow.read("clicks", source).deduplicate(by="price", within=None, name="once")
    once.select("user", "price").write("every", every)
    _by_column(once).write("out", out)
    live.send(source, click("a", 1, 1000), click("a", 2, None), click("a", 4, 2000), click("b", 8, 20_000))

    live.run(flow, "slice")

    assert _prices(live, out) == [("a", 5)]
    assert [offset for offset, _, _ in _dead_letters(live, source)] == [1]


@pytest.mark.parametrize("windows", sample([_by_column, _by_record], _by_column))
def test_record_without_event_time_stops_windows_with_on_error_fail(live: Live, windows: Any) -> None:
    """The error is one line with the coordinates, as for a record that does not fit its schema."""
    source = clicks(live, on_error="fail")
    flow = Flow("strict")
    windows(flow.read("clicks", source)).write("out", live.topic("out"))
    live.send(source, click("a", 1, 1000), click("a", 2, None))

    with pytest.raises(RunError) as caught:
        live.run(flow)

    assert f"{source.name}[0]@1 {REASON} and on_error='fail'; it holds: " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("carries", sample(["branch", "process"], "branch"))
def test_queries_without_windows_accept_a_record_without_event_time(live: Live, carries: str) -> None:
    """The dead letter is written once, by the query that carries bad records although it has no windows."""
    source, out, copy, seen = clicks(live), *(live.topic(name) for name in ("out", "copy", "seen"))
    flow = Flow("branched")
    read = flow.read("clicks", source)
    _process(read).write("seen", seen)
    _by_column(read).write("out", out)
    if carries == "branch":
        read.select("user", "price").write("copy", copy)
    live.send(source, click("a", 1, 1000), click("a", 2, None), b"bad", click("b", 8, 20_000))

    live.run(flow)

    taking, every = [seen, copy] if carries == "branch" else [seen], [("a", 1), ("a", 2), ("b", 8)]
    assert _prices(live, out) == [("a", 1)]
    assert [_prices(live, topic) for topic in taking] == [every for _ in taking]
    ids = {each.headers["flowcore-id"].decode().split(":", 1)[-1] for each in live.records(taking[-1])}
    assert len(ids) == len(every)
    dead_letters = sorted(
        (each.headers["flowcore-offset"], each.value) for each in live.records(source.dead_letter)
    )
    assert dead_letters == [(b"1", json.dumps(click("a", 2, None)).encode()), (b"2", b"bad")]


def test_record_without_event_time_upstream_of_a_function_is_a_dead_letter(live: Live) -> None:
    """With a Python function upstream of the windows, a separate query writes the dead letters."""
    source, out = clicks(live), live.topic("out")
    flow = Flow("downstream")
    _by_column(flow.read("clicks", source).map(unchanged, schema=SCHEMA)).write("out", out)
    live.send(source, click("a", 1, 1000), click("a", 2, None), click("b", 8, 20_000))

    live.run(flow)

    assert _prices(live, out) == [("a", 1)]
    assert _dead_letters(live, source) == [(1, click("a", 2, None), REASON)]


def _process(read: Stream) -> Stream:
    return read.process(Seen(), by="user", uses=["price"], schema="user STRING, price BIGINT")


def _by_processing_time(read: Stream) -> Stream:
    windows = read.window(Tumbling(10), by="user", time="processing", trigger=Count(1))
    return windows.aggregate(price="max(price)")


def _global(read: Stream) -> Stream:
    return read.window(Global(), by="user", trigger=Count(1)).aggregate(price="max(price)")


@pytest.mark.parametrize("operator", sample([_process, _by_processing_time, _global], _process))
def test_operators_without_event_time_accept_a_record_without_it(live: Live, operator: Any) -> None:
    """The record is good, and the plan does not check its event time."""
    source, out = clicks(live), live.topic("out")
    flow = Flow("taking")
    operator(flow.read("clicks", source)).write("out", out)
    live.send(source, click("a", 1, 1000), click("b", 2, None))
    plans: list[str] = []

    def keep_plans(run: LiveRun) -> None:
        assert run.wait(180)
        plans.extend(query._jsq.explainInternal(True) for query in run.running.values())

    live.run(flow, "slice", keep_plans)

    assert _prices(live, out) == [("a", 1), ("b", 2)]
    assert live.records(source.dead_letter) == []
    assert [plan.count("does not fit") > 0 for plan in plans] == [True]
    assert "no event time" not in plans[0]


def test_event_time_declared_not_null_is_checked_once(live: Live) -> None:
    """A null does not fit the schema, and plans are as without windows."""
    source, out = clicks(live, schema=f"{SCHEMA} NOT NULL"), live.topic("out")
    flow = Flow("declared")
    _by_column(flow.read("clicks", source)).write("out", out)
    live.send(source, click("a", 1, 1000), click("a", 2, None), click("b", 8, 20_000))
    plans: list[str] = []

    def keep_plans(run: LiveRun) -> None:
        assert run.wait(180)
        plans.extend(query._jsq.explainInternal(True) for query in run.running.values())

    live.run(flow, "slice", keep_plans)

    assert _prices(live, out) == [("a", 1)]
    ((place, _, reason),) = _dead_letters(live, source)
    assert (place, reason.startswith("does not fit the schema")) == (1, True)
    assert ["no event time" in plan for plan in plans] == [False]


def test_tagged_element_without_timestamp_has_no_event_time(live: Live) -> None:
    """Without event_time= a record's timestamp is that of its element."""
    source, out = clicks(live, event_time=None, watermark=None, elements="tagged"), live.topic("out")
    flow = Flow("tagged")
    _by_column(flow.read("clicks", source)).write("out", out)
    none = TAGGED.encode(Record(click("a", 2, 2000)))
    live.send(source, TAGGED.encode(Record(click("a", 1, None), 1000)), none, TAGGED.encode(Watermark(9_999)))

    live.run(flow)

    assert _prices(live, out) == [("a", 1)]
    (record,) = live.records(source.dead_letter)
    assert (record.value, record.headers["flowcore-offset"]) == (none, b"1")
    assert record.headers["flowcore-reason"] == b"has no event time: its element has no timestamp"
