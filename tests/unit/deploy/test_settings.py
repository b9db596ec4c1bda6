"""What a deployment sets for all flows is the same on one machine, in containers and on Kubernetes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml

from flowcore.settings import Settings

DEPLOY = Path(__file__).parents[3] / "deploy"


def test_latency_is_tracked_in_every_deployment() -> None:
    """Each has the interval of the settings file."""
    one_machine = Settings.of(file=DEPLOY / "settings.toml", environment={})
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["x-dagster"]["environment"]
    resource = yaml.safe_load((DEPLOY / "kubernetes" / "settings.yaml").read_text())
    others = (
        Settings.of(environment=compose),
        Settings.of(tomllib.loads(resource["data"]["settings.toml"]), environment={}),
    )

    assert one_machine.latency_interval.total_seconds() == 1
    assert {each.latency_interval for each in others} == {one_machine.latency_interval}
