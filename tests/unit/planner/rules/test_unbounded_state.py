"""A plan names the operators of live queries whose state grows without bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from flowcore import (
    Flow,
    Global,
    KafkaTopic,
    Parquet,
    Stream,
    Tumbling,
    monotonous,
)
from flowcore.planner import plan_flow
from flowcore.windows.functions import WindowContext
from flowcore.windows.triggers import Count, Purging
from tests.idle_functions import IdleProcess

SALE = "shop STRING, price BIGINT, at TIMESTAMP"


class _Seen(IdleProcess):
    """Keeps what it likes."""


def _shown(context: WindowContext, values: Sequence[Any]) -> Iterable[Any]:
    context.key_state["windows"] = context.key_state.get("windows", 0) + len(values)
    yield {"n": context.key_state["windows"]}


OPERATORS: dict[str, tuple[Callable[[Stream], Stream], str | None]] = {
    "aggregate": (lambda sales: sales.aggregate(by="shop", n="count(*)", name="it"), "a group for each key"),
    "aggregate-of-all": (lambda sales: sales.aggregate(n="count(*)", name="it"), None),
    "aggregate-with-ttl": (
        lambda sales: sales.aggregate(by="shop", n="count(*)", ttl=timedelta(hours=1), name="it"),
        None,
    ),
    "distinct-with-ttl": (
        lambda sales: sales.aggregate(
            by="shop", n="count(*)", prices="count(distinct price)", ttl=timedelta(hours=1), name="it"
        ),
        "a key without a pause of 1 h does not expire, and count(distinct price) keeps each of its values",
    ),
    "list-with-ttl": (
        lambda sales: sales.aggregate(
            by="shop", all="collect_list(price)", ttl=timedelta(hours=1), name="it"
        ),
        "collect_list(price) keeps each of its values",
    ),
    "list-of-all-beside-state": (
        lambda sales: sales.deduplicate(by="shop", within=timedelta(hours=1)).aggregate(
            all="collect_list(price)", name="it"
        ),
        "collect_list(price) keeps each value, and removes none",
    ),
    "list-in-global-window": (
        lambda sales: sales.window(
            Global(), by="shop", trigger=Count(2), ttl=timedelta(hours=1), name="it"
        ).aggregate(all="collect_list(price)"),
        "collect_list(price) keeps each of its values",
    ),
    "list-in-purged-window": (
        lambda sales: sales.window(
            Global(), by="shop", trigger=Purging(Count(2)), ttl=timedelta(hours=1), name="it"
        ).aggregate(all="collect_list(price)"),
        None,
    ),
    "process": (lambda sales: sales.process(_Seen(), by="shop", schema=SALE, name="it"), "until ttl="),
    "global-window": (
        lambda sales: sales.window(Global(), by="shop", trigger=Count(2), name="it").aggregate(n="count(*)"),
        "keeps each key until a trigger purges it",
    ),
    "window-that-ends": (
        lambda sales: sales.window(Tumbling(9), by="shop", time="processing", name="it").aggregate(
            n="count(*)"
        ),
        None,
    ),
    "window-with-function": (
        lambda sales: sales.window(Tumbling(9), by="shop", time="processing", name="it").process(
            _shown, schema="n BIGINT"
        ),
        "stays when the windows of the key end",
    ),
    "window-late-for-ever": (
        lambda sales: (
            sales.with_event_time("at", watermark=monotonous())
            .window(Tumbling(9), by="shop", allowed_lateness=math.inf, name="it")
            .aggregate(n="count(*)")
        ),
        "its windows are kept for late records for ever",
    ),
    "deduplicate": (
        lambda sales: sales.deduplicate(by="shop", within=None, name="it"),
        "within=None keeps every key for ever",
    ),
    "deduplicate-within": (
        lambda sales: sales.deduplicate(by="shop", within=timedelta(hours=1), name="it"),
        None,
    ),
    "where": (lambda sales: sales.where("price > 1", name="it"), None),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_plan_names_state_without_bound(name: str) -> None:
    """The text says why, and what to change."""
    operator, why = OPERATORS[name]
    flow = Flow("f")
    made = operator(flow.read("sales", KafkaTopic("sales", schema=SALE)))
    made.write("out", KafkaTopic("out"), key=made.operator.columns[0])

    lines = [
        line for line in plan_flow(flow).explain().splitlines() if "the state of it is unbounded" in line
    ]

    assert len(lines) == (why is not None)
    assert all(str(why) in line and "to change it" in line for line in lines)


def test_bounded_aggregate_keeps_no_state() -> None:
    """Its input ends."""
    flow = Flow("f")
    sales = flow.read("sales", Parquet("sales", schema=SALE))
    sales.aggregate(by="shop", n="count(*)", name="it").write("out", Parquet("out"))

    assert "unbounded" not in plan_flow(flow).explain(verbose=True)
