"""Windows of live queries: what comes out of Kafka topics, over restarts and with partitions that lag."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flowcore import Flow, KafkaTopic, Sliding, Tumbling
from flowcore.watermarks import bounded_out_of_orderness
from tests.kafka.conftest import Live

SCHEMA = "user STRING, price BIGINT, at BIGINT"


def clicks(live: Live, delay_ms: int = 0) -> KafkaTopic:
    return live.topic(
        "clicks",
        schema=SCHEMA,
        event_time="at",
        watermark=bounded_out_of_orderness(timedelta(milliseconds=delay_ms)),
    )


def click(user: str, price: int, at: int) -> dict[str, Any]:
    return {"user": user, "price": price, "at": at}


def totals(live: Live, topic: KafkaTopic) -> list[tuple[Any, ...]]:
    return sorted(
        (row["user"], row["window_start"], row["total"], row["n"], row["firing"], row["is_late"])
        for row in live.values(topic)
    )


def test_a_window_emits_once_it_is_complete_and_goes_on_after_a_restart(live: Live) -> None:
    """Results, late firings and the late topic, from three runs on one checkpoint."""
    source, out, late = clicks(live, 1000), live.topic("totals"), live.topic("late")
    flow = Flow("totals")
    windows = (
        flow.read("clicks", source)
        .where("price > 0")
        .window(Tumbling(10), by="user", allowed_lateness=5, late="side-output", name="per_user")
    )
    found = windows.aggregate(total="sum(price)", n="count(*)")
    found.write("totals", out)
    found.late.write("late", late)
    live.send(source, click("a", 1, 2000), click("b", 2, 9000), click("a", 3, 10_999))

    live.run(flow)

    assert totals(live, out) == []
    live.send(source, click("a", 4, 3000), click("c", -1, 11_000))
    live.run(flow)
    # What `where` dropped told of time all the same: 11000 - 1000 - 1 is the last millisecond of the window.
    first = [
        ("a", "1970-01-01T00:00:00.000Z", 5, 2, 1, False),
        ("b", "1970-01-01T00:00:00.000Z", 2, 1, 1, False),
    ]
    assert totals(live, out) == first
    live.send(source, click("b", 5, 9999), click("a", 6, 16_000))
    live.run(flow)
    assert totals(live, out) == [*first, ("b", "1970-01-01T00:00:00.000Z", 7, 2, 2, True)]
    live.send(source, click("a", 7, 9999), click("a", 8, 1))
    live.run(flow)
    assert [(row["user"], row["price"]) for row in live.values(late)] == [("a", 7), ("a", 8)]


def test_a_partition_an_hour_behind_loses_nothing(live: Live) -> None:
    """Event time is that of the partition that is furthest behind."""
    source, out = clicks(live), live.topic("totals")
    flow = Flow("lagging")
    flow.read("clicks", source).window(Sliding(10, slide=5), by="user").aggregate(
        total="sum(price)", n="count(*)"
    ).write("totals", out)
    hour = 3_600_000
    ahead = [click("a", 1, hour + second * 1000) for second in range(30)]
    behind = [click("a", 1, second * 1000) for second in range(30)]
    live.send(
        source, *(row for pair in zip(ahead[:15], behind[:15], strict=True) for row in pair), partitions=2
    )
    live.run(flow)
    live.send(
        source, *(row for pair in zip(ahead[15:], behind[15:], strict=True) for row in pair), partitions=2
    )
    live.run(flow)

    rows = live.values(out)

    assert {row["n"] for row in rows if row["window_start"] >= "1970-01-01T00:00:00.000Z"} == {10}
    assert max(row["window_start"] for row in rows) == "1970-01-01T00:00:15.000Z"
