"""A run that somebody deletes in Dagster while it runs ends; while Dagster's storage is away it goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from flowcore.dagster import termination
from flowcore.dagster.termination import TerminationRequests
from flowcore.errors import RunError


@dg.job
def stream() -> None:
    """Nothing is executed."""


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(termination, "_STORAGE_POLL_S", 0.0)


def test_run_that_was_deleted_ends() -> None:
    """Its storage answers, and does not know it: no request to terminate can reach it."""
    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(stream, status=dg.DagsterRunStatus.STARTED)
        context: Any = SimpleNamespace(instance=instance, run=run)
        requests = TerminationRequests(context)
        before = requests.poll()
        instance.delete_run(run.run_id)

        with pytest.raises(
            RunError, match=f"run {run.run_id} was deleted while it ran.*terminate a run before"
        ):
            requests.poll()

    assert not before


def test_run_goes_on_while_storage_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be there, and the request comes later."""
    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(stream, status=dg.DagsterRunStatus.STARTED)
        context: Any = SimpleNamespace(instance=instance, run=run)
        requests = TerminationRequests(context)

        def refuse(_: str) -> None:
            msg = "the database is away"
            raise ConnectionError(msg)

        with monkeypatch.context() as away:
            away.setattr(instance, "get_run_by_id", refuse)
            assert not requests.poll()
        instance.report_run_canceling(run)

        assert requests.poll()
