"""A live query starts after the stages it waits for, which a setting can reduce."""

from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.planner import plan_flow
from flowcore.planner.model import LiveQuery
from flowcore.settings import Settings

SALE = "shop STRING, price DOUBLE"


def _queries(**more: Any) -> dict[str, LiveQuery]:
    """Four queries that join stages a, b, both or none; c is a bounded sink."""
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


def test_queries_start_together_after_all_stages_by_default() -> None:
    """If pipelined results would start queries earlier, the plan names the setting."""
    queries = _queries()

    assert {query.after for query in queries.values()} == {("a", "b", "c_out")}
    assert queries["one"].start.change == ("set execution.result-visibility to pipelined",)


def test_queries_start_after_what_they_join_where_results_are_pipelined() -> None:
    """Each waits for its own complete tables; a query without joins starts at once."""
    queries = _queries(execution__result_visibility="pipelined")

    assert {name: query.after for name, query in queries.items()} == {
        "one": ("a",), "two": ("a", "b"), "none": (),
    }  # fmt: skip
    assert queries["one"].start.value == "when a is committed"
    assert queries["one"].start.reasons == (
        "execution.result-visibility is pipelined",
        "it joins nothing of b, c_out",
    )


def test_queries_whose_latency_is_tracked_start_together() -> None:
    """A source has one writer of markers; the plan states this reason."""
    queries = _queries(execution__result_visibility="pipelined", metrics__latency__interval="1 s")

    assert {query.after for query in queries.values()} == {("a", "b", "c_out")}
    assert queries["one"].start.change == ("set metrics.latency.interval to 0",)


def test_query_that_joins_every_stage_starts_after_all() -> None:
    """A partial table is never read."""
    flow = Flow("f")
    shops = flow.read("shops", Parquet("shops", schema="shop STRING"))
    flow.read("bids", KafkaTopic("bids", schema=SALE)).join(shops, on="shop").write("out", KafkaTopic("out"))

    live = plan_flow(flow, settings=Settings.of({"execution.result-visibility": "pipelined"})).live

    (query,) = live.queries if live else ()
    assert query.start.value == "when shops is committed"
    assert query.start.reasons == ("it joins a table of each bounded stage, and of a table never a part",)


@pytest.mark.parametrize("value", ["partial", True], ids=["unknown", "a-flag"])
def test_setting_is_one_of_two(value: object) -> None:
    """Another value is an error that names both."""
    with pytest.raises(ValueError, match="it must be whole or pipelined"):
        Settings.of({"execution.result-visibility": value})
