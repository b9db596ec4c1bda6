"""The `fuzz` benchmark on a small input: fuzzed messages are dead letters, good messages are joined."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from flowcore.planner import plan_flow
from flowcore.settings import Settings

pytestmark = pytest.mark.kafka

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"


@pytest.fixture
def fuzz() -> Any:
    """The benchmark module, loaded as `flowcore bench` loads it."""
    spec = importlib.util.spec_from_file_location("benchmark_fuzz", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_good_messages_are_joined_once_and_fuzzed_ones_are_dead_letters(
    live: Any, fuzz: Any, tmp_path: Path
) -> None:
    """Plain and tagged topics and their companions pass; the largest message has the maximum size."""
    from flowcore.spark.context import Context  # noqa: PLC0415 - tests without Spark shall not import it
    from flowcore.spark.run.live_topics import prepare_topics  # noqa: PLC0415

    load = fuzz.Load(good=4_000, bad=2_000, oversize=4, seed=2)
    settings = Settings.of(
        {
            "kafka.bootstrap.servers": live.servers,
            "data.dir": tmp_path,
            "state.dir": tmp_path / "state",
            "metrics.latency.interval": "1 h",
        },
        environment={},
    )
    flow, topics = fuzz.declare(tmp_path, live.suffix)
    sent = [fuzz.send(live.servers, topic, load) for topic in topics]
    plan = plan_flow(flow, "slice", settings)
    prepare_topics(plan, settings)

    fuzz.run_slice(plan, Context(live.spark, settings, flow.name))

    for topic, one in zip(topics, sent, strict=True):
        found = fuzz.check(live.servers, topic, load, one)
        assert found.ok, found
        assert found.kinds["oversize"] == 2
        assert (found.good, found.bad) == (2_000, 1_000)
