"""Operators that emit only at the end of their input, and windows that are plain groups."""

from collections.abc import Callable
from typing import Any

import pytest

from flowcore import (
    EndOfStream,
    Flow,
    KafkaTopic,
    OperatorAttributesBuilder,
    Parquet,
    Stream,
    Tumbling,
)
from flowcore.api.operators import Window
from flowcore.planner import plan_flow
from flowcore.planner.views.details import collect_details
from flowcore.windows import CountEvictor, EndOfStreamWindows
from flowcore.windows.triggers import Count
from tests.idle_functions import IdleProcess

SALE = "shop STRING, price DOUBLE, at TIMESTAMP"


def _bounded(flow: Flow) -> Stream:
    return flow.read("sales", Parquet("sales", schema=SALE))


def _live(flow: Flow) -> Stream:
    return flow.read("live", KafkaTopic("live", schema=SALE))


def _at_end(stream: Stream, **settings: Any) -> Stream:
    return stream.window(EndOfStream(), by="shop", **settings).aggregate(top="max(price)")


AT_END: dict[str, tuple[Callable[[Flow], Stream], str]] = {
    "grouped-aggregate": (lambda f: _bounded(f).aggregate(by="shop", n="count(*)"), "group is complete"),
    "window-at-the-end": (lambda f: _at_end(_bounded(f)), "windows are complete"),
    "window": (
        lambda f: _bounded(f).window(Tumbling(10), by="shop", timestamp="at").aggregate(n="count(*)"),
        "windows are complete",
    ),
    "co-group": (
        lambda f: _bounded(f).co_group(_bounded_2(f), on="shop", n="count(left)"), "both inputs have ended",
    ),
    "declared": (
        lambda f: _bounded(f).select(
            "shop", attributes=OperatorAttributesBuilder().set_output_only_at_end(True)
        ),
        "declares output_only_at_end",
    ),
}  # fmt: skip
BEFORE: dict[str, tuple[Callable[[Flow], Stream], str]] = {
    "select": (lambda f: _bounded(f).select("shop"), "as input comes"),
    "live-aggregate": (lambda f: _live(f).aggregate(by="shop", n="count(*)"), "at each change"),
    "join": (lambda f: _bounded(f).join(_bounded_2(f), on="shop"), "as input comes"),
    "process": (
        lambda f: _bounded(f).process(IdleProcess(), by="shop", schema="n BIGINT", timestamp="at"),
        "as rows come and, at their end, timers are due",
    ),
}


def _bounded_2(flow: Flow) -> Stream:
    return flow.read("more", Parquet("more", schema="shop STRING, place STRING"))


@pytest.mark.parametrize("case", AT_END)
def test_operator_emits_at_the_end_if_its_attribute_is_set(case: str) -> None:
    """Its result is blocking for a stream, and its part of the flow is a batch without checkpoints."""
    declare, reason = AT_END[case]
    flow = Flow("f")
    stream = declare(flow).select("*", name="result")
    before = stream.operator.inputs[0]
    _live(flow).select("shop as place").join(
        stream.select("shop", name="shops"), on={"place": "shop"}, name="joined"
    ).write("out", KafkaTopic("out"))

    plan = plan_flow(flow)
    kinds = {str(edge): edge.kind.value for part in collect_details(plan) for edge in part.edges}

    assert before.attributes().output_only_at_end
    assert before.emission().value == "at the end of input"
    assert reason in before.emission().reasons[0]
    (stage,) = plan.bounded
    assert before in stage.operators
    assert stage.checkpoint.value == "none"
    assert kinds["shops -> joined"] == "blocking"


@pytest.mark.parametrize("case", BEFORE)
def test_operator_emits_before_the_end_otherwise(case: str) -> None:
    """Output is not delayed without a reason."""
    declare, when = BEFORE[case]

    node = declare(Flow("f")).operator

    assert not node.attributes().output_only_at_end
    assert node.emission().value == when


WINDOWS: dict[str, tuple[Callable[[Flow], Stream], bool]] = {
    "built-in-aggregates": (lambda f: _at_end(_bounded(f)), True),
    "without-a-key": (lambda f: _bounded(f).window(EndOfStream()).aggregate(n="count(*)"), True),
    "a-trigger-of-its-own": (lambda f: _at_end(_bounded(f), trigger=Count(2)), False),
    "an-evictor": (lambda f: _at_end(_bounded(f), evictor=CountEvictor(2)), False),
    "a-process-function": (
        lambda f: _bounded(f).window(EndOfStream(), by="shop").process(_number, schema="n BIGINT"), False,
    ),
    "a-function-of-the-aggregates": (
        lambda f: _bounded(f).window(EndOfStream(), by="shop").aggregate(
            n="count(*)", then=_number, schema="n BIGINT"
        ),
        False,
    ),
    "a-python-fold": (
        lambda f: _bounded(f).window(EndOfStream(), by="shop").reduce(lambda kept, _: kept), False,
    ),
    "other-windows": (
        lambda f: _bounded(f).window(Tumbling(10), by="shop", timestamp="at").aggregate(n="count(*)"), False,
    ),
}  # fmt: skip


def _number(context: Any, values: Any) -> Any:
    del context
    yield {"n": len(values)}


@pytest.mark.parametrize("case", WINDOWS)
def test_window_is_a_grouped_aggregate_only_where_nothing_sees_single_records(case: str) -> None:
    """It has one window up to the end, built-in aggregates, and no user function."""
    declare, expected = WINDOWS[case]

    node = declare(Flow("f")).operator

    assert isinstance(node, Window)
    at_end = isinstance(node.config.assigner, EndOfStreamWindows)
    assert (at_end and node.compiled().value == "native") is expected


def test_window_at_the_end_is_native_in_the_plan() -> None:
    """It has no state and no Python node."""
    flow = Flow("f")
    _at_end(_bounded(flow), name="tops").write("out", Parquet("out"))

    ((tops,),) = (
        [each for each in part.operators if each.node.name == "tops"]
        for part in collect_details(plan_flow(flow))
    )

    assert tops.outcomes["compiled"].value == "native"
