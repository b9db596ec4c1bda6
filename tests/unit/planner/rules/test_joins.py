"""A table that does not fit in memory is joined by a shuffle, in micro-batches; the plan says why."""

from __future__ import annotations

import pytest

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.api.decisions import Decision
from flowcore.errors import PlanError
from flowcore.planner import plan_flow
from flowcore.planner.model import LiveQuery, Mode
from flowcore.planner.rules.compatibility import derive_needs
from flowcore.planner.rules.joins import decide_joins
from flowcore.settings import Settings

SETTINGS = Settings.of({"execution.join.max-broadcast-bytes": "1 KiB"}, environment={})


def _flow() -> Flow:
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema="shop STRING, item STRING, price DOUBLE"))
    shops = flow.read("shops", Parquet("shops", schema="shop STRING, city STRING"))
    items = flow.read("items", Parquet("items", schema="item STRING, weight DOUBLE"))
    placed = bids.join(shops, on="shop", name="placed")
    placed.join(items, on="item", how="left", name="weighed").write("out", KafkaTopic("out"))
    return flow


def _query(mode: Mode | None = None, **table_bytes: int) -> LiveQuery:
    (query,) = plan_flow(_flow(), mode, SETTINGS, table_bytes).live_queries
    return query


def _joins(query: LiveQuery) -> dict[str, Decision]:
    return {node.name: decision for node, decision in query.joins.items()}


def test_a_table_that_fits_is_broadcast() -> None:
    """The limit fits; of a table whose stage has not run the size is not known."""
    query = _query(shops=1024)

    assert query.mode.value == "realtime"
    assert query.shuffled_joins == ()
    assert {name: each.value for name, each in _joins(query).items()} == {
        "placed": "broadcast",
        "weighed": "broadcast, if it fits",
    }
    limit = "1,024 bytes (execution.join.max-broadcast-bytes)"
    assert _joins(query)["placed"].reasons == (f"shops has 1,024 bytes, not more than {limit}",)
    assert _joins(query)["weighed"].reasons == (f"the size of items is not known yet, up to {limit} fit",)


def test_a_larger_table_is_shuffled_in_micro_batches() -> None:
    """Its neighbour is broadcast as before. Mode, text and JSON say why, and what would change it."""
    plan = plan_flow(_flow(), None, SETTINGS, {"shops": 1024, "items": 1025})
    (query,) = plan.live_queries
    found = _joins(query)

    assert {name: each.value for name, each in found.items()} == {"placed": "broadcast", "weighed": "shuffle"}
    assert [node.name for node in query.shuffled_joins] == ["weighed"]
    assert query.mode.value == "micro-batch"
    assert query.catch_up.value == "no"
    assert query.checkpoint.value == "after each batch"
    why = "items has 1,025 bytes, more than 1,024 bytes (execution.join.max-broadcast-bytes)"
    assert found["weighed"].reasons == (why,)
    assert query.mode.reasons == (f"{why}, so it is joined by a shuffle",)
    text = plan.explain()
    assert f"weighed is joined by a shuffle because {why}; to change it, set" in text
    assert "execution.join.max-broadcast-bytes to 1025 or more" in text
    (part,) = (each for each in plan.to_dict()["parts"] if each["kind"] == "live query")
    assert [each["join"]["value"] for each in part["operators"] if "join" in each] == ["broadcast", "shuffle"]


@pytest.mark.parametrize("mode", ["micro-batch", "slice"])
def test_a_query_that_runs_in_batches_keeps_its_mode(mode: Mode) -> None:
    """The reason for the mode stays, too."""
    query = _query(mode, shops=2000)

    assert (query.mode.value, [node.name for node in query.shuffled_joins]) == (mode, ["placed"])
    assert query.mode == _query(mode).mode


def test_a_large_table_cannot_be_joined_in_real_time() -> None:
    """Whether its size is known when the flow is planned, or when the query starts."""
    with pytest.raises(PlanError, match=r"'realtime' is not possible: items has 1,025 bytes.*--mode auto"):
        _query("realtime", items=1025)

    planned = _query("realtime")
    assert planned.mode.value == "realtime"
    with pytest.raises(PlanError, match="'realtime' is not possible: shops has 2,000 bytes"):
        decide_joins(planned, {"shops": 2000}, SETTINGS)


def test_a_start_decides_as_a_plan_with_the_sizes() -> None:
    """The checkpoint is the same: the query has its name and its needs, whatever the sizes."""
    started = decide_joins(_query(), {"shops": 3, "items": 2000}, SETTINGS)
    planned = _query(shops=3, items=2000)

    assert started.mode == planned.mode
    assert _joins(started) == _joins(planned)
    assert started.name == _query().name
    assert derive_needs(started) == derive_needs(_query())
