"""Results buffered by key group are emitted once per interval, and each key's last result always is."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flowcore import Flow, Global, Json, KafkaTopic, KeyedProcessFunction, RichFunction, Tumbling, monotonous
from flowcore.errors import StateError
from flowcore.windows.triggers import Count
from tests.kafka.conftest import Live

KEYS = 4
BID = "shop BIGINT, price BIGINT"
INTERVAL = timedelta(seconds=1)
STEPS = 40
FAR = timedelta(hours=1)
"""An interval that no test sees pass."""


class Latest(RichFunction):
    """Emits each price unchanged; a shop's last price replaces the earlier ones."""

    def is_output_idempotent(self) -> bool:
        return True

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        return {"shop": record["shop"], "top": record["price"]}


class Top(KeyedProcessFunction):
    """Emits the highest value of a column by shop after each record."""

    def __init__(self, column: str = "price") -> None:
        self.column = column

    def is_output_idempotent(self) -> bool:
        return True

    def open(self, context: Any) -> None:
        self.top = context.value_state("top", "BIGINT")

    def process(self, record: Mapping[str, Any], context: Any) -> Iterator[Mapping[str, Any]]:
        self.top.set(max(self.top.get(0), record[self.column]))
        yield {"shop": context.key, "top": self.top.get()}


def by_function(bids: KafkaTopic, tops: KafkaTopic, flush: timedelta) -> Flow:
    flow = Flow("tops")
    read = flow.read("bids", bids)
    found = read.map(Latest(), schema="shop BIGINT, top BIGINT", key="shop", flush=flush, name="latest")
    found.where("top >= 0").write("tops", tops)
    return flow


def by_process(bids: KafkaTopic, tops: KafkaTopic, flush: timedelta) -> Flow:
    flow = Flow("tops")
    read = flow.read("bids", bids)
    found = read.process(Top(), schema="shop BIGINT, top BIGINT", by="shop", flush=flush, name="highest")
    found.write("tops", tops)
    return flow


def by_windows(bids: KafkaTopic, tops: KafkaTopic, flush: timedelta) -> Flow:
    flow = Flow("tops")
    windows = flow.read("bids", bids).window(Global(), by="shop", trigger=Count(1), flush=flush)
    windows.aggregate(top="max(price)").select("shop", "top").write("tops", tops)
    return flow


Declared = Callable[[KafkaTopic, KafkaTopic, timedelta], Flow]
each_kind = pytest.mark.parametrize(
    "declared",
    [
        pytest.param(by_function, id="function", marks=pytest.mark.thorough),
        pytest.param(by_process, id="process", marks=pytest.mark.thorough),
        pytest.param(by_windows, id="windows"),
    ],
)


def bids_of(first: int, number: int) -> list[dict[str, Any]]:
    return [{"shop": n % KEYS, "price": n} for n in range(first, first + number)]


@each_kind
def test_results_are_emitted_once_per_interval_and_after_the_last_input(
    live: Live, declared: Declared
) -> None:
    """Every record has a result; each shop emits at most one per interval, and its last one is emitted."""
    bids, tops = live.topic("bids", schema=BID), live.topic("tops")
    live.send(bids, *bids_of(0, KEYS))
    began = 0.0

    def feed(_: object) -> None:
        nonlocal began
        began = time.monotonic()
        for step in range(STEPS):
            live.send(bids, *bids_of(KEYS + step * KEYS, KEYS))
            time.sleep(0.1)
        live.wait_for(tops, "top", {shop: STEPS * KEYS + shop for shop in range(KEYS)})

    live.run(declared(bids, tops, INTERVAL), mode=None, until=feed)

    found = live.values(tops)
    intervals = (time.monotonic() - began) / INTERVAL.total_seconds()
    assert max(Counter(row["shop"] for row in found).values()) <= intervals + 2
    for shop in range(KEYS):
        mine = [row["top"] for row in found if row["shop"] == shop]
        assert mine == sorted(set(mine))


