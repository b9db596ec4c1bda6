"""Replay of transcripts as live flows, in one Spark session and with one broker."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flowcore.kafka.broker import EmbeddedBroker
from flowcore.settings import Settings
from flowcore.spark.run.session import session
from flowcore.testing.transcripts.kinds import KINDS
from flowcore.testing.transcripts.live_buffers import LiveBuffers, agrees_at_sink
from flowcore.testing.transcripts.live_copies import LiveBacklog, LiveWatermarks
from flowcore.testing.transcripts.live_flow import LiveEngine
from flowcore.testing.transcripts.live_joins import LiveJoins
from flowcore.testing.transcripts.live_serializer import LiveSerializer
from flowcore.testing.transcripts.live_windows import LiveWindows
from flowcore.testing.transcripts.runner import Runner, TranscriptKind

__all__ = ["AT_ONCE", "kinds_on", "kinds_on_spark"]

AT_ONCE = 3
"""How many transcripts are replayed in parallel: a batch mostly waits for files and Python."""
_HEAP_MIB = 256
_RUNNERS: Mapping[str, Callable[[Mapping[str, Any], LiveEngine], Any]] = {
    "backlog": LiveBacklog,
    "flush": LiveBuffers,
    "join": LiveJoins,
    "serializer": LiveSerializer,
    "watermarks": LiveWatermarks,
    "window": LiveWindows,
}


@contextmanager
def kinds_on_spark() -> Iterator[Mapping[str, TranscriptKind]]:
    """Provide the kinds on a session and a broker of their own, which the context stops."""
    folder = Path(tempfile.mkdtemp(prefix="flowcore-replay-"))
    settings = Settings.of({"state.dir": folder, "execution.short-lived": "true"})
    try:
        with (
            EmbeddedBroker(heap_mib=_HEAP_MIB) as broker,
            session(settings, "replay", slots=AT_ONCE) as spark,
            LiveEngine(spark, broker.bootstrap_servers, folder).shared_workers() as engine,
        ):
            yield kinds_on(engine)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def kinds_on(engine: LiveEngine) -> Mapping[str, TranscriptKind]:
    """The kinds that run as live flows."""
    kinds = {
        kind: replace(KINDS[kind], build=partial(_build, runner, engine), close=lambda runner: runner.close())
        for kind, runner in _RUNNERS.items()
    }
    return kinds | {"flush": replace(kinds["flush"], agrees=agrees_at_sink)}


def _build(
    runner: Callable[[Mapping[str, Any], LiveEngine], Runner], engine: LiveEngine, operator: Mapping[str, Any]
) -> Runner:
    return runner(operator, engine)
