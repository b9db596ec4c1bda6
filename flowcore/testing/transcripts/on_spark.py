"""The kinds of transcripts that can be replayed on Spark, in one session; the clock is moved by hand."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowcore.settings import Settings
from flowcore.spark.session import live_session, session
from flowcore.testing.transcripts import flush
from flowcore.testing.transcripts.flush_on_spark import FlushSteps
from flowcore.testing.transcripts.runner import Kind
from flowcore.testing.transcripts.window_on_spark import WindowSteps

__all__ = ["kinds_on_spark"]

_Runner = FlushSteps | WindowSteps


@contextmanager
def kinds_on_spark() -> Iterator[Mapping[str, Kind]]:
    """The kinds that can be replayed on a session that lives as long as the context."""
    folder = Path(tempfile.mkdtemp(prefix="flowcore-replay-"))
    settings = Settings.of(
        {"state.dir": folder, "execution.short-lived": "true", "execution.shuffle-partitions": 1}
    )
    try:
        with session(settings, "replay") as spark:
            live = live_session(spark, settings)
            runners: list[_Runner] = []

            def building(
                kind: Callable[[Mapping[str, Any], Any, Path], _Runner],
            ) -> Callable[[Mapping[str, Any]], _Runner]:
                def build(operator: Mapping[str, Any]) -> _Runner:
                    while runners:
                        runners.pop().close()
                    runners.append(kind(operator, live, Path(tempfile.mkdtemp(dir=folder))))
                    return runners[0]

                return build

            yield {
                "window": Kind(name="window", build=building(WindowSteps)),
                "flush": flush.KIND.built_by(building(FlushSteps)),
            }
            while runners:
                runners.pop().close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
