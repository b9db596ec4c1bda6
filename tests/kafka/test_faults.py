"""Windows and buffers give the same results after their driver or Python workers are killed."""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import psutil
import pytest

from flowcore import Flow, KafkaTopic, Session
from flowcore.errors import RunError
from flowcore.planner import plan_flow
from flowcore.spark.operators.key_groups import WORKER_POOL
from flowcore.spark.run.flow import open_context
from flowcore.spark.run.live_stage import LiveRun
from flowcore.watermarks import monotonous
from tests.kafka.conftest import Live
from tests.kafka.driver import driver_settings, kill_driver, report_running
from tests.kafka.test_live_buffers import BID, Top
from tests.python_workers import running_workers

KEYS = 7
CLICK = "user STRING, price BIGINT, at BIGINT"


def sessions(source: str, out: str) -> Flow:
    flow = Flow("sessions")
    clicks = KafkaTopic(source, schema=CLICK, event_time="at", watermark=monotonous())
    found = flow.read("clicks", clicks).window(Session(5), by="user", name="visits")
    found.aggregate(total="sum(price)", n="count(*)").write("out", KafkaTopic(out))
    return flow


def tops(source: str, out: str) -> Flow:
    flow = Flow("tops")
    bids = flow.read("bids", KafkaTopic(source, schema=BID))
    schema = "shop BIGINT, top BIGINT"
    found = bids.process(Top(), schema=schema, by="shop", flush=timedelta(seconds=1), name="highest")
    found.write("tops", KafkaTopic(out, key="shop"))  # a shop's results in one partition, in order
    return flow


def drive(servers: str, state: str, *topics: str) -> None:
    """Run a slice of the windows and a live run of the buffer until this process is killed."""
    settings = driver_settings(servers, state)
    windows = plan_flow(sessions(*topics[:2]), "slice", settings)
    buffer = plan_flow(tops(*topics[2:]), None, settings)
    with (
        open_context(windows, settings) as context,
        LiveRun(windows, context) as first,
        LiveRun(buffer, replace(context, flow="tops")) as second,
    ):
        report_running()
        while not second.wait(0.05):
            first.wait(0)


def send_clicks(live: Live, source: KafkaTopic, records: int) -> dict[tuple[str, int, int], int]:
    """Send clicks of visits with pauses; return the sum of each complete visit."""
    rows, visits = [], defaultdict(list)
    for number in range(records):
        user, at = f"u{number % 7}", number * 1000
        if number // 7 % 5 < 3 or number // 7 % 5 == 4:
            rows.append({"user": user, "price": number, "at": at})
    for row in rows:
        mine = visits[row["user"]]
        if mine and row["at"] <= mine[-1][1]:
            mine[-1] = (mine[-1][0], row["at"] + 5000, mine[-1][2] + row["price"])
        else:
            mine.append((row["at"], row["at"] + 5000, row["price"]))
    live.send(source, *rows, partitions=2)
    slowest = min(rows[-1]["at"], rows[-2]["at"])
    return {
        (user, start, end): total
        for user, found in visits.items()
        for start, end, total in found
        if end <= slowest
    }


def send_bids(live: Live, source: KafkaTopic, records: int) -> dict[int, int]:
    """Send bids of shops with rising and falling prices; return the highest price of each shop."""
    rows = [{"shop": n % KEYS, "price": 1 + n * 37 % 1000} for n in range(records)]
    live.send(source, *rows, partitions=2)
    return {shop: max(row["price"] for row in rows if row["shop"] == shop) for shop in range(KEYS)}


def outputs(live: Live, topic: KafkaTopic) -> dict[bytes, bytes]:
    """Outputs by record id, in the order of their first occurrence; repeats must be equal."""
    found: dict[bytes, bytes] = {}
    for record in live.records(topic):
        identity, value = record.headers["flowcore-id"], record.value or b""
        assert found.setdefault(identity, value) == value
    return found


def check_visits(live: Live, topic: KafkaTopic, expected: dict[tuple[str, int, int], int]) -> None:
    totals = {(row["user"], row["n"] > 0, row["total"]) for row in live.values(topic)}
    assert totals == {(user, True, total) for (user, _, _), total in expected.items()}
    assert len(outputs(live, topic)) == len(expected)


def check_order(live: Live, topic: KafkaTopic) -> None:
    """Without repeats, the results of a shop only rise."""
    last: dict[int, int] = {}
    for value in outputs(live, topic).values():
        row = json.loads(value)
        assert row["top"] >= last.get(row["shop"], 0)
        last[row["shop"]] = row["top"]


@pytest.mark.thorough
@pytest.mark.parametrize("kills", [[(4, 0.0)], [(0, 1.0), (4, 0.0)]], ids=["once", "twice"])
def test_driver_restarted_after_kills_gives_the_same_results(
    live: Live, kills: list[tuple[int, float]]
) -> None:
    """The driver is killed in its run, so many batches and seconds after its start."""
    clicks, visits = live.topic("clicks"), live.topic("visits")
    bids, highest = live.topic("bids"), live.topic("tops")
    expected = send_clicks(live, clicks, 300)
    best = send_bids(live, bids, 300)
    topics = [topic.name for topic in (clicks, visits, bids, highest)]
    for batches, seconds in kills:
        kill_driver(drive, live, *topics, batches=batches, after_s=seconds)

    live.run(sessions(clicks.name, visits.name))
    live.run(tops(bids.name, highest.name), None, until=lambda _: live.wait_for(highest, "top", best))

    check_visits(live, visits, expected)
    check_order(live, highest)


@pytest.fixture
def kill_workers(live: Live, monkeypatch: pytest.MonkeyPatch) -> Callable[[LiveRun], None]:
    """Kill the Python workers of key groups until the run fails.

    Queries have a pool of workers of their own, as in production.
    """
    monkeypatch.delitem(live.spark.sparkContext.environment, WORKER_POOL)
    others, _ = running_workers(live.spark)

    def kill(run: LiveRun) -> None:
        for _ in range(2000):
            daemons, workers = running_workers(live.spark)
            for pid in workers:
                if psutil.Process(pid).ppid() in daemons - others:
                    os.kill(pid, signal.SIGKILL)
            if run.wait(0.05):
                return

    return kill


def test_windows_of_a_killed_worker_continue_in_the_next_run(
    live: Live, kill_workers: Callable[[LiveRun], None]
) -> None:
    """The worker's state in memory and its partial work are lost; the next run restores the state."""
    source, out = live.topic("clicks"), live.topic("visits")
    expected = send_clicks(live, source, 200)
    flow = sessions(source.name, out.name)

    with pytest.raises(RunError):
        live.run(flow, until=kill_workers)
    live.run(flow)

    check_visits(live, out, expected)


@pytest.mark.thorough
def test_buffer_of_a_killed_worker_is_sent_by_the_next_run(
    live: Live, kill_workers: Callable[[LiveRun], None]
) -> None:
    """The next run reads the buffered results from the state store."""
    live = type(live)(live.servers, replace(live.settings, max_batch_records=20), live.spark)
    source, out = live.topic("bids"), live.topic("tops")
    highest = send_bids(live, source, 400)
    flow = tops(source.name, out.name)

    with pytest.raises(RunError):
        live.run(flow, None, until=kill_workers)
    live.run(flow, None, until=lambda _: live.wait_for(out, "top", highest))

    check_order(live, out)
