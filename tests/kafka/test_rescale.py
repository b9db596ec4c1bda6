"""State is distributed over more or fewer partitions, and results stay the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from flowcore.errors import RunError, StateError
from flowcore.planner import plan_flow
from flowcore.spark.checkpoint.lease import Leases
from flowcore.spark.checkpoint.offset_log import state_partitions
from flowcore.spark.checkpoint.plan_file import checkpoint_folder
from flowcore.spark.run import regroup
from flowcore.spark.run.rescale import rescale_checkpoint
from flowcore.spark.run.session import live_session
from tests.kafka.conftest import Live
from tests.kafka.test_live_exchanges import LAST, bids, expected, hot_items, hottest, random_bids


@pytest.mark.parametrize(
    "targets", [[5], pytest.param([5, 1], marks=pytest.mark.thorough)], ids=["more", "more, then fewer"]
)
def test_results_are_the_same_after_a_change_of_partitions(live: Live, targets: list[int]) -> None:
    """Windows over windows, and a native aggregate, continue in five partitions and then in one."""
    source, counts, most, totals = bids(live), live.topic("counts"), live.topic("most"), live.topic("totals")
    flow = hot_items(source, counts, most)
    flow.read("all_bids", source).aggregate(by="auction", n="count(*)").write("totals", totals)
    records = random_bids(600)
    rows = [{"auction": auction, "at": at} for auction, at in records]
    session = live_session(live.spark, live.settings)
    changes: set[tuple[str, int, int]] = set()

    parts = [(rows[150 * number : 150 * (number + 1)], each) for number, each in enumerate(targets)]
    for part, partitions in [*parts, ([*rows[150 * len(targets) :], *LAST], targets[-1])]:
        live.send(source, *part, partitions=2)
        live.run(flow, "slice")
        for query in plan_flow(flow, settings=live.settings).live_queries:
            checkpoint = checkpoint_folder(query, flow.name, live.settings)
            before = state_partitions(checkpoint)
            if rescale_checkpoint(session, checkpoint, partitions):
                assert len({*(checkpoint / "state" / "0").glob("[0-9]*")}) >= partitions
                changes.add((query.name, before, state_partitions(checkpoint)))

    assert changes == {
        (name, *each) for name in ("bids-batches", "totals") for each in pairwise([2, *targets])
    }
    assert hottest(live.values(most)) == expected(records)
    found = {row["auction"]: row["n"] for row in live.values(totals)}
    assert found == {each: sum(auction == each for auction, _ in records) for each in range(7)} | {99: 2}


@pytest.mark.thorough
def test_results_are_the_same_after_an_interrupted_change_of_partitions(live: Live) -> None:
    """Windows over windows continue in two partitions, as if their state had never been in five."""
    source, counts, most = bids(live), live.topic("counts"), live.topic("most")
    flow = hot_items(source, counts, most)
    records = random_bids(400)
    rows = [{"auction": auction, "at": at} for auction, at in records]
    (query,) = plan_flow(flow, settings=live.settings).live_queries
    checkpoint = checkpoint_folder(query, flow.name, live.settings)
    live.send(source, *rows[:200], partitions=2)
    live.run(flow, "slice")

    rescale_checkpoint(live_session(live.spark, live.settings), checkpoint, 5)
    commit = max((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    commit.unlink()  # the command was killed just before
    live.send(source, *rows[200:], *LAST, partitions=2)
    live.run(flow, "slice")

    assert state_partitions(checkpoint) == 2
    assert hottest(live.values(most)) == expected(records)


def test_state_of_a_running_query_is_not_touched(live: Live, tmp_path: Path) -> None:
    """The holder of the lease is named."""
    with Leases() as leases:
        leases.take(tmp_path / "query")
        with pytest.raises(RunError, match="'query' already runs on the checkpoint"):
            rescale_checkpoint(live.spark, tmp_path / "query", 3)


@pytest.mark.thorough
def test_results_are_the_same_after_a_change_of_key_groups(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows over windows continue in fewer key groups; an interrupted change leaves the state as it was."""
    source, counts, most = bids(live), live.topic("counts"), live.topic("most")
    flow = hot_items(source, counts, most)
    records = random_bids(600)
    rows = [{"auction": auction, "at": at} for auction, at in records]
    live.settings = replace(live.settings, key_groups=5, shuffle_partitions=1)
    session = live_session(live.spark, live.settings)
    (query,) = plan_flow(flow, settings=live.settings).live_queries
    checkpoint = checkpoint_folder(query, flow.name, live.settings)

    def interrupt(path: Path, _: str) -> None:
        raise InterruptedError(path)

    live.send(source, *rows[:150], partitions=2)
    live.run(flow, "slice")
    with monkeypatch.context() as patch:
        patch.setattr(regroup, "_commit", interrupt)
        with pytest.raises(InterruptedError, match="commits/"):
            regroup.regroup_checkpoint(session, checkpoint, 3)
    live.send(source, *rows[150:400], partitions=2)
    live.run(flow, "slice")
    digest = regroup.regroup_checkpoint(session, checkpoint, 3)
    with pytest.raises(StateError, match="in 3 key groups of exchange 1, and now"):
        live.run(flow, "slice")
    live.settings = replace(live.settings, key_groups=3)
    live.send(source, *rows[400:], *LAST, partitions=2)
    live.run(flow, "slice")

    assert digest is not None
    assert digest.entries > 0
    assert hottest(live.values(most)) == expected(records)
    assert regroup.regroup_checkpoint(session, checkpoint, 3) is None
