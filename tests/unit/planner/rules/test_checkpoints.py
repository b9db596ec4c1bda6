"""A plan states when a live query takes a checkpoint, and whether output is flushed for it."""

import pytest

from flowcore import Flow, KafkaTopic, OperatorAttributesBuilder
from flowcore.api.decisions import Decision
from flowcore.planner import plan_flow
from flowcore.planner.model import Mode
from flowcore.settings import Settings


def _checkpoint(mode: Mode | None, *, flushing: bool = False, **settings: str) -> Decision:
    flow = Flow("f")
    attributes = OperatorAttributesBuilder().set_output_on_checkpoint(flushing)
    bids = flow.read("bids", KafkaTopic("bids", schema="a INT"))
    bids.where("a > 1", name="held", attributes=attributes).write("out", KafkaTopic("out"))
    live = plan_flow(flow, mode, Settings.of(settings, environment={})).live
    assert live
    return live.queries[0].checkpoint


@pytest.mark.parametrize(
    ("mode", "value"),
    [(None, "every 5 min"), ("micro-batch", "after each batch"), ("slice", "after each batch")],
    ids=["realtime", "micro-batch", "slice"],
)
def test_checkpoint_follows_the_mode(mode: Mode | None, value: str) -> None:
    """Checkpoints are taken by processing time in real-time mode, else with each batch."""
    assert _checkpoint(mode).value == value


def test_checkpoint_interval_is_the_setting() -> None:
    """The plan names the setting."""
    decision = _checkpoint(None, **{"execution.realtime.batch-duration": "30 s"})

    assert decision.value == "every 30 s"
    assert decision.reasons[0] == "execution.realtime.batch-duration is 30 s"


@pytest.mark.parametrize("flushing", [True, False])
def test_output_is_flushed_for_a_checkpoint_on_request_only(flushing: bool) -> None:
    """The plan names the operator that requests it."""
    reasons = " ".join(_checkpoint(None, flushing=flushing).reasons)

    assert ("held emits what it holds before it" in reasons) == flushing
    assert ("nothing is flushed before it" in reasons) != flushing
