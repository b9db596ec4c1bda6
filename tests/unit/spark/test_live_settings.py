"""Settings with which live queries can never run are refused before Spark is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowcore import Csv, Flow, KafkaTopic
from flowcore.errors import FlowcoreError
from flowcore.settings import Settings
from flowcore.spark.run import flow as run_flow_module
from flowcore.spark.run.flow import run_flow

KEY = "k" * 32


def _flow() -> Flow:
    """A flow with a bounded stage, and a live query that writes a signed topic."""
    flow = Flow("f")
    names = flow.read("names", Csv("names.csv", schema="id BIGINT, name STRING"))
    bids = flow.read("bids", KafkaTopic("bids", schema="id BIGINT"))
    bids.join(names, on="id").write("out", KafkaTopic("out", elements="tagged", signed=True))
    return flow


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, r"signed=True and kafka\.control-key is not set"),
        ({"kafka.control-key": "short"}, r"kafka\.control-key has 5 bytes"),
        (
            {"kafka.control-key": KEY, "metrics.interval": "0", "metrics.prometheus.port": 0},
            r"metrics\.prometheus\.port=0 with metrics\.interval=0",
        ),
        (
            {"kafka.control-key": KEY, "metrics.interval": "0", "metrics.dagster.url": "http://d:3000"},
            r"metrics\.dagster\.url=http://d:3000 with metrics\.interval=0",
        ),
        ({"kafka.control-key": KEY}, "Spark would start"),
    ],
    ids=["no-key", "short-key", "prometheus", "dagster", "right"],
)
def test_impossible_settings_are_refused_before_bounded_stages_run(
    more: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hours later the queries would not start, at each try."""

    def start(*_: Any, **__: Any) -> None:
        msg = "Spark would start"
        raise FlowcoreError(msg)

    monkeypatch.setattr(run_flow_module, "prepare_topics", lambda *_: {})
    monkeypatch.setattr(run_flow_module, "slots_needed", lambda *_: 1)
    monkeypatch.setattr(run_flow_module, "session", start)
    (tmp_path / "names.csv").touch()
    given = {"state.dir": tmp_path / "state", "data.dir": tmp_path, "kafka.bootstrap.servers": "k:1"}
    settings = Settings.of({**given, **more}, environment={})

    with pytest.raises(FlowcoreError, match=message):
        run_flow(_flow(), settings)
    with pytest.raises(FlowcoreError, match="Spark would start"):
        run_flow(_flow(), settings, live=False)
