"""The limits of all topics that a run writes to are watched."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from flowcore import Flow, KafkaTopic
from flowcore.errors import LoweredLimitError
from flowcore.kafka.topics import TopicLimits
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.run import limit_watch
from flowcore.spark.run.limit_watch import LimitWatch

KNOWN = TopicLimits(max_message_bytes=1_000_000, needs_key=False)


@pytest.mark.parametrize("lowered", ["out", "bids.dead-letter"])
def test_lowered_limit_of_any_topic_is_noticed(lowered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead letters are not among the sinks of their query, and larger ones are sent without end, too."""
    flow = Flow("f")
    bids = KafkaTopic("bids", schema="id BIGINT")
    flow.read("bids", bids).write("out", KafkaTopic("out"))
    (query,) = plan_flow(flow, "micro-batch").live_queries
    limits = {"out": KNOWN, bids.dead_letter: KNOWN}
    assert lowered in limits

    def ask(servers: str, names: Collection[str]) -> dict[str, TopicLimits]:
        assert servers == "broker:9092"
        return {name: limits[name] for name in names}

    monkeypatch.setattr(limit_watch, "topic_limits", ask)
    watch = LimitWatch(Settings.of({"kafka.bootstrap.servers": "broker:9092"}, environment={}))
    watch.begin([(query, dict(limits))])
    watch.check_now()

    limits[lowered] = TopicLimits(max_message_bytes=1_000, needs_key=False)

    with pytest.raises(LoweredLimitError, match=f"topic '{lowered}' takes messages of at most 1000 bytes"):
        watch.check_now()


def test_topics_of_one_name_on_two_brokers_have_their_own_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """That one broker takes smaller messages than the other does not mean that its limit was lowered."""
    flow = Flow("f")
    limits = {}
    for number, servers in enumerate(("first:1", "second:1"), 1):
        source = flow.read(f"bids{number}", KafkaTopic(f"bids{number}", schema="id BIGINT"))
        source.write(f"out{number}", KafkaTopic("out", servers=servers))
        limits[servers] = TopicLimits(max_message_bytes=number * 1_000_000, needs_key=False)
    plan = plan_flow(flow, "micro-batch")
    monkeypatch.setattr(
        limit_watch, "topic_limits", lambda servers, names: dict.fromkeys(names, limits[servers])
    )
    watch = LimitWatch(Settings())
    watch.begin(
        (query, {"out": limits[topic.servers or ""]})
        for query in plan.live_queries
        for topic in query.topics_written
    )

    watch.check_now()

    limits["second:1"] = TopicLimits(max_message_bytes=1_500_000, needs_key=False)
    with pytest.raises(LoweredLimitError, match="at most 1500000 bytes, and took 2000000"):
        watch.check_now()
