"""Replay of transcripts as live flows, in one Spark session and with one broker."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS, LatencyMarker, StreamElement, Watermark, WatermarkStatus
from flowcore.flush.operator import FlushBuffers
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.keyed.operator import CONTROL, StepOutputs
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.settings import Settings
from flowcore.spark.run.session import live_session, session
from flowcore.testing.stepped_query import SteppedQuery
from flowcore.testing.transcripts.elements import format_element, parse_element
from flowcore.testing.transcripts.flush import flush_config
from flowcore.testing.transcripts.kinds import KINDS
from flowcore.testing.transcripts.live_flow import LiveEngine
from flowcore.testing.transcripts.live_watermarks import LiveWatermarks
from flowcore.testing.transcripts.live_windows import LiveWindows
from flowcore.testing.transcripts.runner import Runner, TranscriptKind, fail_unknown

AT_ONCE = 3
"""How many transcripts are replayed in parallel: a batch mostly waits for files and Python."""
_HEAP_MIB = 256
_TICKS = 1000
_NO_RECORD: Mapping[str, Any] = {"_record": False}
_SERIALIZER: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())
_TEXTS: dict[str, pa.DataType] = {"key": pa.string(), "value": pa.string(), "timestamp_ms": pa.int64()}
_FLUSH_ROWS = pa.schema(_TEXTS)
_RUNNERS: Mapping[str, Callable[[Mapping[str, Any], LiveEngine], Runner]] = {
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
        ):
            yield kinds_on(LiveEngine(spark, broker.bootstrap_servers, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def kinds_on(engine: LiveEngine) -> Mapping[str, TranscriptKind]:
    """The kinds that run as live flows."""
    live = live_session(engine.spark, engine.settings({}))

    def buffers(operator: Mapping[str, Any]) -> SparkFlushRunner:
        return SparkFlushRunner(operator, live, Path(tempfile.mkdtemp(dir=engine.folder)))

    return {"flush": replace(KINDS["flush"], build=buffers, close=SparkFlushRunner.close)} | {
        kind: replace(KINDS[kind], build=partial(_build, runner, engine), close=lambda runner: runner.close())
        for kind, runner in _RUNNERS.items()
    }


def _build(
    runner: Callable[[Mapping[str, Any], LiveEngine], Runner], engine: LiveEngine, operator: Mapping[str, Any]
) -> Runner:
    return runner(operator, engine)


class SparkFlushRunner:
    """A buffer during one transcript.

    A millisecond of a transcript is `_TICKS` milliseconds of the query's clock, so that a batch with idle
    input can follow another batch at the same time. An interval is half a millisecond shorter, so that it has
    elapsed where it has elapsed in the transcript.

    Args:
        spark: A session with the configuration of live queries.
        folder: An empty folder.
    """

    def __init__(self, operator: Mapping[str, Any], spark: Any, folder: Path) -> None:
        config = flush_config(operator)
        if config.is_enabled:
            config = replace(config, interval_ms=(config.interval_ms or 0) * _TICKS - _TICKS // 2)
        keys = ("key",) if config.keyed else ()
        buffers = FlushBuffers(
            config=config, quiet_ms=0, keys=keys, timestamp="timestamp_ms", rows=_FLUSH_ROWS
        )
        self._query = SteppedQuery(
            spark, buffers, rows=_FLUSH_ROWS, keys=keys, folder=folder, key_groups=1, clock_ms=0, relays=True
        )
        self._query.start()
        self._query.step([_NO_RECORD])  # the first interval begins at 0

    def close(self) -> None:
        self._query.stop()

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        query = self._query
        match action:
            case "in":
                outputs = query.step([_row(*row) for row in argument])
            case "watermark_ms":
                outputs = query.step([Watermark(argument)])
            case "watermark_status" | "latency_marker":
                element = parse_element({action: argument})
                assert isinstance(element, WatermarkStatus | LatencyMarker)  # noqa: S101 - by the action
                outputs = query.step([element])
            case "processing_time_ms":
                query.clock_ms = argument * _TICKS
                outputs = query.step([_NO_RECORD])
            case "input_idle":
                query.clock_ms = (query.clock_ms or 0) + 1
                outputs = query.step([])
            case "end_of_input":
                outputs = query.step([Watermark(MAX_TIMESTAMP_MS)])
            case "restart":
                query.restart()
                return {}
            case _:
                fail_unknown("flush", action)
        return {"out": _format_outputs(outputs)}


def _row(key: Any, value: Any, timestamp_ms: int | None = None) -> Mapping[str, Any]:
    # In JSON, 1 and true are two keys, and a list is a key.
    texts = (json.dumps(key, sort_keys=True), json.dumps(value))
    return {"key": texts[0], "value": texts[1], "timestamp_ms": timestamp_ms}


def _format_outputs(outputs: StepOutputs) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for output, batch in outputs.batches:
        for row in batch.to_pylist():
            if output == CONTROL:
                element: StreamElement[bytes] = _SERIALIZER.decode(row["element"])
                out += [] if element == Watermark(MAX_TIMESTAMP_MS) else [format_element(element)]
            else:
                values = [json.loads(row[name]) for name in ("key", "value")]
                out.append({"record": [*values, row["timestamp_ms"]]})
    return out + [format_element(marker) for marker in outputs.markers]