@pytest.mark.thorough
def test_results_are_emitted_when_no_input_is_available(live: Live) -> None:
    """An idle source flushes before the interval ends; a stopped run's buffer is flushed after a restart."""
    bids, tops = live.topic("bids", schema=BID), live.topic("tops")
    flow = by_process(bids, tops, FAR)
    live.send(bids, *bids_of(0, 2 * KEYS))

    live.run(flow, mode=None, until=lambda _: live.wait_for(tops, "top", {n: KEYS + n for n in range(KEYS)}))
    assert len(live.values(tops)) == KEYS

    live.send(bids, *bids_of(2 * KEYS, KEYS))
    read = {n: 2 * KEYS + n for n in range(KEYS)}
    live.run(flow, mode=None, until=lambda run: _until_read(run, KEYS))
    live.run(flow, mode=None, until=lambda _: live.wait_for(tops, "top", read))
    # A run that is stopped while it writes a batch leaves some results to be written again.
    assert len({record.id for record in live.records(tops)}) == 2 * KEYS


def _until_read(run: Any, records: int) -> None:
    while sum(query.rows_in for query in run.progress()) < records:
        time.sleep(0.05)


@each_kind
def test_slice_emits_once_after_its_last_batch(live: Live, declared: Declared) -> None:
    """Results do not wait for a next slice, which may have no input."""
    live = type(live)(live.servers, replace(live.settings, max_batch_records=2 * KEYS), live.spark)
    bids, tops = live.topic("bids", schema=BID), live.topic("tops")
    live.send(bids, *bids_of(0, 6 * KEYS))

    live.run(declared(bids, tops, FAR))

    assert live.latest(tops, "top") == {shop: 5 * KEYS + shop for shop in range(KEYS)}
    assert len(live.values(tops)) == KEYS

    live.run(declared(bids, tops, FAR))
    assert len(live.values(tops)) == KEYS


class TopWithBacklogStatus(Top):
    """Emits the highest price and whether the record belongs to the backlog."""

    def process(self, record: Mapping[str, Any], context: Any) -> Iterator[Mapping[str, Any]]:
        for top in super().process(record, context):
            yield {**top, "history": context.is_backlog}


@pytest.mark.thorough
def test_backlog_results_are_emitted_when_the_backlog_ends(live: Live) -> None:
    """Batches of the backlog emit nothing, also over a restart; at its end all results are emitted.

    Live results are emitted once per interval again.
    """
    settings = replace(
        live.settings, max_batch_records=2 * KEYS, backlog_enter=4 * KEYS, backlog_leave=KEYS, key_groups=4
    )
    live = type(live)(live.servers, settings, live.spark)
    bids, tops = live.topic("bids", schema=BID), live.topic("tops")
    live.send(bids, *bids_of(0, 24 * KEYS))
    flow = Flow("tops")
    read = flow.read("bids", bids)
    often = timedelta(milliseconds=1)
    schema = "shop BIGINT, top BIGINT, history BOOLEAN"
    read.process(TopWithBacklogStatus(), schema=schema, by="shop", flush=often, name="highest").write(
        "tops", tops
    )

    live.run(flow, mode=None, until=lambda run: _until_read(run, 4 * KEYS))
    assert live.values(tops) == []

    def catch_up(run: Any) -> None:
        sent = 24
        while not (found := live.values(tops)) or any(row["history"] for row in found[-KEYS:]):
            run.wait(1)
            if live.latest(tops, "top") == {shop: (sent - 1) * KEYS + shop for shop in range(KEYS)}:
                live.send(bids, *bids_of(sent * KEYS, KEYS))
                sent += 1

    live.run(flow, mode=None, until=catch_up)

    for shop in range(KEYS):
        history = [row["top"] for row in live.values(tops) if row["shop"] == shop and row["history"]]
        assert {shop + 23 * KEYS} <= {*history}
        assert len([top for top in history if top < 24 * KEYS]) <= 2


@pytest.mark.thorough
def test_full_memory_buffer_is_flushed(live: Live) -> None:
    """Each key group has its share of the entries, so that all groups together stay below the limit."""
    settings = replace(live.settings, flush_memory_only=True, cache_entries=32, key_groups=1)
    live = type(live)(live.servers, settings, live.spark)
    bids, tops = live.topic("bids", schema=BID), live.topic("tops")
    rows = [{"shop": n, "price": n} for n in range(100)]
    live.send(bids, *rows)

    def until(_: object) -> None:
        end = time.monotonic() + 300
        while len(live.values(tops)) < 96:
            assert time.monotonic() < end
            time.sleep(0.2)

    live.run(by_function(bids, tops, FAR), mode=None, until=until)


