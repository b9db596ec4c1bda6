"""Bad records upstream of Spark's own aggregate: another query writes them, and reads only where some are."""

from __future__ import annotations

import time
from typing import Any

import pytest

from flowcore import Flow
from flowcore.planner import plan_flow
from flowcore.spark.run.live_stage import LiveRun
from tests.kafka.conftest import Live
from tests.sampling import sample
from tests.waiting import run_until

pytestmark = pytest.mark.kafka

SALE = "id BIGINT NOT NULL, amount BIGINT"
SLEEP_S = 60


def _sales(first: int, last: int) -> list[dict[str, Any]]:
    return [{"id": number % 3, "amount": number} for number in range(first, last)]


def _declare(live: Live) -> tuple[Flow, Any, Any]:
    sales, totals = live.topic("sales", schema=SALE), live.topic("totals")
    flow = Flow("sums")
    flow.read("sales", sales).aggregate(by="id", total="sum(amount)").write("totals", totals)
    return flow, sales, totals


def _totals(live: Live, totals: Any) -> dict[int, int]:
    return {row["id"]: row["total"] for row in live.values(totals)}


def _read(run: LiveRun) -> dict[str, int]:
    """The number of records that Spark has read for each query."""
    return {
        name: sum(each.numInputRows for each in query.recentProgress) for name, query in run.running.items()
    }


def test_only_batches_with_bad_records_are_read_for_dead_letters(live: Live) -> None:
    """The plan says so. Their shares are of all records, so the others count, too, as passed."""
    flow, sales, totals = _declare(live)
    live.send(sales, *_sales(0, 300))
    counting, writing = plan_flow(flow, "micro-batch").live_queries
    assert [source.name for source in counting.counts_bad] == ["sales"]
    assert "it skips a batch in which query totals counted no bad record" in "".join(writing.split.reasons)

    def follow(run: LiveRun) -> None:
        run_until(run, lambda: [query.rows_in for query in run.progress()] == [300, 300])
        assert _read(run) == {"totals": 300, "sales": 0}
        live.send(sales, *_sales(300, 400), b"bad", {"amount": 1})
        run_until(run, lambda: sum(query.dead_letters for query in run.progress()) == 2)
        run_until(run, lambda: [query.rows_in for query in run.progress()] == [402, 402])
        assert _read(run) == {"totals": 402, "sales": 102}
        live.send(sales, *_sales(400, 500))
        run_until(run, lambda: [query.rows_in for query in run.progress()] == [502, 502])
        assert _read(run) == {"totals": 502, "sales": 102}

    live.run(flow, "micro-batch", follow)

    assert _totals(live, totals) == {key: sum(range(key, 500, 3)) for key in range(3)}
    assert [record.value for record in live.records(sales.dead_letter)] == [b"bad", b'{"amount": 1}']


@pytest.mark.parametrize("mode", sample(["slice", "realtime"], "realtime"))
def test_dead_letters_arrive_in_every_mode(live: Live, mode: Any) -> None:
    """A slice ends when both queries have; in real-time mode, where nothing is counted, all is read."""
    flow, sales, totals = _declare(live)
    live.send(sales, *_sales(0, 30), b"bad")

    def follow(run: LiveRun) -> None:
        run_until(run, lambda: len(live.records(sales.dead_letter)) == 1)
        run_until(run, lambda: len(_totals(live, totals)) == 3)

    live.run(flow, mode, None if mode == "slice" else follow)
    live.send(sales, b"worse", *_sales(30, 60))
    live.run(flow, "slice")

    assert _totals(live, totals) == {key: sum(range(key, 60, 3)) for key in range(3)}
    assert [record.value for record in live.records(sales.dead_letter)] == [b"bad", b"worse"]


@pytest.mark.thorough
def test_function_that_takes_its_frame_twice_still_counts(live: Live) -> None:
    """Spark then has the count twice in its plan, under one name."""
    sales, out = live.topic("sales", schema=SALE), live.topic("out")
    live.send(sales, *_sales(0, 3), b"bad")
    flow = Flow("twice")
    flow.read("sales", sales).apply(lambda frame: frame.unionByName(frame)).write("out", out)

    live.run(flow)

    assert len(live.values(out)) == 6
    assert [record.value for record in live.records(sales.dead_letter)] == [b"bad"]


@pytest.mark.thorough
def test_stop_does_not_wait_for_a_count_and_loses_no_dead_letter(live: Live) -> None:
    """The counting query is slow: what is not counted yet is neither read nor committed."""
    sales, out = live.topic("sales", schema=SALE), live.topic("out")
    live.send(sales, *_sales(0, 3), b"bad")

    def declare(sleep_s: int) -> Flow:
        def slowly(frame: Any) -> Any:
            def wait(batches: Any) -> Any:
                time.sleep(sleep_s)
                yield from batches

            return frame.mapInArrow(wait, frame.schema)

        flow = Flow("slow")
        flow.read("sales", sales).apply(slowly, name="slowly").write("out", out)
        return flow

    stopping: list[float] = []

    def follow(run: LiveRun) -> None:
        waits = time.monotonic() + 8
        run_until(run, lambda: time.monotonic() > waits)
        assert not any(query.batches for query in run.progress())
        stopping.append(time.monotonic())

    live.run(declare(SLEEP_S), "micro-batch", follow)
    assert time.monotonic() - stopping[0] < SLEEP_S / 2
    assert not live.records(sales.dead_letter)

    live.run(declare(0), "slice")

    assert len(live.values(out)) == 3
    assert [record.value for record in live.records(sales.dead_letter)] == [b"bad"]
