"""The kinds of transcripts that can be replayed on Spark, in one session; the clock is moved by hand."""

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
from flowcore.testing.transcripts import flush, window
from flowcore.testing.transcripts.flush_on_spark import FlushSteps
from flowcore.testing.transcripts.runner import TranscriptKind
from flowcore.testing.transcripts.window_on_spark import WindowSteps

__all__ = ["AT_ONCE", "kinds_on", "kinds_on_spark"]

AT_ONCE = 3
"""Transcripts that are replayed side by side: a batch waits for files and Python most of its time."""


@contextmanager
def kinds_on_spark() -> Iterator[Mapping[str, TranscriptKind]]:
    """The kinds that can be replayed, on a session that lives as long as the context."""
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
        folder: Where checkpoints go.
    """
    settings = Settings.of({"state.dir": folder, "execution.shuffle-partitions": 1})
    live = live_session(spark, settings)

    def windows(operator: Mapping[str, Any]) -> WindowSteps:
        return WindowSteps(operator, live, Path(tempfile.mkdtemp(dir=folder)))

    def buffers(operator: Mapping[str, Any]) -> FlushSteps:
        return FlushSteps(operator, live, Path(tempfile.mkdtemp(dir=folder)))

    return {
        "window": replace(window.KIND, build=windows, close=WindowSteps.close),
        "flush": replace(flush.KIND, build=buffers, close=FlushSteps.close),
    }
