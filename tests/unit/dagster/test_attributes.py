"""Fields of automation and of a launch that would make the supervisor end healthy runs are refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from flowcore import Flow, KafkaTopic
from flowcore.dagster.attributes import Automation
from flowcore.dagster.live_asset import LiveConfig
from flowcore.dagster.sensors import build_jobs
from flowcore.planner import plan_flow


@pytest.mark.parametrize("heartbeat_seconds", [0.5, 60.5])
def test_heartbeats_come_often_enough_for_the_supervisor(heartbeat_seconds: float) -> None:
    """Two of them are missing at least before a run counts as lost."""
    with pytest.raises(ValidationError, match="heartbeat_seconds"):
        LiveConfig(heartbeat_seconds=heartbeat_seconds)

    assert LiveConfig(heartbeat_seconds=60).heartbeat_seconds <= Automation().silent_s / 2


@pytest.mark.parametrize("field", ["start_s", "silent_s"])
def test_supervisor_waits_longer_than_two_heartbeats(field: str) -> None:
    """With less, a run that sends them as slowly as it may would be lost."""
    with pytest.raises(ValidationError, match=field):
        Automation.model_validate({field: 119})

    assert getattr(Automation.model_validate({field: 120}), field) == 120


@pytest.mark.parametrize("zone", ["Berlin", "../etc/passwd", "", "CEST"])
def test_unknown_time_zone_is_refused(zone: str) -> None:
    """Where the flow is declared, with names that may be passed."""
    with pytest.raises(ValidationError, match=r"not a time zone of the IANA database.*such as Europe/Berlin"):
        Automation(time_zone=zone)


@pytest.mark.parametrize(
    ("automation", "zone"), [(Automation(), "UTC"), (Automation(time_zone="Europe/Berlin"), "Europe/Berlin")]
)
def test_schedules_have_a_time_zone(automation: Automation, zone: str) -> None:
    """That of the flow's automation, or UTC."""
    flow = Flow("shop")
    flow.read("sales", KafkaTopic("sales", schema="id BIGINT")).write("out", KafkaTopic("out"))
    (schedule,) = build_jobs(plan_flow(flow), automation).schedules or ()

    assert getattr(schedule, "execution_timezone", None) == zone
