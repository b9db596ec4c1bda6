"""A worker keeps one object of each name, and closes it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from pyspark import worker

from flowcore.spark.operators import worker_objects
from flowcore.spark.operators.worker_objects import WorkerObject, close_objects

closed: list[str] = []


class Thing:
    """Notes that it is closed."""

    def __init__(self, name: str, fails: bool = False) -> None:
        self.name = name
        self.fails = fails

    def close(self) -> None:
        closed.append(self.name)
        if self.fails:
            raise OSError


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is a worker for the time of a test."""
    monkeypatch.setattr(worker, "main", worker.main)
    closed.clear()
    yield
    close_objects()
    worker_objects._close_at_end.cache_clear()


def _use(thing: WorkerObject[Thing]) -> Thing:
    with thing.use() as found:
        return found


def test_object_is_unpickled_once() -> None:
    """Another task brings the same bytes."""
    first = _use(WorkerObject("a", Thing("one")))

    assert _use(WorkerObject("a", Thing("one"))) is first
    assert closed == []


def test_object_of_other_bytes_replaces_the_one_of_its_name_only() -> None:
    """The old one is closed first."""
    other = _use(WorkerObject("b", Thing("other")))
    _use(WorkerObject("a", Thing("one")))

    assert _use(WorkerObject("a", Thing("two"))).name == "two"
    assert closed == ["one"]
    assert _use(WorkerObject("b", Thing("other"))) is other


def test_object_is_closed_and_forgotten_after_a_failure() -> None:
    """Its task failed, so its state is not known."""
    with pytest.raises(ZeroDivisionError), WorkerObject("a", Thing("one")).use():
        1 / len(closed)

    assert closed == ["one"]
    close_objects()
    assert closed == ["one"]


def test_object_that_cannot_be_closed_is_logged_and_the_others_are_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The worker ends anyway."""
    for name in "ab":
        _use(WorkerObject(name, Thing(name, fails=name == "a")))

    with caplog.at_level(logging.ERROR):
        close_objects()

    assert closed == ["a", "b"]
    assert "closing 'a' failed" in caplog.text


def test_objects_are_closed_when_spark_closes_the_connection_of_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark's daemon calls ``main`` for each task, and it raises at the end of the connection."""

    def main(_infile: object, _outfile: object) -> None:
        raise EOFError

    monkeypatch.setattr(worker, "main", main)
    monkeypatch.setattr(worker_objects.signal, "signal", lambda *_: None)
    _use(WorkerObject("a", Thing("one")))

    with pytest.raises(EOFError):
        worker.main(None, None)  # type: ignore[arg-type]

    assert closed == ["one"]
