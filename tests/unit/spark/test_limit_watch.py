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
