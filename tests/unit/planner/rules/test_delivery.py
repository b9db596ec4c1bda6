"""A query delivers exactly once if one of its sinks asks for it, and only where that is possible."""

from __future__ import annotations

import pytest

from flowcore import Flow, KafkaTopic
from flowcore.errors import ConfigurationError, PlanError
from flowcore.planner import plan_flow
from flowcore.planner.model import LiveQuery
from flowcore.settings import Settings

ONCE = KafkaTopic("out", delivery="exactly-once")


def _queries(flow: Flow, *, partitions: int = 2) -> list[LiveQuery]:
    settings = Settings.of({"execution.shuffle-partitions": partitions}, environment={})
    return list(plan_flow(flow, settings=settings).live_queries)


def _flow(*sinks: KafkaTopic) -> Flow:
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema="id BIGINT"))
    for number, sink in enumerate(sinks):
        bids.write(f"sink-{number}", sink)
    return flow


def test_sink_that_asks_leaves_real_time_mode_with_the_dead_letters() -> None:
    """Another sink of the same source stays in real time."""
    fast, exact = _queries(_flow(KafkaTopic("fast"), ONCE))

    assert (fast.mode.value, fast.delivery.value, fast.dead_letters) == ("realtime", "at-least-once", ())
    assert "give sink-0 delivery='exactly-once'" in fast.delivery.change
    assert (exact.mode.value, exact.delivery.value) == ("micro-batch", "exactly-once")
    assert "sink-1 is written exactly once" in exact.mode.reasons[0]
    assert exact.delivery.reasons[-1] == "in the same transactions: bad records of bids"


def test_other_sinks_of_its_query_are_in_the_same_transactions() -> None:
    """They share its frame."""
    flow = Flow("f")
    mapped = flow.read("bids", KafkaTopic("bids", schema="id BIGINT")).map(dict, schema="id BIGINT")
    mapped.write("one", ONCE)
    mapped.write("other", KafkaTopic("other"))
    (query,) = _queries(flow, partitions=1)

    assert query.delivery.reasons[1].startswith("each batch is written in 1 transaction (")
    assert query.delivery.reasons[-1] == "in the same transactions: other, bad records of bids"


def test_plan_explains_delivery() -> None:
    """The text names the sink and the number of transactions."""
    text = plan_flow(_flow(ONCE)).explain()

    assert (
        "    delivery exactly-once because sink-0 asks for it (delivery); each batch is written in 2" in text
    )
    assert "write KafkaTopic out, exactly once" in text
    assert "delivery" not in plan_flow(_flow(KafkaTopic("out"))).explain()


def test_exactly_once_is_refused_where_it_cannot_be() -> None:
    """In real-time mode, of a bounded stage, and with another word."""
    with pytest.raises(PlanError, match="realtime") as caught:
        plan_flow(_flow(ONCE), "realtime")
    assert str(caught.value) == (
        "mode 'realtime' is not possible: sink-0 is written exactly once, a batch in a transaction, and "
        "real-time mode emits records before their batch is known; give sink-0 delivery='at-least-once', and "
        "let its readers drop repeats by flowcore-id, or run it with --mode micro-batch"
    )
    flow = Flow("f")
    flow.read("bids", KafkaTopic("bids", schema="id BIGINT", until="latest")).write("out", ONCE)
    with pytest.raises(
        PlanError, match=r"sink 'out' asks for delivery='exactly-once', and its input is bounded"
    ):
        plan_flow(flow)
    with pytest.raises(ConfigurationError, match=r"delivery='once' of topic 'x' is not one of at-least-once"):
        KafkaTopic("x", delivery="once")  # type: ignore[arg-type]
