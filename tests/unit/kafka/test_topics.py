"""Topics whose partitions have no leader, as while the brokers with their replicas are down."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic
from flowcore.errors import BrokerError, UnreachableBrokerError
from flowcore.kafka import topics
from flowcore.kafka.topics import end_offsets, ensure_topics, grow_topic, partition_counts
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.run.live_topics import prepare_topics

SERVERS = "broker:9092"
AWAY = r"topics bids at broker:9092 have partitions without a leader: nothing can be read"


class Cluster:
    """Answers as kafka-python's client does; the cluster has a broker that answers, and others that may not.

    Args:
        leaders: By topic, the leader of each partition, -1 for none.
    """

    def __init__(self, leaders: Mapping[str, list[int]]) -> None:
        self.leaders = dict(leaders)
        self.created: list[str] = []
        self.configs: dict[str, dict[str, str]] = {}
        self.unknown: set[str] = set()
        """Settings of topics that its brokers do not know."""
        self.described = 0
        self.returns_after = 10**9
        """After which number of answers about topics the lost brokers are back."""

    def describe_cluster(self) -> dict[str, Any]:
        return {"cluster_id": "cluster"}

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        self.described += 1
        if self.described > self.returns_after:
            self.leaders = {name: [1 for _ in each] for name, each in self.leaders.items()}
        found = {name: [{"leader_id": one} for one in self.leaders.get(name, ())] for name in names}
        return [
            {"name": name, "error_code": 0 if each else 3, "partitions": each} for name, each in found.items()
        ]

    def create_topics(self, wanted: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        taken = {name: each for name, each in wanted.items() if not self.unknown & each["configs"].keys()}
        self.created += taken
        self.leaders |= {name: [1] * each["num_partitions"] for name, each in taken.items()}
        self.configs |= {name: each["configs"] for name, each in taken.items()}
        answers = {name: (0, None) if name in taken else (40, "Unknown topic config name") for name in wanted}
        return {
            "topics": [
                {"name": name, "error_code": code, "error_message": message}
                for name, (code, message) in answers.items()
            ]
        }


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cluster]:
    """Makes the cluster that the functions reach."""

    def make(**leaders: list[int]) -> Cluster:
        made = Cluster(leaders)

        @contextlib.contextmanager
        def connect(*_: object) -> Iterator[Cluster]:
            yield made

        monkeypatch.setattr(topics, "connect", connect)
        monkeypatch.setattr(topics, "_TIMEOUT_S", 0.1)
        return made

    return make


@pytest.mark.parametrize(
    "ask",
    [
        lambda: partition_counts(SERVERS, ["bids"]),
        lambda: end_offsets(SERVERS, "bids"),
        lambda: ensure_topics(SERVERS, {"bids": 2}),
        lambda: grow_topic(SERVERS, "bids", 2),
    ],
    ids=["counts", "offsets", "ensure", "grow"],
)
def test_partition_without_a_leader_is_an_outage(
    cluster: Callable[..., Cluster], ask: Callable[[], object]
) -> None:
    """A run waits for the brokers, and does not take the topic for one that does not exist."""
    made = cluster(bids=[1, -1])

    with pytest.raises(UnreachableBrokerError, match=AWAY):
        ask()

    assert not made.created


def test_run_waits_for_a_source_without_a_leader(cluster: Callable[..., Cluster]) -> None:
    """What a run checks after an outage of a query detects a continuing outage."""
    cluster(bids=[-1])
    flow = Flow("f")
    flow.read("bids", KafkaTopic("bids", schema="id BIGINT")).write("copy", KafkaTopic("copy"))

    with pytest.raises(UnreachableBrokerError, match=AWAY):
        prepare_topics(plan_flow(flow), Settings(bootstrap_servers=SERVERS))


def test_only_topics_that_do_not_exist_are_created(cluster: Callable[..., Cluster]) -> None:
    """Topics without a leader are waited for."""
    made = cluster(bids=[1, -1])
    made.returns_after = 1

    ensure_topics(SERVERS, {"bids": 2, "copy": 3})

    assert made.created == ["copy"]
    assert partition_counts(SERVERS, ["bids", "copy", "other"]) == {"bids": 2, "copy": 3, "other": None}


def test_brokers_that_do_not_limit_timestamps_get_topics_too(cluster: Callable[..., Cluster]) -> None:
    """Those before Kafka 3.6 refuse a setting that they do not know; other refusals are errors."""
    made = cluster()
    ensure_topics(SERVERS, {"new": 1}, {"retention.ms": "1"})
    made.unknown = {"message.timestamp.before.max.ms", "retention.s"}

    ensure_topics(SERVERS, {"old": 1}, {"retention.ms": "1"})

    limit = {"message.timestamp.before.max.ms": "4000000000000000"}
    assert made.configs == {"new": {**limit, "retention.ms": "1"}, "old": {"retention.ms": "1"}}
    with pytest.raises(
        BrokerError, match=r"topic 'wrong' with 1 partitions cannot be created .*Unknown topic"
    ):
        ensure_topics(SERVERS, {"wrong": 1}, {"retention.s": "1"})
