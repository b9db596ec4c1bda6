"""The kinds of transcripts that can be replayed on Spark, in one session with a manual clock."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowcore.settings import Settings
from flowcore.spark.run.session import live_session, session
from flowcore.testing.transcripts.flush_on_spark import SparkFlushRunner
from flowcore.testing.transcripts.kinds import KINDS
from flowcore.testing.transcripts.runner import TranscriptKind
from flowcore.testing.transcripts.window_on_spark import SparkWindowRunner

__all__ = ["AT_ONCE", "kinds_on", "kinds_on_spark"]

AT_ONCE = 3
"""How many transcripts are replayed in parallel: a batch mostly waits for files and Python."""


@contextmanager
def kinds_on_spark() -> Iterator[Mapping[str, TranscriptKind]]:
    """Provide the kinds on a session of their own, which the context stops."""
    folder = Path(tempfile.mkdtemp(prefix="flowcore-replay-"))
    settings = Settings.of({"state.dir": folder, "execution.short-lived": "true"})
    try:
        with session(settings, "replay") as spark:
            yield kinds_on(spark, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def kinds_on(spark: Any, folder: Path) -> Mapping[str, TranscriptKind]:
    """The kinds that can be replayed on a session.

    Args:
        spark: The Spark session.
        folder: The folder of the checkpoints.
    """
    settings = Settings.of({"state.dir": folder, "execution.shuffle-partitions": 1})
    live = live_session(spark, settings)

    def windows(operator: Mapping[str, Any]) -> SparkWindowRunner:
        return SparkWindowRunner(operator, live, Path(tempfile.mkdtemp(dir=folder)))

    def buffers(operator: Mapping[str, Any]) -> SparkFlushRunner:
        return SparkFlushRunner(operator, live, Path(tempfile.mkdtemp(dir=folder)))

    return {
        "window": replace(KINDS["window"], build=windows, close=SparkWindowRunner.close),
        "flush": replace(KINDS["flush"], build=buffers, close=SparkFlushRunner.close),
    }
