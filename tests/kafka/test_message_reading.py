"""Messages that Python reads while it packs them are those that Spark reads: results and dead letters."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Stream, Tumbling, bounded_out_of_orderness

pytestmark = pytest.mark.kafka

Live = Any

SCHEMA = "shop STRING, price BIGINT, n INT, share DOUBLE, open BOOLEAN, at BIGINT"
ODD: list[bytes | None] = [
    None, b"", b"null", b"[]", b"{", b"{} x", b"{}", b'{"at":null,"shop":"a"}', b'{"at":"5"}', b'{"at":1.5}',
    b'{"at":5,"n":2147483648}', b'{"at":5,"price":9223372036854775808}', b'{"at":5,"price":1.0}',
    b'{"at":5,"share":"NaN"}', b'{"at":5,"share":1e999}', b'{"at":5,"share":7}', b'{"at":5,"open":1}',
    b'{"at":5,"shop":7}', b'{"at":5,"shop":"\xff"}', b'{"at":5,"shop":"\\ud83d\\ude00"}',
    b'{"at":5,"shop":""}',
    b'{"at":5,"shop":"\\ud800"}', b'{"at":253402300800000000}', b'{"at":5} {"at":6}',
    b'{"at":6,"shop":"a"}\n',
    b'{"AT":5,"shop":"a"}', b'{"at":7,"shop":"a","more":{"at":[1]}}', b'{"at":8,"shop":null,"price":3}',
]  # fmt: skip


def _messages(seed: int) -> list[bytes | None]:
    chance = random.Random(seed)  # noqa: S311 - messages for a test
    good = [
        b'{"shop":"%s","price":%d,"n":%d,"share":%r,"open":true,"at":%d}'
        % (shop.encode(), chance.randrange(-5, 100), chance.randrange(9), chance.random(), at)
        for shop, at in (
            (chance.choice(["a", "b", "żółć", "c" * 300]), chance.randrange(60_000)) for _ in range(300)
        )
    ]
    messages = [*good, *ODD, *ODD]
    chance.shuffle(messages)
    return [*messages, b'{"at":900000}', b'{"at":900000}', b'{"at":900000}']


Topics = dict[str, KafkaTopic]
Connect = Callable[[list[Stream], Topics], None]


def _windows(streams: list[Stream], topics: Topics) -> None:
    by = ("shop", "n")
    windows = streams[0].window(Tumbling(10), by=by, allowed_lateness=100, late="side-output")
    results = windows.aggregate(total="sum(price)", most="max(share)", count="count(*)")
    results.write("out", topics["out"])
    results.late.write("late", topics["late"])


def _join(streams: list[Stream], topics: Topics) -> None:
    left, right = streams
    orders = right.select("shop", "n", "price AS paid", "share AS part")
    left.join(orders, on=("shop", "n"), how="inner", ttl=None).write("out", topics["out"])


def _interval_join(streams: list[Stream], topics: Topics) -> None:
    left, right = streams
    pairs = left.join_interval(
        right.select("shop", "price AS paid"),
        on="shop",
        before=timedelta(seconds=1),
        after=timedelta(seconds=2),
        how="full",
        late="side-output",
    )
    pairs.write("out", topics["out"])
    pairs.late_left.write("late", topics["late"])


def _ranks(streams: list[Stream], topics: Topics) -> None:
    best = streams[0].top_n(2, by="shop", order=("price desc", "at", "share", "n"))
    best.write("out", topics["out"])
    streams[0].select("shop", "at").write("records", topics["records"])  # in a query that writes dead letters


def _filtered(streams: list[Stream], topics: Topics) -> None:
    some = streams[0].where("price > 10 AND shop IN ('a', 'b') OR shop IS NULL").with_columns(few="n < 3")
    windows = some.window(Tumbling(10), by=("shop", "few"))
    results = windows.aggregate(dear="count_if(price BETWEEN 50 AND 80)", total="sum(price)")
    results.write("out", topics["out"])


def _windows_of_windows(streams: list[Stream], topics: Topics) -> None:
    counts = streams[0].window(Tumbling(10), by="shop", name="counts").aggregate(n="count(*)")
    totals = counts.window(Tumbling(20), name="totals", uses=["n"]).aggregate(all="sum(n)")
    totals.write("out", topics["out"])
    streams[0].select("shop", "at").write("late", topics["late"])


def _star(streams: list[Stream], topics: Topics) -> None:
    center, *others = streams
    for name, other in zip(("out", "late"), others, strict=True):
        center.join(other.select("shop", "n", "at AS since"), on=("shop", "n"), ttl=None).write(
            name, topics[name]
        )


CONNECTED: dict[str, tuple[int, Connect, list[str]]] = {
    "windows": (1, _windows, ["out", "late"]),
    "join": (2, _join, ["out"]),
    "interval": (2, _interval_join, ["out", "late"]),
    "ranks": (1, _ranks, ["out", "records"]),
    "filtered": (1, _filtered, ["out"]),
    "nested-beside-records": (1, _windows_of_windows, ["out", "late"]),
    "star": (3, _star, ["out", "late"]),
}
"""Sources, what reads them, and its topics."""


def _without_names(text: str, names: dict[str, str]) -> str:
    for name, instead in names.items():
        text = text.replace(name, instead)
    return re.sub(r":[\w-]{22}:[\w-]{8}(\.\d)?:", r"\1:", text)  # of an output's topic, and of sources


def _run(live: Live, name: str, *, by_spark: bool) -> tuple[list[Counter[str]], Counter[str]]:
    """The records of each topic with their ids, and the dead letters, of two runs over the same messages."""
    sources, connect, written = CONNECTED[name]
    flow = Flow(f"{name}-{'spark' if by_spark else 'python'}")
    watermark = bounded_out_of_orderness(timedelta(seconds=30))
    declared = [
        live.topic(f"{flow.name}-{place}", schema=SCHEMA, event_time="at", watermark=watermark)
        for place in range(sources)
    ]
    streams = [flow.read(f"in{place}", topic) for place, topic in enumerate(declared)]
    if by_spark:
        streams = [stream.where("coalesce(price, 0) < 1000") for stream in streams]
    topics = {each: live.topic(f"{flow.name}-{each}") for each in written}
    connect(streams, topics)
    for seed in (1, 2):
        for place, topic in enumerate(declared):
            messages = _messages(seed + 10 * place)
            live.send(topic, *messages, partitions=3, times_ms=[1_700_000_000_000 + seed] * len(messages))
        live.run(flow)
    names = {live.topic_id(topic): f"id{place}" for place, topic in enumerate(declared)}
    names |= {flow.name: "flow", live.suffix: "suffix"}
    found = [
        Counter(_without_names(f"{record.id} {record.key!r} {record.value!r}", names) for record in records)
        for records in (live.records(topic) for topic in topics.values())
    ]
    letters = Counter(
        _without_names(f"{record.value!r} {_told(record)}", names)
        for topic in declared
        for record in live.records(topic.dead_letter)
    )
    return found, letters


def _told(record: Any) -> list[tuple[str, bytes]]:
    """The headers of a dead letter that are the same in each run."""
    return sorted(
        item for item in record.headers.items() if item[0] not in ("flowcore-id", "flowcore-failed-at")
    )


@pytest.mark.parametrize("name", CONNECTED)
def test_python_reads_messages_as_spark_does(live: Live, name: str) -> None:
    """The other flow has filters that keep all records, so that Spark reads the messages."""
    found, letters = _run(live, name, by_spark=False)
    expected, expected_letters = _run(live, name, by_spark=True)

    for mine, other in zip([*found, letters], [*expected, expected_letters], strict=True):
        assert [*(mine - other)][:3] == [*(other - mine)][:3] == []  # a comparison of all takes minutes
    assert min(map(len, found)) >= 3
    assert sum(letters.values()) > 60
