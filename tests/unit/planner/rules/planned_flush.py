"""Operators that a plan may buffer, and the plan's decision about one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from flowcore import (
    Flow,
    KafkaTopic,
    RichFunction,
    Stream,
    Tumbling,
)
from flowcore.planner import plan_flow
from flowcore.planner.model import Flush, LiveQuery, Mode
from flowcore.settings import Settings
from tests.idle_functions import IdleProcess

SALE = "shop STRING, price DOUBLE, kind STRING"

MINUTE = timedelta(minutes=1)


class Latest(RichFunction):
    """A user's function whose later output replaces earlier output."""

    is_output_idempotent = True  # type: ignore[assignment]

    def __call__(self, record: Any, *_others: Any) -> Any:
        return record


class Each(IdleProcess):
    """A function that does not promise idempotent output."""


class Ranked(IdleProcess):
    """A function that promises idempotent output."""

    is_output_idempotent = True


def same(record: Any) -> Any:
    return record


def first(key: Any, values: Any) -> Iterator[Any]:
    del key
    yield from values[:1]


def queries(
    build: Callable[[Stream], Stream], mode: Mode | None = None, **settings: object
) -> tuple[LiveQuery, ...]:
    flow = Flow("f")
    built = build(flow.read("sales", KafkaTopic("sales", schema=SALE, on_error="fail")))
    built.write("out", KafkaTopic("out"), key=built.columns[0])
    keys = {"execution.flush.max-interval": "1 min"} | {
        f"execution.{name.replace('__', '.').replace('_', '-')}": value for name, value in settings.items()
    }
    live = plan_flow(flow, mode, Settings.of(keys, environment={})).live
    assert live
    return live.queries


def query_of(build: Callable[[Stream], Stream], mode: Mode | None = None, **settings: object) -> LiveQuery:
    (query,) = queries(build, mode, **settings)
    return query


def flush_of(
    build: Callable[[Stream], Stream], name: str = "held", mode: Mode | None = None, **settings: object
) -> Flush:
    query = query_of(build, mode, **settings)
    return next(each for each in query.flushes if each.operator.name == name)


def windows(sales: Stream, **kept: Any) -> Any:
    return sales.window(Tumbling(10), by="shop", time="processing", name="held", **kept)
