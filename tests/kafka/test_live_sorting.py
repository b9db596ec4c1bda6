"""Records leave a live query in order of event time, for each key and for each partition."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Tumbling
from flowcore.watermarks import bounded_out_of_orderness
from tests.kafka.conftest import Live
from tests.kafka.driver import kill_driver, run_slice

EVENT = "id BIGINT, user STRING, part INT, at BIGINT"
BOUND_MS = 3_000
END_MS = 60_000
FAILING = 13


def check(record: dict[str, Any]) -> dict[str, Any]:
    """Fail for one record."""
    if record["id"] == FAILING:
        raise ValueError(record)
    return record


def ordered_events(*topics: KafkaTopic) -> Flow:
    """Events by user and by partition, each in order; what comes too late; and the users' counts in 10 s."""
    events, by_user, by_part, late, counts = topics
    flow = Flow("ordered")
    watermark = bounded_out_of_orderness(timedelta(milliseconds=BOUND_MS))
    source = flow.read("events", replace(events, schema=EVENT, event_time="at", watermark=watermark))
    users = source.sort_by_event_time(by="user", late="side-output", name="users")
    users.write("by_user", by_user, key="user")
    users.late.select("id").write("late", late)
    parts = source.sort_by_event_time(name="parts")
    parts.map(check, schema=EVENT, name="checked").write("by_part", by_part, key="part")
    windows = users.window(Tumbling(10), by="user", name="counted")
    windows.aggregate(n="count(*)").write("counts", counts)
    return flow


def random_events() -> list[dict[str, Any]]:
    """Events that are out of order by up to the bound, many at the same time."""
    chance = random.Random(5)  # noqa: S311 - test data
    times = sorted(chance.randrange(END_MS) // 50 * 50 for _ in range(240))
    newest, rows = [0, 0], []
    for number, time_ms in enumerate(times):
        part = number % 2
        newest[part] = max(newest[part], time_ms)
        at = max(newest[part] - BOUND_MS, time_ms - chance.randrange(6_000), 0)
        rows.append({"id": number, "user": chance.choice(["a", "b", None]), "part": part, "at": at})
    return rows


def closing(time_ms: int) -> list[dict[str, Any]]:
    """An event of each partition that advances the watermark to just before a time."""
    return [{"id": -1, "user": "z", "part": part, "at": time_ms + BOUND_MS} for part in (0, 1)]


def drive(servers: str, state: str, *topics: str) -> None:
    """Run a slice of small batches until this process is killed."""
    run_slice(ordered_events, servers, state, topics, batch_records=40)


@pytest.mark.thorough
def test_records_leave_in_order_of_time_through_a_kill_of_the_driver(live: Live) -> None:
    """Through a slice that is killed, a repeated batch, and micro-batches; ids and messages are kept."""
    topics = [live.topic(name) for name in ("events", "by_user", "by_part", "late", "counts")]
    events, by_user, by_part, late, counts = topics
    rows = random_events()
    live.send(events, *rows, *closing(END_MS), partitions=2)
    kill_driver(drive, live, *(topic.name for topic in topics), batches=2, after_s=0.3)
    flow = ordered_events(*topics)
    live.run(flow)
    assert waiting(live, flow, "users") == {"z": 2}
    assert waiting(live, flow, "parts") == {0: 1, 1: 1}
    live.forget_last_batch("ordered", "events-batches")
    too_late = {"id": 900, "user": "a", "part": 0, "at": END_MS - 1}
    newer = {"id": 901, "user": "a", "part": 1, "at": END_MS + 1}
    live.send(events, too_late, newer, *closing(END_MS + 20_000), partitions=2)

    def everything_has_left(run: Any) -> None:
        live.wait_for_records(run, late, 1)
        while not {901, -1} <= {row["id"] for row in live.values(by_part)}:
            assert not run.wait(0.2), "the queries have ended"

    live.run(flow, "micro-batch", everything_has_left)

    rows += [newer, *closing(END_MS)]
    first = {record.id: record.json for record in reversed(live.records(by_user))}
    assert sorted(row["id"] for row in first.values()) == sorted(row["id"] for row in rows)
    place = {(row["part"], row["id"]): number for number, row in enumerate(rows)}
    for topic, column in ((by_user, "user"), (by_part, "part")):
        found: dict[Any, dict[int, dict[str, dict[str, Any]]]] = {}
        for record in live.records(topic):
            partitions = found.setdefault(record.json.get(column), {})
            partitions.setdefault(record.partition, {}).setdefault(record.id, record.json)
        for value, partitions in found.items():
            expected = sorted(
                (row for row in rows if row[column] == value and (topic is by_user or row["id"] != FAILING)),
                key=lambda row: row["at"],
            )
            if value is None:  # without a key, each batch chooses its partitions; a repeated one may differ
                times = [[row["at"] for row in each.values()] for each in partitions.values()]
                assert times == [sorted(each) for each in times]
                continue
            (of_value,) = partitions.values()
            assert [row["at"] for row in of_value.values()] == [row["at"] for row in expected]
            if column == "part":  # in order of arrival, if at the same time
                numbers = [place[row["part"], row["id"]] for row in of_value.values()]
                assert numbers == [place[row["part"], row["id"]] for row in expected]
    assert {record.value for record in live.records(events.dead_letter)} == {
        json.dumps(rows[FAILING]).encode()
    }
    assert [value["id"] for value in live.values(late)] == [900]
    assert live.records(late)[0].id == f"ordered/late:{live.topic_id(events)}:0:121:0"
    per_user: dict[tuple[Any, str], int] = {}
    for record in {record.id: record.json for record in live.records(counts)}.values():
        per_user[record.get("user"), record["window_start"]] = record["n"]
    assert sum(n for (user, _), n in per_user.items() if user != "z") == 241


def waiting(live: Live, flow: Flow, operator: str) -> dict[Any, int]:
    """How many records of each key wait for the watermark."""
    return {
        next(iter(key.key.values())): len(key.states["waiting_ms"]) for key in live.held_keys(flow, operator)
    }
