"""A plan states when a live query takes a checkpoint, and whether output is flushed for it."""

from collections.abc import Callable

import pytest

from flowcore import (
    Flow,
    KafkaTopic,
    OperatorAttributesBuilder,
    Parquet,
)
from flowcore.api.decisions import Decision
from flowcore.errors import PlanError
from flowcore.planner import plan_flow
from flowcore.planner.model import Mode
from flowcore.settings import Settings
from tests.idle_functions import IdleProcess, IdleRich


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


def test_nothing_is_flushed_without_a_request() -> None:
    """A flush costs output that nothing else needs."""
    assert "nothing is flushed before it" in " ".join(_checkpoint(None).reasons)


def test_operator_without_a_buffer_keeps_nothing_back() -> None:
    """The plan promises no flush that does not happen."""
    reasons = _checkpoint(None, flushing=True).reasons

    assert reasons[-1].startswith("held keeps no output back, so that nothing is flushed for it")


@pytest.mark.parametrize("flushing", [True, False])
def test_buffer_is_flushed_for_a_checkpoint_on_request(flushing: bool) -> None:
    """The decision about the buffer has what the plan says, and the compiler obeys that decision."""
    flow = Flow("f")
    attributes = OperatorAttributesBuilder().set_output_idempotent(True).set_output_on_checkpoint(flushing)
    bids = flow.read("bids", KafkaTopic("bids", schema="a INT"))
    latest = bids.map(dict, schema="a INT", key="a", name="latest", attributes=attributes)
    latest.write("out", KafkaTopic("out"))
    settings = Settings.of({"execution.flush.max-interval": "1 min"}, environment={})
    (query,) = (each for each in plan_flow(flow, settings=settings).live_queries if each.sinks)

    (flush,) = query.buffers.values()
    assert flush.config is not None
    assert flush.config.at_checkpoint == flushing
    promise = "the buffer of latest is flushed before it (output_on_checkpoint)"
    assert (promise in query.checkpoint.reasons) == flushing
    assert ("also at the end of each batch" in " ".join(flush.decision.reasons)) == flushing


class _Keeping(IdleRich):
    """Keeps records."""


class _Process(IdleProcess):
    """Emits what its timers say."""


@pytest.mark.parametrize(
    ("declare", "why"),
    [
        (
            lambda bids, at: bids.map(_Keeping(), schema="a INT", attributes=at),
            "records that its function keeps",
        ),
        (lambda bids, at: bids.apply(lambda rows: rows, attributes=at), "when a DataFrame function emits"),
        (
            lambda bids, at: bids.process(_Process(), by="a", schema="a INT", attributes=at),
            "windows and timers decide",
        ),
    ],
    ids=["rich-function", "dataframe-function", "process"],
)
def test_flush_for_a_checkpoint_that_the_engine_cannot_do_is_refused(
    declare: Callable[..., object], why: str
) -> None:
    """The message names the operator, and what can be flushed."""
    bids = Flow("f").read("bids", KafkaTopic("bids", schema="a INT"))
    attributes = OperatorAttributesBuilder().set_output_on_checkpoint(True)

    with pytest.raises(PlanError, match=rf"declares output_on_checkpoint=True, and .*{why}.*flush buffer"):
        declare(bids, attributes)


def test_bounded_operator_may_promise_output_at_a_checkpoint() -> None:
    """A bounded stage takes none."""
    table = Flow("f").read("table", Parquet("table", schema="a INT"))
    attributes = OperatorAttributesBuilder().set_output_on_checkpoint(True)

    assert table.apply(lambda rows: rows, attributes=attributes).bounded
