"""Decisions of the supervisor on recorded runs: instance and events are real, runs are not executed."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from dagster import (
    AssetCheckKey,
    AssetSelection,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    Definitions,
    define_asset_job,
)
from dagster._core.events import (
    DagsterEventType,
    JobCanceledData,
)
from dagster._core.storage.compute_log_manager import ComputeIOType

from flowcore.dagster.names import live_key
from flowcore.dagster.old_runs import remove_old_runs
from flowcore.dagster.restart_sensor import GAVE_UP, RESTART, first_run
from tests.dagster.supervised import CONFIG, DEFS, LIMIT, LIVE, Supervised, reported_checks

pytestmark = pytest.mark.dagster


@pytest.fixture
def supervised() -> Iterator[Supervised]:
    """An instance without runs."""
    with DagsterInstance.ephemeral() as instance:
        yield Supervised(instance)


def _refuse(supervised: Supervised) -> None:
    """A launch that sets Spark's options, and fails."""
    hostile = {"resources": {"spark": {"config": {"spark_config": {"spark.jars": "/evil.jar"}}}}}
    refused = supervised.instance.create_run_for_job(
        LIVE, run_config=CONFIG | hostile, status=DagsterRunStatus.STARTING
    )
    supervised.crash(refused)


def test_supervisor_launches_no_flow_by_itself(supervised: Supervised) -> None:
    """The supervisor only restarts runs; it does not launch a flow by itself."""
    result = supervised.tick()

    assert not result.run_requests
    assert reported_checks(result) == []


def test_crashed_run_is_launched_again_as_it_was(supervised: Supervised) -> None:
    """With the configuration and tags that a person gave it, and once only, whatever tick is repeated."""
    run = supervised.start()
    supervised.crash(run)

    (request,) = supervised.tick().run_requests or []

    assert request.run_config == CONFIG
    assert request.run_key == run.run_id
    assert request.tags == {
        "shift": "night", RESTART: "1", "flowcore/restart-of": run.run_id, "flowcore/first-run": run.run_id
    }  # fmt: skip


def test_refused_launch_is_not_repeated_and_does_not_end_supervision(supervised: Supervised) -> None:
    """It set Spark's options, so it failed before it began; the crashed run before it is launched again."""
    crashed = supervised.start()
    supervised.crash(crashed)
    _refuse(supervised)

    (request,) = supervised.tick().run_requests or []

    assert request.run_config == CONFIG
    assert request.run_key == crashed.run_id


@pytest.mark.parametrize("withdrawn", [True, False], ids=["withdrawn", "refused"])
def test_any_number_of_launches_that_do_not_count_hide_no_crash(
    supervised: Supervised, withdrawn: bool
) -> None:
    """There are more of them than the supervisor reads at once; anyone who can launch can make them."""
    run = supervised.start(ago_s=60)
    for _ in range(2 * LIMIT + 3):
        if withdrawn:
            supervised.instance.report_run_canceled(supervised.queue())
        else:
            _refuse(supervised)
    supervised.crash(run)

    (request,) = supervised.tick().run_requests or []

    assert request.run_key == run.run_id


def test_crash_is_reported_once(supervised: Supervised) -> None:
    """The asset check `running` fails at each crash; the run itself reports that it passes."""
    run = supervised.start()
    supervised.crash(run)
    crashed = reported_checks(supervised.tick())
    again = reported_checks(supervised.tick())
    supervised.beat(supervised.start(**{RESTART: "1"}))
    recovered, recovered_at = reported_checks(supervised.tick()), supervised.cursor

    assert [passed for passed, _ in crashed] == [False]
    assert f"run {run.run_id} crashed: restart 1 of {LIMIT}" in crashed[0][1]
    assert (again, recovered) == ([], [])
    assert recovered_at == "runs"


def test_check_passes_when_nobody_wants_a_run_any_more(supervised: Supervised) -> None:
    """The run that replaced the crashed one was terminated before it could report that it runs."""
    supervised.crash(supervised.start(ago_s=60))
    crashed = reported_checks(supervised.tick())
    supervised.instance.report_run_canceled(supervised.start(**{RESTART: "1"}))
    ended = reported_checks(supervised.tick())
    again = reported_checks(supervised.tick())

    assert [passed for passed, _ in crashed] == [False]
    assert ended == [(True, "it ended as planned")]
    assert again == []


