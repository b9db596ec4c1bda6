"""Python functions that can never work are errors when they are declared."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest

from flowcore import KeyedProcessFunction, RichFunction, Stream, Tumbling
from flowcore.errors import PlanError
from tests.unit.api.given_streams import GivenStreams


class Silent(KeyedProcessFunction):
    """It has no method for records."""


class Rich(RichFunction):
    """It has no ``__call__``."""


class OfRecord(KeyedProcessFunction):
    """Its ``process`` lacks the context."""

    def process(self, record: Any) -> None:  # type: ignore[override]
        """Emit nothing."""


class OfBatch(KeyedProcessFunction):
    """Its ``process_batch`` lacks keys and context."""

    def process_batch(self, batch: Any) -> None:  # type: ignore[override]
        """Emit nothing."""


class PerWindow:
    """A process function of windows."""

    def process(self, context: Any, records: Any) -> Any:
        return [{"n": len(records), "key": context.key}]

    def clear(self, context: Any) -> None:
        """Clear nothing."""


class Sum:
    """An aggregate function whose ``add`` lacks the record."""

    def create(self) -> Any:
        return 0

    def add(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, first: Any, second: Any) -> Any:
        return first + second

    def result(self, accumulator: Any) -> Any:
        return accumulator


async def _awaited(record: Any) -> Any:
    return record


def _windows(given: GivenStreams) -> Any:
    return given.bids.window(Tumbling(1), by="shop", time="processing")


N: dict[str, Any] = {"schema": "n INT"}

MISTAKES: dict[str, tuple[Callable[[GivenStreams], object], str]] = {
    "process-nothing": (
        lambda g: g.bids.process(Silent(), **N),
        "'process_1': Silent has neither process nor process_batch",
    ),
    "process-of-record": (
        lambda g: g.bids.process(OfRecord(), **N),
        r"process of OfRecord\(record\) is called with \(record, con",
    ),
    "process-of-batch": (
        lambda g: g.bids.process(OfBatch(), **N),
        r"process_batch of OfBatch\(batch\) is .*\(keys, batch, con",
    ),
    "rich": (lambda g: g.bids.map(Rich(), **N), "'map_1': Rich inherits __call__ .*define __call__"),
    "map": (
        lambda g: g.bids.map(lambda a, b: a or b, **N),
        r"<lambda>\(a, b\) is called with \(record\): missing.*'b'",
    ),
    "map-async": (lambda g: g.bids.map(_awaited, **N), "'map_1': _awaited is an async def: .*without async"),
    "filter": (
        lambda g: g.bids.filter(lambda: True),
        r"'filter_1': .*\(\) is called with \(record\): too many",
    ),
    "batches": (
        lambda g: g.bids.map_batches(lambda: 1, **N),
        r"'map_batches_1': .* is called with \(batch\)",
    ),
    "reduce": (
        lambda g: g.bids.reduce(lambda a: a, by="shop", schema="shop STRING"),
        r"called with \(kept, new\): too",
    ),
    "co-group": (
        lambda g: g.sales.co_group(g.shops, lambda key: [key], on="shop", **N),
        r"with \(key, left, right\): too",
    ),
    "window-reduce": (lambda g: _windows(g).reduce(lambda a: a), r"called with \(kept, new\): too many"),
    "window-process": (
        lambda g: _windows(g).process(lambda r: r, **N),
        r"with \(context, records\): too many",
    ),
    "window-class": (lambda g: _windows(g).process(PerWindow, **N), r"PerWindow is a class: .*PerWindow\(\)"),
    "window-aggregate": (
        lambda g: _windows(g).aggregate_with(Sum(), **N),
        r"add of Sum\(accumulator\) is called with \(accumula",
    ),
    "apply": (lambda g: g.bids.apply("x"), "'apply_1': 'x' cannot be called with a frame; pass a function"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_function_that_can_never_work_is_refused(case: str) -> None:
    """The first record would fail, or nothing would be emitted."""
    declare, message = MISTAKES[case]

    with pytest.raises(PlanError) as caught:
        declare(GivenStreams())

    assert re.search(message, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)


def _with_connection(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return function("connection", *arguments)

    return call


@_with_connection
def _decorated(connection: Any, record: Any) -> Any:
    return {**record, "by": connection}


class Static(RichFunction):
    """Its call needs no object."""

    @staticmethod
    def __call__(record: Any) -> Any:
        return record


ACCEPTED: dict[str, Callable[[GivenStreams], Stream]] = {
    "built-in": lambda g: g.bids.map(dict, **N),
    "decorated": lambda g: g.bids.map(_decorated, **N),
    "partial": lambda g: g.bids.map(functools.partial(lambda added, record: {**record, "n": added}, 1), **N),
    "default": lambda g: g.bids.map(lambda record, more=1: {**record, "n": more}, **N),
    "bound": lambda g: g.bids.map({"a": {"n": 1}}.get, **N),
    "static": lambda g: g.bids.map(Static(), **N),
    "window-object": lambda g: _windows(g).process(PerWindow(), **N),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_function_that_can_be_called_is_accepted(case: str) -> None:
    """A decorator may add arguments, and some built-in functions have no signature."""
    assert "n" in ACCEPTED[case](GivenStreams()).columns
