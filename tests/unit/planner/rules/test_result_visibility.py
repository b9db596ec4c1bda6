"""A live query starts after what it waits for, which a setting may make less than everything."""

from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.planner import plan_flow
from flowcore.planner.model import LiveQuery
from flowcore.settings import Settings

SALE = "shop STRING, price DOUBLE"


def _queries(**more: Any) -> dict[str, LiveQuery]:
    """Four queries: of the stages a and b they join the first, both, or none; c is a bounded sink."""
    flow = Flow("f")
    a, b, c = (flow.read(name, Parquet(name, schema=f"shop STRING, {name}_value DOUBLE")) for name in "abc")
    c.write("c_out", Parquet("out"))
    bids = flow.read("bids", KafkaTopic("bids", schema=SALE, on_error="fail"))
    with_a = bids.join(a, on="shop")
    with_a.aggregate(by="shop", n="count(*)").write("one", KafkaTopic("one"))
    with_a.join(b, on="shop").aggregate(by="shop", n="count(*)").write("two", KafkaTopic("two"))
    bids.aggregate(by="shop", n="count(*)").write("none", KafkaTopic("none"))
    settings = Settings.of(
        {f"{key.replace('__', '.').replace('_', '-')}": value for key, value in more.items()}
    )
    live = plan_flow(flow, settings=settings).live
    return {query.name: query for query in live.queries} if live else {}


def test_queries_start_together_after_all_stages() -> None:
    """Unless somebody asks for more; where there would be more, the plan says what to set."""
    queries = _queries()

    assert {query.after for query in queries.values()} == {("a", "b", "c_out")}
    assert queries["one"].start.change == ("set execution.hand-over to pipelined",)


def test_queries_start_after_what_they_join_where_results_are_pipelined() -> None:
    """Each after its own tables, whole ones; what joins nothing starts at once."""
    queries = _queries(execution__hand_over="pipelined")

    assert {name: query.after for name, query in queries.items()} == {
        "one": ("a",), "two": ("a", "b"), "none": (),
    }  # fmt: skip
    assert queries["one"].start.value == "when a is committed"
    assert queries["one"].start.reasons == (
        "execution.hand-over is pipelined",
        "it joins nothing of b, c_out",
    )


def test_queries_whose_latency_is_tracked_start_together() -> None:
    """Of one source there is one writer of markers; the plan says that this is in the way."""
    queries = _queries(execution__hand_over="pipelined", metrics__latency__interval="1 s")

    assert {query.after for query in queries.values()} == {("a", "b", "c_out")}
    assert queries["one"].start.change == ("set metrics.latency.interval to 0",)


def test_query_that_joins_every_stage_has_nothing_to_gain() -> None:
    """A part of a table is never read."""
    flow = Flow("f")
    shops = flow.read("shops", Parquet("shops", schema="shop STRING"))
    flow.read("bids", KafkaTopic("bids", schema=SALE)).join(shops, on="shop").write("out", KafkaTopic("out"))

    live = plan_flow(flow, settings=Settings.of({"execution.hand-over": "pipelined"})).live

    (query,) = live.queries if live else ()
    assert query.start.value == "when shops is committed"
    assert query.start.reasons == ("it joins a table of each bounded stage, and of a table never a part",)


@pytest.mark.parametrize("value", ["partial", True], ids=["unknown", "a-flag"])
def test_setting_is_one_of_two(value: object) -> None:
    """Anything else is an error that says so."""
    with pytest.raises(ValueError, match="it must be whole or pipelined"):
        Settings.of({"execution.hand-over": value})