@pytest.mark.parametrize("in_time", [True, False], ids=["safe", "forced"])
def test_run_that_a_person_terminated_stays_so(supervised: Supervised, in_time: bool) -> None:
    """This includes a run marked as canceled because its worker was lost."""
    run = supervised.start()
    if in_time:
        supervised.instance.report_run_canceling(run)
        supervised.record(run, DagsterEventType.RUN_CANCELED, JobCanceledData(error=None))
    else:
        supervised.instance.report_run_canceled(run)

    assert not supervised.tick().run_requests


@pytest.mark.parametrize("terminated", [True, False], ids=["terminated", "killed"])
def test_run_whose_worker_dies_while_it_terminates_stays_so(supervised: Supervised, terminated: bool) -> None:
    """It ends as failed, but a person has asked for the end of the stream."""
    run = supervised.start()
    if terminated:
        supervised.instance.report_run_canceling(run)
    supervised.instance.report_run_failed(run)

    assert bool(supervised.tick().run_requests) is not terminated


def test_launch_that_was_withdrawn_during_a_run_does_not_end_its_supervision(supervised: Supervised) -> None:
    """A person launched a second run, which waited in the queue, and terminated it."""
    run = supervised.start(ago_s=60)
    supervised.instance.report_run_canceled(supervised.queue())
    supervised.crash(run)

    (request,) = supervised.tick().run_requests or []

    assert request.run_key == run.run_id


def test_restart_that_a_person_cancels_in_the_queue_is_not_repeated(supervised: Supervised) -> None:
    """Nobody wants the stream."""
    supervised.crash(supervised.start(ago_s=60))
    supervised.instance.report_run_canceled(supervised.queue(**{RESTART: "1"}))

    assert not supervised.tick().run_requests


def test_run_that_reached_its_end_stays_so(supervised: Supervised) -> None:
    """A run with a time limit ends without a restart."""
    supervised.record(supervised.start(), DagsterEventType.RUN_SUCCESS)

    assert not supervised.tick().run_requests


def test_run_that_a_signal_ended_is_launched_again(supervised: Supervised) -> None:
    """A machine that shuts down ends its processes; nobody asked for the end of the stream."""
    run = supervised.start()
    supervised.record(run, DagsterEventType.RUN_CANCELED, JobCanceledData(error=None))

    assert supervised.tick().run_requests


def test_run_that_a_person_executes_again_begins_a_new_row(supervised: Supervised) -> None:
    """Dagster copies the tags of the run before; after it, all restarts are left."""
    run: DagsterRun | None = supervised.start()
    while run is not None:
        last = run
        supervised.crash(run)
        run = supervised.restart()
    gave_up = supervised.instance.get_run_by_id(last.run_id)
    assert gave_up
    assert gave_up.tags[RESTART] == str(LIMIT)
    again = supervised.instance.create_run_for_job(
        LIVE, run_config=CONFIG, tags=gave_up.tags, status=DagsterRunStatus.STARTING,
        parent_run_id=last.run_id, root_run_id=last.run_id,
    )  # fmt: skip
    supervised.record(again, DagsterEventType.RUN_START)
    supervised.crash(again)

    (request,) = supervised.tick().run_requests or []

    assert first_run(again) == again.run_id
    assert request.run_key == again.run_id
    assert request.tags[RESTART] == "1"


def test_run_that_dagster_launches_again_is_left_to_it(supervised: Supervised) -> None:
    """Dagster's retry is queued: a second launch would wait for it in the pool."""
    run = supervised.start()
    supervised.crash(run)
    supervised.instance.add_run_tags(run.run_id, {"dagster/will_retry": "true"})

    assert not supervised.tick().run_requests


