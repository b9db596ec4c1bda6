"""A query that waits for bounded stages is reported, and its pending results are its backlog."""

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.planner import plan_flow
from flowcore.planner.plan import Plan
from flowcore.spark.run.query_meter import waiting_queries


def _plan() -> Plan:
    flow = Flow("f")
    shops = flow.read("shops", Parquet("shops", schema="shop STRING"))
    flow.read("other", Parquet("other", schema="shop STRING")).write("copy", Parquet("copy"))
    flow.read("bids", KafkaTopic("bids", schema="shop STRING")).join(shops, on="shop").write(
        "out", KafkaTopic("out")
    )
    return plan_flow(flow)


def test_query_waits_until_every_stage_is_committed() -> None:
    """Pending results are its backlog until its source has reported that it has none."""
    plan = _plan()

    reported = [
        [(query.name, query.mode, query.backlog) for query in waiting_queries(plan, committed)]
        for committed in ([], ["shops"], ["shops", "copy"])
    ]

    assert reported == [[("bids", "waiting", True)], [("bids", "waiting", True)], []]
