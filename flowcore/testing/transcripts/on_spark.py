"""Replay of transcripts on Spark, in one session with a manual clock: each step is one micro-batch."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS, LatencyMarker, StreamElement, Watermark, WatermarkStatus
from flowcore.errors import InvalidWindowError, NoTimestampError, RunError
from flowcore.flush.operator import FlushBuffers
from flowcore.keyed.operator import CONTROL, KeyGroupOperator, StepOutputs
from flowcore.keyed.output_columns import END, LATE, RESULTS, START, TIMESTAMP
from flowcore.serializers.formats import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.settings import Settings
from flowcore.spark.run.session import live_session, session
from flowcore.testing.stepped_query import SteppedQuery
from flowcore.testing.transcripts.elements import format_element, parse_element
from flowcore.testing.transcripts.flush import flush_config
from flowcore.testing.transcripts.kinds import KINDS
from flowcore.testing.transcripts.runner import Refused, TranscriptKind, fail_unknown, refusing
from flowcore.testing.transcripts.window import window_config
from flowcore.testing.window_functions import Sum
from flowcore.windows import WindowAggregate, WindowConfig
from flowcore.windows.built_in import BuiltIn, BuiltIns
from flowcore.windows.columnar.keyed import ColumnarWindows
from flowcore.windows.keyed import RecordWindows

__all__ = ["AT_ONCE", "SparkFlushRunner", "SparkWindowRunner", "kinds_on", "kinds_on_spark"]

AT_ONCE = 3
"""How many transcripts are replayed in parallel: a batch mostly waits for files and Python."""
_TICKS = 1000
"""Milliseconds of the query's clock in one millisecond of a transcript of a buffer."""
_NO_RECORD: Mapping[str, Any] = {"_record": False}
_SERIALIZER: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())
_TEXTS: dict[str, pa.DataType] = {"key": pa.string(), "value": pa.string(), "timestamp_ms": pa.int64()}
_FLUSH_ROWS = pa.schema(_TEXTS)
_TYPES: dict[str, pa.DataType] = {"key": pa.string(), "value": pa.int64(), "timestamp_ms": pa.int64()}
_WINDOW_ROWS = pa.schema(_TYPES)
_TOTAL = WindowAggregate(BuiltIns((("value", BuiltIn("sum", ("value",))),)))


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


class SparkWindowRunner:
    """Windows during one transcript.

    Args:
        spark: A session with the configuration of live queries.
        folder: An empty folder.
    """

    def __init__(self, operator: Mapping[str, Any], spark: Any, folder: Path) -> None:
        with refusing(InvalidWindowError):
            config = window_config(operator)
        lists = operator.get("aggregate") == "list"
        windows = _build_windows(config, pa.list_(pa.int64()) if lists else pa.int64())
        self._query = SteppedQuery(
            spark, windows, rows=_WINDOW_ROWS, keys=("key",), folder=folder, clock_ms=0
        )
        self._query.start()

    def close(self) -> None:
        self._query.stop()

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        match action:
            case "in":
                outputs = self._feed(argument)
            case "watermark_ms":
                outputs = self._query.step([Watermark(argument)])
            case "processing_time_ms":
                self._query.clock_ms = argument
                outputs = self._query.step([])
            case "end_of_input":
                outputs = self._query.step([Watermark(MAX_TIMESTAMP_MS)])
            case _:
                self._query.restart()
                return {}
        rows: dict[str, list[Any]] = {RESULTS: [], LATE: []}
        for output, batch in outputs.batches:
            rows[output] += batch.to_pylist()
        return {
            "out": [
                [row["key"], row["value"], row[TIMESTAMP], [row[START], row[END]]] for row in rows[RESULTS]
            ],
            "late": [list(row.values()) for row in rows[LATE]],
            "dropped": outputs.counters.get("dropped_records", 0),
        }

    def _feed(self, rows: Any) -> StepOutputs:
        try:
            return self._query.step([dict(zip(_WINDOW_ROWS.names, row, strict=True)) for row in rows])
        except RunError as error:
            for kind, word in ((NoTimestampError, "no-timestamp"), (InvalidWindowError, "invalid-argument")):
                if kind.__name__ in str(error):
                    raise Refused(word) from error
            raise


def _build_windows(config: WindowConfig, value: pa.DataType) -> KeyGroupOperator:
    """The operator of a live query: columnar where that is possible."""
    columnar = config
    if isinstance(config.function, WindowAggregate) and isinstance(config.function.function, Sum):
        columnar = replace(config, function=_TOTAL)
    if ColumnarWindows.refusal(columnar, _TYPES) is None:
        return ColumnarWindows(
            config=columnar, keys=("key",), timestamp="timestamp_ms", rows=_WINDOW_ROWS, late=tuple(_TYPES)
        )
    return RecordWindows(
        name="windows",
        config=config,
        keys=("key",),
        key_of=itemgetter(0),
        values=("value",),
        value_of=itemgetter("value"),
        record_of=_record,
        timestamp="timestamp_ms",
        rows=_WINDOW_ROWS,
        results=pa.schema([pa.field("value", value)]),
        late=tuple(_TYPES),
    )


def _record(value: Any) -> Mapping[str, Any]:
    return {"value": value}


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
