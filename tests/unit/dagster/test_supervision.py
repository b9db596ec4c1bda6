"""Ticks of the supervisor on recorded runs, which are not executed: what it reads, and what it notes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dagster import DagsterInstance

from flowcore.dagster.restart_sensor import RESTART
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
