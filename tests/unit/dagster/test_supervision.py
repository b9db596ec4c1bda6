"""Ticks of the supervisor on recorded runs, which are not executed: what it reads, and what it notes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dagster import AssetKey, DagsterInstance, DagsterRunStatus
from dagster._core.events import DagsterEventType

from flowcore.dagster.heartbeats import HEARTBEAT, heartbeat_thread
from flowcore.dagster.restart_sensor import OVER, RESTART
from tests.dagster.supervised import LIMIT, Supervised
from tests.waiting import wait_until


@pytest.fixture
def supervised() -> Iterator[Supervised]:
    """An instance without runs."""
    with DagsterInstance.ephemeral() as instance:
        yield Supervised(instance)


def test_outage_is_counted_beyond_the_limit_of_restarts(supervised: Supervised) -> None:
    """So that waits grow, however few restarts are allowed otherwise."""
    run = supervised.start()
    for _ in range(LIMIT + 2):
        supervised.fail(run, "UnreachableBrokerError", direct=True)
        supervised.crash(run)
        restarted = supervised.restart()
        assert restarted is not None
        run = restarted

    assert run.tags[RESTART] == str(LIMIT + 2)


@pytest.mark.parametrize("how", ["terminated", "ended"])
def test_crash_is_not_restarted_when_the_run_that_ended_after_it_is_deleted(
    supervised: Supervised, how: str
) -> None:
    """A person wanted no stream any more, and cleaned up."""
    crashed = [supervised.start(ago_s=60), supervised.start(ago_s=50, **{RESTART: "1"})]
    for run in crashed:
        supervised.crash(run)
    last = supervised.start(**{RESTART: "2"})
    if how == "terminated":
        supervised.instance.report_run_canceled(last)
    else:
        supervised.record(last, DagsterEventType.RUN_SUCCESS)
    assert not supervised.tick().run_requests
    supervised.instance.delete_run(last.run_id)
    after_one = supervised.tick().run_requests
    supervised.instance.delete_run(crashed[1].run_id)
    after_two = supervised.tick().run_requests

    assert not after_one
    assert not after_two
    assert supervised.status(crashed[0]) is DagsterRunStatus.FAILURE


def test_run_with_the_tags_of_a_settled_one_is_restarted(supervised: Supervised) -> None:
    """A person has launched it by "Re-execute", which copies them."""
    settled = supervised.start(ago_s=60)
    supervised.crash(settled)
    supervised.instance.report_run_canceled(supervised.start(ago_s=30, **{RESTART: "1"}))
    supervised.tick()
    tags = supervised.tags(settled)
    again = supervised.start(**tags)
    supervised.crash(again)
    (request,) = supervised.tick().run_requests or []

    assert tags[OVER] == settled.run_id
    assert request.run_key == again.run_id
    assert OVER not in request.tags


@pytest.mark.parametrize("job", ["auctions_live", "auctions_history"])
@pytest.mark.parametrize("beats", [True, False], ids=["beats", "silent"])
def test_run_from_before_the_clock_was_set_back_is_judged_by_its_heartbeats(
    supervised: Supervised, job: str, beats: bool
) -> None:
    """It began an hour from now; if its process is gone, its heartbeats stopped then, too."""
    run = supervised.start_other(job, ago_s=-3_600)
    ago_s = 0.0 if beats else -3_500.0
    if job == "auctions_history":
        supervised.beat(run, ago_s=-3_550)  # of a table that was made before
        supervised.renew(run, ago_s)
    else:
        supervised.beat(run, ago_s)
    supervised.tick()
    supervised.tick()

    assert supervised.status(run) is (DagsterRunStatus.STARTED if beats else DagsterRunStatus.FAILURE)


def test_run_renews_the_heartbeat_that_the_supervisor_reads(supervised: Supervised) -> None:
    """With its own id: a launch that copies its tags has not sent it."""
    run, copied = (supervised.start_other("auctions_history", 301) for _ in range(2))
    with heartbeat_thread(supervised.instance, run.run_id):
        wait_until(lambda: HEARTBEAT in supervised.tags(run))
    supervised.instance.add_run_tags(copied.run_id, {HEARTBEAT: supervised.tags(run)[HEARTBEAT]})
    supervised.tick()
    supervised.tick()

    assert supervised.status(run) is DagsterRunStatus.STARTED
    assert supervised.status(copied) is DagsterRunStatus.FAILURE


LIVE_KEY, CATALOG = AssetKey(["auctions", "live"]), AssetKey(["auctions", "catalog"])


@pytest.mark.parametrize(
    "keys", [(LIVE_KEY,), (CATALOG,), (LIVE_KEY, CATALOG)], ids=["live", "bounded", "both"]
)
def test_silent_run_of_assets_counts_as_failed(supervised: Supervised, keys: tuple[AssetKey, ...]) -> None:
    """Somebody materialized them without a job; the run holds the pool of the flow's jobs."""
    run = supervised.start_assets(*keys, ago_s=301)
    supervised.tick()
    after_one = supervised.status(run)
    supervised.tick()

    assert after_one is DagsterRunStatus.STARTED
    assert supervised.status(run) is DagsterRunStatus.FAILURE
    assert not supervised.tick().run_requests


@pytest.mark.parametrize("key", [LIVE_KEY, CATALOG], ids=["live", "bounded"])
def test_run_of_assets_that_beats_is_not_lost(supervised: Supervised, key: AssetKey) -> None:
    """Each kind of heartbeat counts."""
    run = supervised.start_assets(key, ago_s=700)
    if key == LIVE_KEY:
        supervised.beat(run)
    else:
        supervised.renew(run)
    supervised.tick()
    supervised.tick()

    assert supervised.status(run) is DagsterRunStatus.STARTED


@pytest.mark.parametrize(
    "keys",
    [(AssetKey("other"),), (LIVE_KEY, AssetKey("other")), (AssetKey(["activity", "live"]),), ()],
    ids=["others", "mixed", "another-flow", "all"],
)
def test_run_of_assets_of_others_is_left_alone(supervised: Supervised, keys: tuple[AssetKey, ...]) -> None:
    """Their code sends no heartbeats, and may run for hours."""
    run = supervised.start_assets(*keys, ago_s=36_000)
    supervised.tick()
    supervised.tick()

    assert supervised.status(run) is DagsterRunStatus.STARTED
