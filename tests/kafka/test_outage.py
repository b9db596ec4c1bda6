"""An outage of a broker is reported; the known ends of its topics stay as they are meanwhile."""

from pathlib import Path
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import ensure_topics
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.run.observation import RunMeter
from flowcore.spark.topics import offsets
from flowcore.spark.topics.offsets import TopicEnds

pytestmark = pytest.mark.kafka


def _context(servers: str, folder: Path) -> tuple[Any, Context]:
    flow = Flow("f")
    flow.read("in", KafkaTopic("in", schema="id BIGINT")).write("out", KafkaTopic("out"))
    settings = Settings.of({"kafka.bootstrap.servers": servers, "state.dir": folder}, environment={})
    no_session: Any = None  # Spark is not used
    return plan_flow(flow, None, settings), Context(no_session, settings, "f")


@pytest.mark.thorough
def test_outage_of_a_broker_is_reported_during_and_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During the outage `silent_s` grows; after it `poll` returns its duration once."""
    monkeypatch.setattr(offsets, "_AWAY_S", 0.0)
    monkeypatch.setattr(offsets, "_OUTAGE_S", 0.5)
    broker = EmbeddedBroker(tmp_path / "broker")
    with broker:
        ensure_topics(broker.bootstrap_servers, {"in": 2, "out": 1})
        plan, context = _context(broker.bootstrap_servers, tmp_path)
        (query,) = plan.live_queries
        ends = TopicEnds(plan, context)
        before = ends.ends_read_by(query)
        assert before == {"in": {0: 0, 1: 0}}
        assert ends.poll() == {}
        assert ends.silent_s == 0
    assert ends.poll() == {}
    first = ends.silent_s
    assert ends.poll() == {}

    assert ends.silent_s > first > 0
    assert ends.ends_read_by(query) == before
    with broker:
        (away_s,) = ends.poll().values()
        assert away_s >= first
        assert ends.poll() == {}
        assert ends.silent_s == 0


def test_outage_is_in_the_progress_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beats, Prometheus and the history read the outage from the run's progress."""
    monkeypatch.setattr(offsets, "_AWAY_S", 0.0)
    with EmbeddedBroker() as broker:
        ensure_topics(broker.bootstrap_servers, {"in": 2, "out": 1})
        meter = RunMeter(*_context(broker.bootstrap_servers, tmp_path))
        assert meter.read().broker_silent_ms == 0

    assert meter.read().broker_silent_ms > 0
