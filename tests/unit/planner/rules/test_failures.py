"""The handling of a failing record depends on its source and on the operators of its query."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowcore import (
    Flow,
    KafkaTopic,
    OperatorAttributesBuilder,
    Parquet,
    Stream,
    Tumbling,
)
from flowcore.api.windowed_stream import WindowedStream
from flowcore.planner import plan_flow
from flowcore.planner.views.details import collect_details
from flowcore.windows import CountEvictor
from tests.idle_functions import IdleProcess

SALE = "shop STRING, price DOUBLE"


def _same(record: Any) -> Any:
    return record


def _live(flow: Flow, name: str = "bids", on_error: Any = "dead-letter") -> Stream:
    return flow.read(name, KafkaTopic(name, schema=SALE, on_error=on_error))


def _all(_context: Any, values: Any) -> Any:
    return [{"n": len(values)}]


def _processed(stream: Stream, name: str = "mapped") -> Stream:
    return stream.process(IdleProcess(), by="shop", schema=SALE, name=name)


def _windowed(stream: Stream, **windows: Any) -> WindowedStream:
    return stream.window(Tumbling(10), by="shop", time="processing", name="mapped", **windows)


def _counted(stream: Stream) -> Stream:
    windows = stream.window(Tumbling(10), by="shop", time="processing", name="counted")
    return windows.aggregate(n="count(*)")


def _mapped(stream: Stream) -> Stream:
    return stream.map(_same, schema=SALE, name="mapped")


def _beside(stream: Stream) -> Stream:
    counted = stream.window(Tumbling(10), by="shop", time="processing").aggregate(n="count(*)")
    counted.write("counted", KafkaTopic("counted"))
    return _mapped(stream)


CASES: dict[str, tuple[Callable[[Flow], Stream], str, str]] = {
    "live": (lambda f: _mapped(_live(f)), "dead letter", "the message goes to bids.dead-letter unchanged"),
    "source-that-stops": (
        lambda f: _mapped(_live(f, on_error="fail")), "stops the query", "bids says on_error",
    ),
    "union-with-one-that-stops": (
        lambda f: _mapped(_live(f).union(_live(f, "asks", "fail"))), "dead letter", "records of asks stop it",
    ),
    "downstream-of-batches": (
        lambda f: _mapped(_live(f).map_batches(_same, schema=SALE, name="batched")),
        "dead letter", "the message goes to bids.dead-letter unchanged",
    ),
    "downstream-of-batches-of-another-chain": (
        lambda f: _mapped(
            _live(f).map_batches(_same, schema=SALE, name="batched").with_columns(price="price * 2")
        ),
        "stops the query", "batched gets batches",
    ),
    "downstream-of-batches-of-a-process": (
        lambda f: _mapped(
            _live(f)
            .process(IdleProcess(), by="shop", schema=SALE)
            .map_batches(_same, schema=SALE, name="batched")
        ),
        "stops the query", "batched gets batches",
    ),
    "before-state": (
        lambda f: _mapped(_live(f)).aggregate(by="shop", n="count(*)", name="counted"),
        "stops the query", "counted is Spark's own aggregate",
    ),
    "between-states": (
        lambda f: _mapped(_counted(_live(f))),
        "dead letter", "counted made its record, so what mapped received goes to bids.dead-letter",
    ),
    "downstream-of-state-of-a-source-that-stops": (
        lambda f: _mapped(_counted(_live(f).union(_live(f, "asks", "fail")))),
        "stops the query", "asks says on_error",
    ),
    "downstream-of-state-and-a-frame-function": (
        lambda f: _mapped(_counted(_live(f)).apply(_same, schema=SALE, name="applied")),
        "stops the query", "applied made its record, so that no message is bad",
    ),
    "downstream-of-state-and-before-a-frame-function": (
        lambda f: _mapped(_counted(_live(f))).apply(_same, schema=SALE, name="applied"),
        "stops the query", "applied takes a whole frame",
    ),
    "downstream-of-state-beside-messages": (
        lambda f: _mapped(
            _counted(_live(f)).select("shop").union(_live(f, "asks").select("shop"))
        ),
        "dead letter", "messages go to asks.dead-letter unchanged",
    ),
    "downstream-of-state-that-reads-batches": (
        lambda f: _mapped(_counted(_live(f).map_batches(_same, schema=SALE, name="batched"))),
        "dead letter", "counted made its record, so what mapped received",
    ),
    "process-of-batches": (
        lambda f: _mapped(_processed(_live(f).map_batches(_same, schema=SALE), "first")),
        "dead letter", "what first had emitted",
    ),
    "downstream-of-state-and-batches-of-another-chain": (
        lambda f: _mapped(
            _counted(_live(f)).map_batches(_same, schema=SALE, name="batched").with_columns(price="price * 2")
        ),
        "stops the query", "batched gets batches",
    ),
    "downstream-of-a-buffer": (
        lambda f: _mapped(
            _live(f).map(
                _same, schema=SALE, key="shop", flush=timedelta(seconds=9), name="buffered",
                attributes=OperatorAttributesBuilder().set_output_idempotent(True),
            )
        ),
        "dead letter", "buffered made its record, so what mapped received",
    ),
    "beside-state": (
        lambda f: _beside(_live(f)), "dead letter", "the message goes to bids.dead-letter unchanged",
    ),
    "process": (
        lambda f: _processed(_live(f)), "dead letter", "input goes to bids.dead-letter, and what the call",
    ),
    "process-of-two": (
        lambda f: _processed(_live(f).union(_live(f, "asks", "fail"))),
        "dead letter", "records of asks, timers and windows stop it",
    ),
    "process-that-stops": (
        lambda f: _processed(_live(f, on_error="fail")), "stops the query", "bids says on_error",
    ),
    "windows-of-functions": (
        lambda f: _windowed(_live(f)).process(_all, schema="n INT"),
        "dead letter", "goes to bids.dead-letter",
    ),
    "windows-with-an-evictor": (
        lambda f: _windowed(_live(f), evictor=CountEvictor(1)).aggregate(n="count(*)"),
        "dead letter", "goes to bids.dead-letter",
    ),
    "bounded-process": (
        lambda f: _processed(f.read("sales", Parquet("sales", schema=SALE))),
        "stops the stage", "commits a complete result or nothing",
    ),
    "bounded": (
        lambda f: _mapped(f.read("sales", Parquet("sales", schema=SALE))),
        "stops the stage", "commits a complete result or nothing",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_plan_decides_about_a_failing_record(case: str) -> None:
    """If the record can be a dead letter, the query continues; else the plan states the reason."""
    declare, value, reason = CASES[case]
    flow = Flow("f")
    stream = declare(flow)
    stream.write("out", KafkaTopic("out", key="shop"))

    found = [
        each.outcomes.get("failure")
        for part in collect_details(plan_flow(flow))
        for each in part.operators
        if each.node.name == "mapped"
    ]

    assert [each.value for each in found if each] == [value]
    assert any(reason in text for each in found if each for text in each.reasons)


def test_process_with_files_as_sink_has_no_dead_letters() -> None:
    """A process function whose results are files cannot write dead letters."""
    flow = Flow("f")
    _processed(_live(flow)).write("out", Parquet("out", schema=SALE))

    found = [
        each.outcomes["failure"]
        for part in collect_details(plan_flow(flow))
        for each in part.operators
        if "failure" in each.outcomes
    ]

    assert [(each.value, each.reasons[0]) for each in found] == [
        ("stops the query", "out writes files, so nothing but its records can leave the query")
    ]


def test_operator_without_a_function_has_no_failure() -> None:
    """Spark's arithmetic gives null in a stream."""
    flow = Flow("f")
    _live(flow).select("shop").write("out", KafkaTopic("out"))

    operators = [each for part in collect_details(plan_flow(flow)) for each in part.operators]
    assert not any("failure" in each.outcomes for each in operators)
