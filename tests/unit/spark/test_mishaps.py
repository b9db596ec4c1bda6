"""A query whose latency markers have expired is started again, and one that has lost records is not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowcore.settings import Settings
from flowcore.spark.run import mishaps
from flowcore.spark.run.mishaps import Mishaps
from flowcore.spark.run.patience import Patience

LOST = (
    "Some data may have been lost because they are not available in Kafka any more; either the data was aged"
)


class Failed:
    """A start of a query that has failed."""

    def __init__(self, text: str) -> None:
        self.error = RuntimeError(text)


def _failed(text: str = LOST) -> Any:
    return Failed(text)


@pytest.fixture
def skips(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call that skips markers finds lost ones."""
    found: list[bool] = []
    monkeypatch.setattr(mishaps, "skip_lost_markers", lambda *_, **__: found.pop(0))
    return found


@pytest.fixture
def made(tmp_path: Path) -> Mishaps:
    settings = Settings.of({"state.dir": tmp_path}, environment={})
    context: Any = SimpleNamespace(flow="f", settings=settings)
    query: Any = SimpleNamespace(name="q")
    return Mishaps(query, context, Patience(print), has_markers=True)


def test_expired_markers_are_skipped_once_for_each_failure(made: Mishaps, skips: list[bool]) -> None:
    """If the broker is away at the next start, that start is tried again. Three are made for one batch."""
    for _ in range(3):
        failed = _failed()
        skips.append(True)
        for _ in range(2):
            assert made.allows(failed)
            assert "markers have expired" in made.settle(failed)

    assert not made.allows(_failed())


def test_lost_records_are_the_error_of_the_query(made: Mishaps, skips: list[bool]) -> None:
    """No marker was lost, so another start would fail as well."""
    skips.append(False)
    with pytest.raises(RuntimeError, match="may have been lost"):
        made.settle(_failed())

    assert not made.allows(_failed("another error"))
