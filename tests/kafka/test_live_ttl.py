"""State of a live query that is removed after its time to live."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flowcore import Flow
from flowcore.planner import plan_flow
from flowcore.spark.checkpoint.plan_file import checkpoint_folder
from flowcore.spark.run.inspection import KeyGroupState, read_state
from flowcore.spark.run.session import live_session
from tests.kafka.conftest import Live


def test_aggregate_forgets_a_key_after_its_time_to_live(live: Live) -> None:
    """The key leaves the state store, and its next record begins anew; a batch emits each key once."""
    source = live.topic("bids", schema="user STRING, price BIGINT")
    totals = live.topic("totals")
    flow = Flow("totals")
    spent = flow.read("bids", source).aggregate(
        by="user", total="sum(price * 2)", n="count(*)", ttl=timedelta(milliseconds=1), name="spent"
    )
    spent.write("totals", totals)

    def bid(*users: str) -> list[dict[str, Any]]:
        """Each batch takes longer than the time to live."""
        live.send(source, *({"user": user, "price": 5} for user in users))
        live.run(flow)
        (query,) = plan_flow(flow, settings=live.settings).live_queries
        state = read_state(
            live_session(live.spark, live.settings), checkpoint_folder(query, flow.name, live.settings)
        )
        return [key.key for each in state if isinstance(each, KeyGroupState) for key in each.held.keys or ()]

    assert sorted(key["user"] for key in bid("a", "b", "a")) == ["a", "b"]
    assert [key["user"] for key in bid("a")] == ["a"]

    found = [(record.key, record.json) for record in live.records(totals)]
    assert sorted((key, row["total"], row["n"]) for key, row in found) == [
        (b"a", 10, 1),
        (b"a", 20, 2),
        (b"b", 10, 1),
    ]
    assert all(row.keys() == {"user", "total", "n"} for _, row in found)
    ids = {record.id for record in live.records(totals)}
    assert len(ids) == len(found)