def test_supervisor_gives_up_and_says_so(supervised: Supervised) -> None:
    """After the limit there are a tag on the last run, a failed check, and the reason at each tick."""
    run: DagsterRun | None = supervised.start()
    runs = []
    while run is not None:
        runs.append(run)
        supervised.crash(run)
        run = supervised.restart()
    last = supervised.instance.get_run_by_id(runs[-1].run_id)
    result = supervised.tick()

    assert len(runs) == 1 + LIMIT
    assert last
    assert last.tags[GAVE_UP] == f"after {LIMIT + 1} crashes in a row"
    assert not result.run_requests
    assert "not launched again" in (result.skip_reason.skip_message if result.skip_reason else "")
    assert supervised.cursor == f"gave up {last.run_id}"


@pytest.mark.parametrize("direct", [True, False], ids=["error", "cause"])
def test_supervisor_never_gives_up_on_an_outage(direct: bool, supervised: Supervised) -> None:
    """A run that ends since a broker is away is launched again, more often than the limit allows others."""
    run: DagsterRun | None = supervised.start()
    runs = []
    for _ in range(3 * LIMIT):
        assert run is not None
        runs.append(run)
        supervised.fail(run, "UnreachableBrokerError", direct=direct)
        supervised.crash(run)
        run = supervised.restart()
    assert run is not None
    supervised.fail(run, "RunError", direct=direct)
    supervised.crash(run)

    assert {first_run(each) for each in runs} == {runs[0].run_id}
    assert run.tags[RESTART] == str(3 * LIMIT)  # so that the waits grow
    assert supervised.restart() is not None  # the first crash that is not an outage


def test_check_can_be_asked_by_a_person(supervised: Supervised) -> None:
    """It returns the supervisor's decision."""
    job = define_asset_job("ask", AssetSelection.checks(AssetCheckKey(live_key("auctions"), "running")))
    asking = Definitions.merge(DEFS, Definitions(jobs=[job])).resolve_job_def("ask")
    run = supervised.start(ago_s=200)
    supervised.beat(run, ago_s=121)
    result = asking.execute_in_process(instance=supervised.instance, raise_on_error=False)
    (check,) = result.get_asset_check_evaluations()

    assert not check.passed
    assert f"run {run.run_id} has sent no heartbeat for 2 min" in (check.description or "")


def test_old_runs_are_removed_with_their_events(supervised: Supervised) -> None:
    """The newest runs stay, those that run, and those of other jobs."""
    instance = supervised.instance
    other = instance.create_run_for_job(DEFS.resolve_job_def("auctions_history"))
    running = supervised.start()
    supervised.beat(running)
    ended = [supervised.start() for _ in range(15)]
    for run in (*ended, other):
        supervised.record(run, DagsterEventType.RUN_SUCCESS)
    jobs = ("auctions_live", "auctions_slice")

    assert remove_old_runs(instance, jobs, timedelta(hours=1), newest=3) == []
    first = remove_old_runs(instance, jobs, timedelta(0), newest=3)
    second = remove_old_runs(instance, jobs, timedelta(0), newest=3)

    assert first + second == [run.run_id for run in ended[:-3]]
    left = {record.dagster_run.run_id for record in instance.get_run_records()}
    assert left == {other.run_id, running.run_id, *(run.run_id for run in ended[-3:])}
    assert not instance.all_logs(ended[0].run_id)
    assert instance.all_logs(running.run_id)


def test_old_run_leaves_no_file(tmp_path: Path) -> None:
    """Its events are in a database of its own, and what it printed in a folder."""
    with DagsterInstance.local_temp(str(tmp_path)) as instance:
        supervised = Supervised(instance)
        runs = [supervised.start() for _ in range(2)]
        for run in runs:
            supervised.record(run, DagsterEventType.RUN_SUCCESS)
            key = instance.compute_log_manager.build_log_key_for_run(run.run_id, "step")
            with instance.compute_log_manager.open_log_stream(key, ComputeIOType.STDERR) as stream:
                assert stream is not None
                stream.write("printed")
        old, kept = ({path for path in tmp_path.rglob("*") if run.run_id in str(path)} for run in runs)
        remove_old_runs(instance, ["auctions_live"], timedelta(0), newest=1)

        assert old
        assert not [path for path in old if path.exists()]
        assert all(path.exists() for path in kept)
