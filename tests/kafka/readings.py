"""Run a flow twice: Python reads the rows of one run, Spark those of the other, to compare the results."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from flowcore import Flow, KafkaTopic, Stream, bounded_out_of_orderness
from flowcore.spark.operators import exchanges

__all__ = ["Flows", "Topics", "require_same_results"]

Live = Any

_RUNS = 2

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
"""The topics of the results, by name."""
Flows = tuple[int, Callable[[list[Stream], Topics], None], list[str]]
"""Number of sources, what reads them, and the names of its topics."""


def _without_names(text: str, names: dict[str, str]) -> str:
    for name, instead in names.items():
        text = text.replace(name, instead)
    text = re.sub(r":[\w-]{22}:[\w-]{8}(\.\d)?:", r"\1:", text)  # of an output's topic, and of sources
    return re.sub(r":1[789]\d{11}:", ":clock:", text)  # of a time that is no event time


def _run(live: Live, name: str, flows: Flows, *, by_spark: bool) -> tuple[list[Counter[str]], Counter[str]]:
    """The records of each topic with their ids, and the dead letters, of two runs over the same messages."""
    sources, connect, written = flows
    flow = Flow(f"{name}-{'spark' if by_spark else 'python'}")
    watermark = bounded_out_of_orderness(timedelta(seconds=30))
    declared = [
        live.topic(f"{flow.name}-{place}", schema=SCHEMA, event_time="at", watermark=watermark)
        for place in range(sources)
    ]
    streams = [flow.read(f"in{place}", topic) for place, topic in enumerate(declared)]
    topics = {each: live.topic(f"{flow.name}-{each}") for each in written}
    connect(streams, topics)
    for seed in range(1, _RUNS + 1):
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


def require_same_results(live: Live, name: str, flows: Flows) -> int:
    """Run a flow twice, and compare what it writes, with ids and dead letters.

    Returns:
        How many of its exchanges read rows in Python.
    """
    real, read = exchanges.select_unparsed, []

    def select(*arguments: Any) -> Any:
        read.append(real(*arguments))
        return read[-1]

    with patch.object(exchanges, "select_unparsed", select):
        found, letters = _run(live, name, flows, by_spark=False)
    with patch.object(exchanges, "select_unparsed", return_value=None):
        expected, expected_letters = _run(live, name, flows, by_spark=True)

    for mine, other in zip([*found, letters], [*expected, expected_letters], strict=True):
        different = [*(mine - other)][:3], [*(other - mine)][:3]  # a comparison of all takes minutes
        assert different == ([], []), different
    assert min(map(len, found)) >= 3, [*map(len, found)]
    assert sum(letters.values()) > 60
    return sum(each is not None for each in read) // _RUNS
