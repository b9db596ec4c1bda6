"""A run whose process is gone, or hangs, sends no heartbeats, and counts as failed at the second tick."""

import time
from collections.abc import Iterator

import pytest
from dagster import (
    AssetMaterialization,
    DagsterInstance,
    DagsterRunStatus,
    DefaultSensorStatus,
    SensorResult,
    build_sensor_context,
)

from flowcore import Flow, Parquet
from flowcore.dagster import definitions, flow_assets
from flowcore.dagster.heartbeats import HEARTBEAT
from flowcore.dagster.names import live_key
from tests.dagster.supervised import DEFS, Supervised, reported_checks

pytestmark = pytest.mark.dagster


@pytest.fixture
def supervised() -> Iterator[Supervised]:
    """An instance without runs."""
    with DagsterInstance.ephemeral() as instance:
        yield Supervised(instance)


def test_silent_run_is_found_while_another_waits_for_it(supervised: Supervised) -> None:
    """The run hangs, and holds the pool; the run in the queue would wait for ever."""
    run = supervised.start(ago_s=700)
    supervised.beat(run, ago_s=600)
    supervised.queue()
    supervised.tick()
    supervised.tick()
    now = supervised.instance.get_run_by_id(run.run_id)

    assert now
    assert now.status is DagsterRunStatus.FAILURE
    assert not supervised.tick().run_requests


@pytest.mark.parametrize(
    ("began_ago_s", "beat_ago_s", "lost"),
    [(200.0, 119.0, False), (200.0, 121.0, True), (299.0, None, False), (301.0, None, True)],
    ids=["beats", "silent", "starts", "never-beat"],
)
def test_silent_run_counts_as_failed(
    supervised: Supervised, began_ago_s: float, beat_ago_s: float | None, lost: bool
) -> None:
    """Its worker, code server or machine is gone; it is launched again as after a crash."""
    run = supervised.start(began_ago_s)
    if beat_ago_s is not None:
        supervised.beat(run, beat_ago_s)
    supervised.tick()
    supervised.tick()
    now = supervised.instance.get_run_by_id(run.run_id)

    assert now
    assert (now.status is DagsterRunStatus.FAILURE) == lost
    assert bool(supervised.tick().run_requests) == lost


def test_heartbeat_of_another_run_does_not_count(supervised: Supervised) -> None:
    """A slice, or the run before, has sent one recently; this run never did."""
    run = supervised.start(ago_s=301)
    supervised.beat(supervised.instance.create_run_for_job(DEFS.resolve_job_def("auctions_slice")))
    supervised.tick()
    supervised.tick()
    now = supervised.instance.get_run_by_id(run.run_id)

    assert now
    assert now.status is DagsterRunStatus.FAILURE


@pytest.mark.parametrize(
    ("began_ago_s", "beat_ago_s", "lost"),
    [(200.0, 110.0, False), (200.0, 125.0, True), (290.0, None, False), (301.0, None, True)],
    ids=["beats", "silent", "starts", "never-beat"],
)
@pytest.mark.parametrize("job", ["auctions_slice", "auctions_history"])
def test_silent_run_of_another_job_counts_as_failed(
    supervised: Supervised, job: str, began_ago_s: float, beat_ago_s: float | None, lost: bool
) -> None:
    """It holds a pool that others wait for. The second tick decides, and launches no other run."""
    run = supervised.start_other(job, began_ago_s)
    if beat_ago_s is not None and job == "auctions_slice":
        supervised.beat(run, beat_ago_s)
    elif beat_ago_s is not None:
        supervised.renew(run, beat_ago_s)
    first, after_first = supervised.tick(), supervised.status(run)
    supervised.tick()

    assert after_first is DagsterRunStatus.STARTED
    assert (run.run_id in (first.skip_reason.skip_message if first.skip_reason else "")) == lost
    assert (supervised.status(run) is DagsterRunStatus.FAILURE) == lost
    assert not supervised.tick().run_requests


@pytest.mark.parametrize(
    "tag",
    ["", "soon", "9" * 5_000, "{before:.0f}", "{now:.0f} {other}"],
    ids=["empty", "text", "long", "of an earlier version, copied", "copied"],
)
def test_heartbeat_that_is_not_of_the_run_does_not_count(supervised: Supervised, tag: str) -> None:
    """A launch may set any tag, and one that is launched again has the tag of the run before it."""
    other = supervised.start()
    tag = tag.format(now=time.time(), before=time.time() - 1_000, other=other.run_id)
    run = supervised.start_other("auctions_history", 301, **{HEARTBEAT: tag})
    supervised.tick()
    supervised.tick()

    assert supervised.status(run) is DagsterRunStatus.FAILURE


def test_heartbeat_of_a_run_of_an_earlier_version_counts(supervised: Supervised) -> None:
    """It has no id of the run; on Kubernetes a run goes on with its code after an update."""
    run = supervised.start_other("auctions_history", 301, **{HEARTBEAT: f"{time.time():.0f}"})
    supervised.tick()
    supervised.tick()

    assert supervised.status(run) is DagsterRunStatus.STARTED


def test_other_run_that_beats_between_two_ticks_is_not_lost(supervised: Supervised) -> None:
    """Dagster's database was away; the live run is supervised meanwhile."""
    run = supervised.start_other("auctions_slice", 700)
    supervised.beat(supervised.start())
    supervised.tick()
    supervised.beat(run)
    supervised.tick()
    supervised.beat(run, ago_s=200)
    supervised.tick()

    assert supervised.status(run) is DagsterRunStatus.STARTED
    assert (supervised.cursor or "").startswith("runs\n")


def test_report_of_nobody_does_not_hide_the_heartbeat(supervised: Supervised) -> None:
    """A person, or a run that Dagster did not start, has reported the asset since; the run is not lost."""
    run = supervised.start(ago_s=700)
    supervised.beat(run)
    supervised.instance.report_runless_asset_event(AssetMaterialization(live_key("auctions")))
    supervised.tick()
    supervised.tick()
    now = supervised.instance.get_run_by_id(run.run_id)

    assert now
    assert now.status is DagsterRunStatus.STARTED
    assert supervised.cursor == "runs"


def test_run_that_beats_again_before_the_next_tick_is_not_lost(supervised: Supervised) -> None:
    """Dagster's database was away: neither the run nor the supervisor could use it."""
    run = supervised.start(ago_s=700)
    supervised.beat(run, ago_s=600)
    away = reported_checks(supervised.tick())
    supervised.beat(run)
    supervised.tick()
    now = supervised.instance.get_run_by_id(run.run_id)

    assert [passed for passed, _ in away] == [False]
    assert now
    assert now.status is DagsterRunStatus.STARTED
    assert supervised.cursor == "runs"


def test_flow_of_bounded_stages_has_a_supervisor() -> None:
    """It finds runs whose process is gone, and launches none."""
    flow = Flow("first")
    flow.read("in", Parquet("raw", schema="id BIGINT")).write("out", Parquet("clean"))
    defs = definitions(flow_assets(flow))
    sensor = defs.resolve_sensor_def("first_supervision")
    with DagsterInstance.ephemeral() as instance, build_sensor_context(instance) as context:
        found = sensor(context)

    assert sensor.default_status is DefaultSensorStatus.RUNNING
    assert not sensor.has_jobs
    assert (sensor.description or "").startswith(
        "A run of the flow's jobs or assets that sends no heartbeats any"
    )
    assert isinstance(found, SensorResult)
