"""Changes around a flow that is down: of its source, and of the flow itself.

A run is killed in a batch that it has not completed, and the next one finds something else than the first.
"""

from __future__ import annotations

import shutil
from dataclasses import replace

from flowcore.errors import DeliveryError, StateError
from flowcore.kafka.topics import grow_topic
from tests.benchmarks._faults.kills import kill_in_batch
from tests.benchmarks._faults.scenario import BOTH, Scenario
from tests.benchmarks._faults.trial import Trial

__all__ = ["CHANGES"]


def _grown(trial: Trial) -> None:
    """A partition is added to the source after a kill: the repeated batch is as it was without it."""
    trial.send(600)
    kill_in_batch(trial)
    grow_topic(trial.site.servers, trial.sales.source, 3)
    trial.send_sales(trial.next_sales(300, digits=2), 3)
    trial.close_windows(3)
    _continue(trial)


def _unfit(trial: Trial) -> None:
    """Another version of the flow writes more: no slot does, and it is changed back."""
    trial.send(600)
    kill_in_batch(trial, "transaction-committed-0", "transaction-commit-1", **{"spark.master": "local[1]"})
    before = trial.sales
    trial.sales = replace(before, variant="one more output")
    trial.expect_refusal(DeliveryError, "the flow has changed before the batch was complete")
    trial.sales = before
    trial.send(150)
    trial.close_windows()
    _continue(trial)


def _changed(trial: Trial) -> None:
    """A compatible version of the flow repeats the batch with the same ids."""
    trial.send(600)
    kill_in_batch(trial)
    trial.sales = replace(trial.sales, variant="other steps")
    trial.send(150)
    trial.close_windows()
    _continue(trial)


def _renamed(trial: Trial) -> None:
    """The flow has another name, and its folder too: refused, since names are in ids and ledgers."""
    trial.send(600)
    kill_in_batch(trial)
    before, folder = trial.sales, trial.state / trial.sales.flow
    trial.sales = replace(before, variant="another name")
    renamed = folder.with_name(trial.sales.declare().name)
    shutil.move(folder, renamed)
    trial.expect_refusal(StateError, f"of flow '{before.flow}'")
    shutil.move(renamed, folder)
    trial.sales = before
    trial.send(150)
    trial.close_windows()
    _continue(trial)


def _continue(trial: Trial) -> None:
    """Continue with a slice, or in micro-batches."""
    if trial.random.random() < 0.5:
        trial.notes.append("continued by a slice")
        trial.finish()
    else:
        trial.recover(trial.start())


CHANGES = (
    Scenario(
        id="partition-added-in-batch", title="a partition is added to the source after a kill in a batch",
        play=_grown, deliveries=BOTH, limit_s=180,
    ),
    Scenario(
        id="flow-unfit-in-batch", title="the flow writes more after a kill in a batch, and is changed back",
        play=_unfit, limit_s=180,
    ),
    Scenario(
        id="flow-changed-in-batch", title="the flow has other steps after a kill in a batch", play=_changed,
        deliveries=BOTH, limit_s=180,
    ),
    Scenario(
        id="flow-renamed-in-batch",
        title="the flow has another name after a kill in a batch, and then the old one",
        play=_renamed, deliveries=BOTH, limit_s=180,
    ),
)  # fmt: skip
