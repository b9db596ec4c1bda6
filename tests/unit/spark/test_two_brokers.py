"""A flow may read a topic of one broker, and write a topic of the same name on another one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, monotonous
from flowcore.kafka.topics import TopicIdentity, TopicLimits
from flowcore.metrics.progress import PartitionProgress, QueryProgress
from flowcore.planner import plan_flow
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.run import observation
from flowcore.spark.run.observation import RunMeter
from flowcore.spark.topics import offsets, side_channels
from flowcore.spark.topics.side_channels import SideChannels

LOCAL, CENTRAL, OTHER = "local:1", "central:1", "other:1"
Brokers = dict[str, dict[str, dict[int, int]]]


def _bids(**more: Any) -> KafkaTopic:
    return KafkaTopic("bids", schema="id BIGINT", **more)


def _settings(folder: Path) -> Settings:
    return Settings.of({"kafka.bootstrap.servers": LOCAL, "state.dir": folder}, environment={})


def _copy(*servers: str) -> Flow:
    """A flow that copies the topic `bids` to the same name on other brokers."""
    flow = Flow("f")
    for number, address in enumerate(servers):
        copied = KafkaTopic("bids", servers=address, elements="tagged")
        flow.read(f"bids{number}", _bids(watermark=monotonous())).write(f"copy{number}", copied)
    return flow


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    """The ends of the topics of each broker."""
    ends: Brokers = defaultdict(dict)

    def read_ends(servers: str, topics: Collection[str], _: float) -> dict[str, dict[int, int]]:
        return {topic: dict(ends[servers].get(topic, {})) for topic in topics}

    monkeypatch.setattr(offsets, "end_offsets_of_topics", read_ends)
    return ends


def _meter(plan: Plan, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> RunMeter:
    no_session: Any = None  # Spark is not used
    monkeypatch.setattr(observation, "start_offsets", lambda *_: {0: 0, 1: 0})
    meter = RunMeter(plan, Context(no_session, settings, "f"))
    for query in plan.live_queries:
        meter.add(query, settings.state_dir / query.name, lambda: True)
    return meter


def _progress(meter: RunMeter) -> dict[str, QueryProgress]:
    return {query.name: query for query in meter.read().queries}


def test_lag_is_that_of_the_source_and_output_that_of_the_sink(
    brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy has other partitions, and more records than are read."""
    brokers[LOCAL]["bids"] = {0: 5, 1: 5}
    brokers[CENTRAL]["bids"] = {0: 100, 1: 100, 2: 100}
    settings = _settings(tmp_path)
    meter = _meter(plan_flow(_copy(CENTRAL), settings=settings), settings, monkeypatch)

    brokers[LOCAL]["bids"] = {0: 7, 1: 8}
    brokers[CENTRAL]["bids"] = {0: 101, 1: 100, 2: 103}
    (query,) = _progress(meter).values()

    assert [(one.partition, one.lag) for one in query.partitions] == [(0, 7), (1, 8)]
    assert (query.lag, query.rows_out) == (15, 4)


def test_dead_letters_count_where_they_are_written(
    brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic of the same name at the source's broker is of other flows."""
    for address in (LOCAL, CENTRAL, OTHER):
        brokers[address]["bids.dead-letter"] = {0: 10}
    settings = _settings(tmp_path)
    plan = plan_flow(_copy(CENTRAL, OTHER), settings=settings)
    meter = _meter(plan, settings, monkeypatch)

    brokers[LOCAL]["bids.dead-letter"] = {0: 20}
    brokers[CENTRAL]["bids.dead-letter"] = {0: 13}
    brokers[OTHER]["bids.dead-letter"] = {0: 14}

    assert [query.dead_letters for query in _progress(meter).values()] == [3, 4]


def test_output_counts_on_after_its_topic_was_created_again(
    brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offsets begin anew, and a counter must not go back. A topic may be missing from an answer, too."""
    brokers[CENTRAL]["bids"] = {0: 100, 1: 100}
    settings = _settings(tmp_path)
    meter = _meter(plan_flow(_copy(CENTRAL), settings=settings), settings, monkeypatch)
    answers = [{0: 110, 1: 100}, {}, {0: 111, 1: 100}, {}, {0: 0, 1: 0}, {0: 4, 1: 1}, {0: 4, 1: 1, 2: 2}]

    counts = []
    for ends in answers:
        brokers[CENTRAL]["bids"] = ends
        (query,) = _progress(meter).values()
        counts.append(query.rows_out)

    assert counts == [10, 10, 11, 11, 11, 16, 18]


def test_queries_that_read_one_name_on_two_brokers_have_their_own_lag(
    brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers[LOCAL]["bids"], brokers[CENTRAL]["bids"] = {0: 5}, {0: 9}
    flow = Flow("f")
    flow.read("near", _bids()).write("first", KafkaTopic("first"))
    flow.read("far", _bids(servers=CENTRAL)).write("second", KafkaTopic("second"))
    settings = _settings(tmp_path)
    meter = _meter(plan_flow(flow, settings=settings), settings, monkeypatch)

    found = _progress(meter)

    ends = {name: [one.end for one in query.partitions if one.end] for name, query in found.items()}
    assert ends == {"near": [5], "far": [9]}


def test_tagged_sink_has_its_own_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control elements are sent to each partition of the sink; watermarks follow each one of the source."""
    known = {LOCAL: TopicIdentity("a", "id-a", 2), CENTRAL: TopicIdentity("b", "id-b", 5)}
    settings = _settings(tmp_path)
    (query,) = plan_flow(_copy(CENTRAL), settings=settings).live_queries
    monkeypatch.setattr(
        side_channels, "identify_topics", lambda servers, names: dict.fromkeys(names, known[servers])
    )
    limits = TopicLimits(1 << 20, needs_key=False)
    monkeypatch.setattr(side_channels, "topic_limits", lambda _, names: dict.fromkeys(names, limits))

    found = SideChannels.of(query, settings, tmp_path / "checkpoint")

    assert found.topics == {"bids": known[LOCAL]}
    assert (found.partitions, found.sink_partitions) == ({"bids": 2}, {"bids": 5})
    grown = found.follow([PartitionProgress(topic="bids", partition=2)])
    assert (grown.partitions, grown.sink_partitions) == ({"bids": 3}, {"bids": 5})
