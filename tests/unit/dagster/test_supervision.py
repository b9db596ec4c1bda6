"""Ticks of the supervisor on recorded runs, which are not executed: what it reads, and what it notes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dagster import DagsterInstance, DagsterRunStatus
from dagster._core.events import DagsterEventType

from flowcore.dagster.restart_sensor import OVER, RESTART
from tests.dagster.supervised import LIMIT, Supervised


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
