"""A query that is stopped to be started again, when an outage begins or its lease expires in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic
from flowcore.errors import ExpiredLeaseError, UnreachableBrokerError
from flowcore.kafka.transactions import EXPIRED
from flowcore.metrics.progress import QueryProgress
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.spark.checkpoint import plan_file
from flowcore.spark.run import supervised
from flowcore.spark.run.patience import Patience
from flowcore.spark.run.supervised import SupervisedQuery
from flowcore.spark.topics.side_channels import SideChannels


class Running:
    """A start of a query, during which the clock is set back, unless it fails."""

    def __init__(self, prepared: Any, error: Exception | None) -> None:
        self.prepared, self.error = prepared, error
        self.ended, self.ending = error is not None, False
        self.outage = self.running = self.watermarks = self.written = None

    def poll_clock(self) -> bool:
        return True

    def stop(self) -> None:
        self.ended = True


def ignore(*_: Any, **__: Any) -> None:
    """Do nothing."""


def prepared(*_: Any, **__: Any) -> Any:
    side_channels = SideChannels()
    return SimpleNamespace(
        query=SimpleNamespace(exactly_once=True), joined=SimpleNamespace(versions={}), types={}, schemas={},
        side_channels=side_channels, catching_up=False, reads_histories=False, repeats=False,
    )  # fmt: skip


@dataclass
class Site:
    """What a query is started with: the clock of its patience, what starts it, and what it writes."""

    folder: Path
    start: Callable[..., Any] = Running
    check: Callable[[], object] = ignore
    now_s: float = 0.0
    plan_files: int = 0

    def query(self, monkeypatch: pytest.MonkeyPatch) -> SupervisedQuery:
        flow = Flow("f")
        flow.read("in", KafkaTopic("in", "id BIGINT")).write("out", KafkaTopic("out"))
        (query,) = plan_flow(flow, "micro-batch").live_queries

        def write_plan_file(*_: Any, **__: Any) -> None:
            self.plan_files += 1

        monkeypatch.setattr(supervised, "prepare_query", prepared)
        monkeypatch.setattr(supervised, "RunningQuery", self.start)
        monkeypatch.setattr(supervised, "Patience", partial(Patience, clock=lambda: self.now_s))
        monkeypatch.setattr(supervised, "decide_joins", lambda *_: query)
        monkeypatch.setattr(plan_file, "write_plan_file", write_plan_file)
        known = QueryProgress(name=query.name, mode="micro-batch", active=True, backlog=False, lag=0)
        stub: Any = SimpleNamespace(
            add=ignore, note=ignore, started=ignore, query=lambda _: known, watch=ignore,
            check=self.check, pin=ignore, newer_versions=lambda *_: {},
            pin_newest=lambda *_: SimpleNamespace(versions={}, bytes={}),
        )  # fmt: skip
        context: Any = SimpleNamespace(
            flow="f", log="spark.log", settings=Settings.of({"state.dir": self.folder}, environment={})
        )
        return SupervisedQuery(query, context, stub, stub, SideChannels(), fence=stub, require_back=ignore)


@pytest.mark.parametrize("error", [None, Exception(f"a commit failed: {EXPIRED}")], ids=["stopped", "slow"])
def test_query_waits_for_a_broker_that_is_gone_when_it_starts_again(
    error: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has neither ended nor failed: it is tried again, whether it was stopped or too slow."""
    starts = iter([True, *[False] * 5, True])

    def start(prepared: Any, *_: Any, **__: Any) -> Running:
        if not next(starts):
            msg = "the broker is gone"
            raise UnreachableBrokerError(msg)
        return Running(prepared, error)

    site = Site(tmp_path, start)
    found = site.query(monkeypatch)
    found.start()

    waits = []
    for _ in range(6):
        found.poll()
        waits.append(found.active and found.error is None)
        site.now_s += 60

    assert waits == [True] * 6
    assert next(starts, None) is None


@pytest.mark.parametrize("checks", [0, 1])
def test_query_does_not_start_when_its_lease_has_expired(
    checks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have the checkpoint, also if the lease expires during the start."""
    left, started = iter(range(checks)), list[Any]()

    def check() -> None:
        if next(left, None) is None:
            msg = "expired"
            raise ExpiredLeaseError(msg)

    site = Site(tmp_path, lambda *each, **_: started.append(each), check)

    with pytest.raises(ExpiredLeaseError):
        site.query(monkeypatch).start()

    assert (started, site.plan_files) == ([], checks)


def test_whether_a_query_is_active_does_not_ask_its_meter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The meter asks that itself while it holds its lock, also of a start that was slow."""

    def ask(name: str) -> QueryProgress:
        raise AssertionError(name)

    site = Site(tmp_path, lambda prepared, *_, **__: Running(prepared, Exception(EXPIRED)))
    found = site.query(monkeypatch)
    found.start()
    monkeypatch.setattr(found._meter, "query", ask)

    assert found.active
    assert found.error is None


def test_batch_that_was_not_repeated_before_the_query_ended_keeps_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer result is joined after it: with another one, its records would have the same ids."""
    site, starts = Site(tmp_path), list[Any]()

    def start(prepared: Any, *_: Any, **__: Any) -> Running:
        starts.append(prepared)
        return Running(prepared, None)

    site.start = start
    found = site.query(monkeypatch)
    found.start()
    assert found.running is None
    assert found._running is not None
    (found._checkpoint / "offsets").mkdir(parents=True)
    (found._checkpoint / "offsets/7").write_text("v1")
    found._next = prepared()  # with a result that was committed meanwhile
    found._running.ended = found._running.ending = True  # type: ignore[misc]

    found.poll()
    (found._checkpoint / "commits").mkdir()
    (found._checkpoint / "commits/7").write_text("v1")
    found._next = newer = prepared()
    found._running.ended = found._running.ending = True  # type: ignore[misc]
    found.poll()

    assert [each is starts[0] for each in starts] == [True, True, False]
    assert starts[2] is newer
