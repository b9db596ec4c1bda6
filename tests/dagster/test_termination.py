"""A run reads the request to terminate from Dagster's run storage if nobody sends a signal."""

import os
from collections.abc import Callable

import pytest
from dagster import AssetExecutionContext, DagsterInstance, DagsterRunStatus, asset, materialize
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run

from flowcore.dagster import SparkResource, definitions, flow_assets, termination
from flowcore.dagster.names import live_key
from flowcore.dagster.termination import TerminationRequests
from flowcore.errors import RunError
from pipelines.auctions.flow import flow

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


def test_run_reads_its_termination() -> None:
    """No signal is sent."""
    found = []

    def body(context: AssetExecutionContext) -> None:
        requests = TerminationRequests(context)
        found.append(requests.poll())
        context.instance.report_run_canceling(context.run)
        found.append(requests.poll())

    _in_a_run(body)

    assert found == [False, True]


@pytest.mark.parametrize("terminated", [True, False], ids=["terminated", "killed"])
def test_retry_of_a_run_that_was_terminated_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, terminated: bool
) -> None:
    """Its worker died while it terminated, so it counts as failed, and Dagster retries it."""
    starts = []

    def start(*_: object) -> None:
        starts.append(True)
        msg = "no Spark is needed to see that it is started"
        raise RunError(msg)

    monkeypatch.setattr(SparkResource, "context", start)
    job = definitions(flow_assets(flow)).resolve_job_def("auctions_live")
    with DagsterInstance.ephemeral() as instance:
        parent = instance.create_run_for_job(job, status=DagsterRunStatus.STARTED)
        if terminated:
            instance.report_run_canceling(parent)
        instance.report_run_failed(parent)
        retry = instance.create_run_for_job(
            job, tags={"dagster/retry_number": "1"}, parent_run_id=parent.run_id, root_run_id=parent.run_id
        )
        result = execute_run(InMemoryJob(job), retry, instance)
        log = [entry.user_message for entry in instance.all_logs(retry.run_id)]
        reports = instance.fetch_materializations(live_key("auctions"), limit=1).records

    assert result.success is terminated
    assert bool(starts) is not terminated
    assert sum("this retry of it ends" in message for message in log) == terminated
    assert not reports


def test_run_that_counts_as_failed_ends() -> None:
    """Another run may have started."""
    found = []

    def body(context: AssetExecutionContext) -> None:
        requests = TerminationRequests(context)
        context.instance.report_run_failed(context.run)
        try:
            requests.poll()
        except RunError as error:
            found.append(str(error))

    _in_a_run(body)

    (message,) = found
    assert "declared failed while it still ran" in message


def test_run_logs_once_that_its_code_server_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its log, which the UI shows; the run continues."""
    found = []

    def body(context: AssetExecutionContext) -> None:
        requests = TerminationRequests(context)
        found.append(requests.poll())
        monkeypatch.setattr(os, "getppid", lambda: 1)
        found.extend((requests.poll(), requests.poll()))

    log = _in_a_run(body)

    assert found == [False, False, False]
    assert sum("the code server that started this run" in message for message in log) == 1
