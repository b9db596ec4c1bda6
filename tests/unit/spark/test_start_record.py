"""Records that a killed real-time batch may have processed are processed again with the results of then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic
from flowcore.api.decisions import Decision
from flowcore.kafka.topics import TopicIdentity
from flowcore.metrics.progress import QueryProgress
from flowcore.planner import plan_flow
from flowcore.planner.model import LiveQuery
from flowcore.settings import Settings
from flowcore.spark.checkpoint.plan_file import repeated_versions, write_plan_file
from flowcore.spark.run import supervised
from flowcore.spark.run.supervised import SupervisedQuery
from flowcore.spark.topics.side_channels import SideChannels

TOPICS = {"in": TopicIdentity("cluster", "id", 1)}


class Running:
    """A start of a query, which runs until a test ends it."""

    def __init__(self, prepared: Any, *_: Any, **__: Any) -> None:
        self.prepared = prepared
        self.ended = self.ending = False
        self.error = self.outage = self.running = self.watermarks = self.written = None

    def poll_clock(self) -> bool:
        return False

    def end_after_batch(self) -> None:
        self.ended = self.ending = True

    def stop(self) -> None:
        self.ended = True


def prepare(query: Any, _: Any, joined: Any, side_channels: Any, most: Any, *, repeats: bool) -> Any:
    if most is not None:
        query = replace(query, mode=Decision("micro-batch", ()))
    return SimpleNamespace(
        query=query, joined=joined, types={}, schemas={}, side_channels=side_channels,
        catching_up=most is not None, reads_histories=False, repeats=repeats,
    )  # fmt: skip


class Run:
    """A run of one query, which joins the result ``names`` in the version that was committed last."""

    def __init__(self, folder: Path, committed: str) -> None:
        self.committed = committed
        settings = Settings.of({"state.dir": folder}, environment={})
        query = realtime_query()
        progress = QueryProgress(name=query.name, mode="realtime", active=True, backlog=False, lag=0)

        def ignore(*_: Any, **__: Any) -> None:
            """Do nothing."""

        stub: Any = SimpleNamespace(
            add=ignore, note=ignore, started=ignore, watch=ignore, check=ignore, pin=ignore,
            query=lambda _: progress, newer_versions=self._find_newer, pin_newest=self._pin_newest,
        )  # fmt: skip
        context: Any = SimpleNamespace(flow="f", log="spark.log", settings=settings)
        side_channels = SideChannels(topics=TOPICS)
        self.query = SupervisedQuery(
            query, context, stub, stub, side_channels, fence=stub, require_back=ignore
        )
        self.query.start()

    def _find_newer(self, _: LiveQuery, joined: Mapping[str, str]) -> Mapping[str, str]:
        return {} if joined == {"names": self.committed} else {"names": self.committed}

    def _pin_newest(self, _: LiveQuery, wanted: Mapping[str, str] | None = None) -> Any:
        return SimpleNamespace(versions=wanted or {"names": self.committed}, bytes={})

    @property
    def running(self) -> Any:
        return self.query._running

    @property
    def joined(self) -> str:
        return str(self.running.prepared.joined.versions["names"])


def realtime_query() -> LiveQuery:
    flow = Flow("f")
    flow.read("in", KafkaTopic("in", "id BIGINT")).write("out", KafkaTopic("out"))
    (query,) = plan_flow(flow).live_queries
    assert query.mode.value == "realtime"
    return query


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint whose real-time query was killed while it joined version A."""
    monkeypatch.setattr(supervised, "prepare_query", prepare)
    monkeypatch.setattr(supervised, "RunningQuery", Running)
    monkeypatch.setattr(supervised, "decide_joins", lambda query, *_: query)
    monkeypatch.setattr(supervised, "_POLL_S", 0.0)
    folder = tmp_path / "f" / "checkpoints" / "in"
    write_plan_file(realtime_query(), "f", folder, {}, topics=TOPICS, bounded={"names": "A"})
    return folder


def test_catch_up_that_is_stopped_is_repeated_with_its_results(tmp_path: Path, checkpoint: Path) -> None:
    """It may not have planned a batch; then a later version would give its records other values."""
    for committed in ("B", "C"):
        run = Run(tmp_path, committed)
        assert (run.joined, run.running.prepared.catching_up) == ("A", True)
        assert repeated_versions(checkpoint) == {"names": "A"}


def test_result_that_is_committed_during_the_catch_up_waits_for_its_end(
    tmp_path: Path, checkpoint: Path
) -> None:
    """Also if it was not there when the catch-up began, and if something else ends a part of it."""
    run = Run(tmp_path, "B")
    run.query.poll()
    assert not run.running.ending

    run.running.end_after_batch()
    run.query.poll()
    assert run.joined == "A"
    assert repeated_versions(checkpoint) == {"names": "A"}


def test_newest_result_is_joined_when_all_records_were_read_again(tmp_path: Path, checkpoint: Path) -> None:
    """From then on a kill repeats what the new version was joined to."""
    run = Run(tmp_path, "B")
    run.running.ended = True
    run.query.poll()

    assert (run.joined, run.running.prepared.catching_up) == ("B", False)
    assert repeated_versions(checkpoint) == {"names": "B"}
