"""Fields of automation and of a launch that would make the supervisor end healthy runs are refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from flowcore.dagster.attributes import Automation
from flowcore.dagster.live_asset import LiveConfig


@pytest.mark.parametrize("beat_seconds", [0.5, 60.5])
def test_heartbeats_come_often_enough_for_the_supervisor(beat_seconds: float) -> None:
    """Two of them are missing at least before a run counts as lost."""
    with pytest.raises(ValidationError, match="beat_seconds"):
        LiveConfig(beat_seconds=beat_seconds)

    assert LiveConfig(beat_seconds=60).beat_seconds <= Automation().silent_s / 2


@pytest.mark.parametrize("field", ["start_s", "silent_s"])
def test_supervisor_waits_longer_than_two_heartbeats(field: str) -> None:
    """With less, a run that sends them as slowly as it may would be lost."""
    with pytest.raises(ValidationError, match=field):
        Automation(**{field: 119})

    assert getattr(Automation(**{field: 120}), field) == 120