@pytest.mark.thorough
def test_buffer_is_refused_for_state_made_without_a_buffer(live: Live) -> None:
    """A buffer changes the state layout: the error names the difference, and the state is unchanged."""
    bids, tops = live.topic("bids", schema=BID), live.topic("tops")
    live.send(bids, *bids_of(0, KEYS))
    live.run(by_process(bids, tops, timedelta(0)))

    with pytest.raises(StateError, match="the latest output until a flush"):
        live.run(by_process(bids, tops, INTERVAL))

    live.run(by_process(bids, tops, timedelta(0)))


class ByCity(Latest):
    """Emits each price for the city of its shop."""

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        return {"city": record["city"], "top": record["price"]}


@pytest.mark.thorough
def test_buffer_continues_where_keys_of_a_joined_result_begin_to_repeat(live: Live, tmp_path: Path) -> None:
    """A shop moves into a second city: the state of the buffer has the same layout."""
    bids, tops = live.topic("bids", schema=BID), live.topic("tops")
    folder = tmp_path / "cities"
    folder.mkdir()

    def run(price: int, **cities: int) -> set[tuple[str, int]]:
        for city, shop in cities.items():
            (folder / f"{city}.json").write_text(json.dumps({"shop": shop, "city": city}))
        live.send(bids, {"shop": 1, "price": price})
        flow = Flow("tops")
        joined = flow.read("bids", bids).join(
            flow.read("cities", Json("cities", schema="shop BIGINT, city STRING")), on="shop"
        )
        joined.map(ByCity(), schema="city STRING, top BIGINT", key="city", flush=FAR, name="latest").write(
            "tops", tops
        )
        live.run(flow)
        return {(row["city"], row["top"]) for row in live.values(tops)}

    assert run(1, Basel=1) == {("Basel", 1)}
    assert run(2, Brig=1) == {("Basel", 1), ("Basel", 2), ("Brig", 2)}


class Passed(Latest):
    """Emits its records, and fails for negative prices."""

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        if record.get("price", 0) < 0:
            msg = "a negative price"
            raise ValueError(msg)
        return record


@pytest.mark.thorough
def test_buffers_of_functions_stand_between_and_beside_windows_in_one_query(live: Live) -> None:
    """Windows count what leaves the buffer upstream of them; others count all; failures are dead letters."""
    live.settings = replace(live.settings, key_groups=2, shuffle_partitions=1)
    row = "shop BIGINT, price BIGINT, at BIGINT"
    bids = live.topic("bids", schema=row, event_time="at", watermark=monotonous())
    tops, counts = live.topic("tops"), live.topic("counts")
    flow = Flow("tops")
    read = flow.read("bids", bids)
    latest = read.map(Passed(), schema=row, key="shop", flush=FAR, name="latest")
    left = latest.window(Tumbling(10), by="shop", name="left").aggregate(n="count(*)", top="max(price)")
    last = left.map(Passed(), schema="shop BIGINT, n BIGINT, top BIGINT", key="shop", flush=FAR, name="last")
    last.write("tops", tops)
    read.window(Tumbling(10), by="shop", name="all").aggregate(n="count(*)").write("counts", counts)
    names: list[str] = []

    def finish(run: Any) -> None:
        names.extend(run.running)
        assert run.wait(180)

    rows = [{"shop": n % KEYS, "price": n, "at": n} for n in range(3 * KEYS)]
    live.send(bids, *rows, {"shop": 0, "price": -1, "at": 100}, {"shop": 9, "price": 1, "at": 20_000})
    live.run(flow, until=finish)

    assert names == ["bids-batches"]
    found = sorted((row["shop"], row["top"], row["n"]) for row in live.values(tops))
    assert found == [(shop, 2 * KEYS + shop, 1) for shop in range(KEYS)]
    ids = [record.id for record in live.records(tops)]
    assert len(set(ids)) == len(ids)
    assert sorted(row["n"] for row in live.values(counts)) == [*[3] * (KEYS - 1), 4]
    letters = live.records(bids.dead_letter)
    assert [record.json["price"] for record in letters] == [-1]
    assert {record.headers["flowcore-operator"] for record in letters} == {b"latest"}
