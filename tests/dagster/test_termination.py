"""A run hears that it is to end from Dagster's record, whoever has gone of those that would tell it."""

import os
from collections.abc import Callable

import pytest
from dagster import AssetExecutionContext, DagsterInstance, asset, materialize

from flowcore.dagster import termination
from flowcore.dagster.termination import TerminationRequests
from flowcore.errors import RunError

pytestmark = pytest.mark.dagster


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(termination, "_STORAGE_POLL_S", 0.0)


def _in_a_run(body: Callable[[AssetExecutionContext], None]) -> list[str]:
    """Call a function in a run; what the run logged."""

    @asset(name="running")
    def running(context: AssetExecutionContext) -> None:
        body(context)

    with DagsterInstance.ephemeral() as instance:
        run = materialize([running], instance=instance, raise_on_error=False).run_id
        return [entry.user_message for entry in instance.all_logs(run)]


def test_run_hears_that_it_is_terminated() -> None:
    """Though no signal came."""
    heard = []

    def body(context: AssetExecutionContext) -> None:
        requests = TerminationRequests(context)
        heard.append(requests.poll())
        context.instance.report_run_canceling(context.run)
        heard.append(requests.poll())

    _in_a_run(body)

    assert heard == [False, True]


def test_run_that_counts_as_failed_ends() -> None:
    """Another one may have begun."""
    heard = []

    def body(context: AssetExecutionContext) -> None:
        requests = TerminationRequests(context)
        context.instance.report_run_failed(context.run)
        try:
            requests.poll()
        except RunError as error:
            heard.append(str(error))

    _in_a_run(body)

    (message,) = heard
    assert "declared failed while it still ran" in message


def test_run_tells_once_that_its_code_server_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its log, which the UI shows; and goes on."""
    heard = []

    def body(context: AssetExecutionContext) -> None:
        requests = TerminationRequests(context)
        heard.append(requests.poll())
        monkeypatch.setattr(os, "getppid", lambda: 1)
        heard.extend((requests.poll(), requests.poll()))

    log = _in_a_run(body)

    assert heard == [False, False, False]
    assert sum("the code server that started this run" in message for message in log) == 1
