"""Arguments that cannot be meant are errors when they are declared, with the operator and what to pass."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Parquet, Stream, Tumbling, monotonous
from flowcore.errors import ConfigurationError

SCHEMA = "id BIGINT, item STRING, price DOUBLE, at BIGINT, tags ARRAY<STRING>, size STRUCT<x: INT, y: INT>"
HOUR = timedelta(hours=1)


class TimedStreams:
    """Two streams with event time, and a table; their columns differ but for ``id``."""

    def __init__(self) -> None:
        self.flow = Flow("timed")
        timed: dict[str, Any] = {"event_time": "at", "watermark": monotonous()}
        self.bids = self.flow.read("bids", KafkaTopic("bids", SCHEMA, **timed))
        asks = KafkaTopic("asks", "id BIGINT, ask DOUBLE, ask_at BIGINT", **{**timed, "event_time": "ask_at"})
        self.asks = self.flow.read("asks", asks)
        self.table = self.flow.read("table", Parquet("table", "id BIGINT, usual DOUBLE, seen_at BIGINT"))


LATE = r"operator '\w+': late='side_output' is not a choice: .*pass 'drop' or 'side-output'"

MISTAKES: dict[str, tuple[Callable[[TimedStreams], object], str]] = {
    "late-interval": (
        lambda g: g.bids.join_interval(g.asks, on="id", before=HOUR, after=HOUR, late="side_output"),
        LATE,
    ),
    "late-window-join": (
        lambda g: g.bids.join_window(g.asks, Tumbling(1), on="id", late="side_output"),
        LATE,
    ),
    "late-as-of": (lambda g: g.bids.join_asof(g.asks, on="id", late="side_output"), LATE),
    "late-sort": (lambda g: g.bids.sort_by_event_time(late="side_output"), LATE),
    "late-window": (lambda g: g.bids.window(Tumbling(1), late="side_output"), LATE),
    "join-text": (
        lambda g: g.bids.join("usual", on="id"),  # type: ignore[arg-type]
        "'join_1' of 'bids' takes 'usual', which is not a stream: .*; pass what flow.read",
    ),
    "union-nothing": (lambda g: g.bids.union(None), "takes None, which is not a stream"),  # type: ignore[arg-type]
    "as-of-windows": (
        lambda g: g.bids.join_asof(g.asks.window(Tumbling(1)), on="id"),  # type: ignore[arg-type]
        "takes WindowedStream, which is windows whose function is missing: .*; call aggregate",
    ),
    "then-text": (lambda g: g.table.then("bids"), "'then_1' of 'table' takes 'bids'"),  # type: ignore[arg-type]
    "by-none": (
        lambda g: g.bids.aggregate(by=None, n="count(*)"),  # type: ignore[arg-type]
        "'aggregate_1': by=None names no column: .*; pass for instance by='id', or a list",
    ),
    "window-by-none": (lambda g: g.bids.window(Tumbling(1), by=None), "by=None names"),  # type: ignore[arg-type]
    "on-none": (lambda g: g.bids.join(g.table, on=None), "'join_1': on=None names no"),  # type: ignore[arg-type]
    "passes-none": (
        lambda g: g.bids.map(dict, schema="id BIGINT", passes=None),  # type: ignore[arg-type]
        "'map_1': passes=None names no column",
    ),
    "folders-none": (
        lambda g: g.bids.write("out", Parquet("out", partition_by=None)),  # type: ignore[arg-type]
        "'out': partition_by=None names no column",
    ),
    "through-none": (lambda g: g.bids.through(None), "None is not a topic: .*; pass"),  # type: ignore[arg-type]
    "flatmap": (lambda g: g.bids.flatmap(list), r"no flatmap: .* flat_map\(function"),
}


def _firing(given: TimedStreams, name: str = "firing") -> Stream:
    return given.bids.window(Tumbling(1), by="id", allowed_lateness=5, name=name).aggregate(n="count(*)")


def _counts(given: TimedStreams) -> Stream:
    return given.bids.aggregate(by="id", n="count(*)", name="counts")


def _read_updating(given: TimedStreams) -> Stream:
    return given.flow.read("users", KafkaTopic("users", "id BIGINT, city STRING", updating_by="id"))


ADVICE: dict[str, tuple[Callable[[TimedStreams], object], str]] = {
    "then-reversed": (lambda g: g.bids.then(g.table), r"the history comes first: table.then\(bids, ...\)$"),
    "latest-of-tables": (
        lambda g: g.table.join_latest(g.table.select("id", "usual as other"), on="id"),
        r"are bounded: .*; use join_asof\(..., timestamps=\(left, right\)\)$",
    ),
    "union-of-updating": (
        lambda g: _firing(g).union(_firing(g, "more")).aggregate(by="id", n="sum(n)", name="it"),
        "; put 'it' before 'union_1', on each of its inputs$",
    ),
    "batches-of-updating": (
        lambda g: _counts(g).map_batches(bytes, schema="id BIGINT, n BIGINT").aggregate(n="sum(n)"),
        "; use map with passes= in place of 'map_batches_1'$",
    ),
    "join-of-updating": (
        lambda g: _counts(g).join(g.table, on="id", name="both").aggregate(n="sum(n)"),
        "; join with how='left', or put 'both' before 'counts'$",
    ),
    "where-of-the-other-side": (
        lambda g: (
            g.bids.join(g.asks, on="id", how="left", ttl=None).where("ask IS NULL").aggregate(n="count(*)")
        ),
        r"; put the condition into the aggregates, as in sum\(if\(condition, price, null\)\)$",
    ),
    "union-of-updating-sources": (
        lambda g: [users := _read_updating(g), users.union(users)],
        "; read the topic of 'users' as a table",
    ),
    "flush-of-ranks": (
        lambda g: g.bids.window(Tumbling(1), flush=HOUR).top_n(2, order="price"),
        "would be lost; leave flush out$",
    ),
    "rank-twice": (
        lambda g: g.bids.top_n(2, order="price").top_n(2, order="rank"),
        "pass another name, for instance rank=",
    ),
    "keyword-of-windows": (
        lambda g: g.bids.window(Tumbling(1), by="id").aggregate(window_start="min(at)"),
        "'window_start' twice: .*; give the aggregate another keyword$",
    ),
    "lost-key": (
        lambda g: _read_updating(g).select("city", "is_deleted").write("out", KafkaTopic("out")),
        "; keep its key id$",
    ),
}


@pytest.mark.parametrize("case", [*MISTAKES, *ADVICE])
def test_stream_refuses(case: str) -> None:
    """Nothing that it cannot do is planned; the message has one line."""
    declare, message = {**MISTAKES, **ADVICE}[case]

    with pytest.raises(ConfigurationError) as caught:
        declare(TimedStreams())

    assert re.search(message, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)
