"""Transcripts of kind ``flush`` on Spark: each step is one micro-batch of a buffer on one key group.

A millisecond of a transcript is `_TICKS` of the query's clock, so that a batch in which the input is idle can
come behind another one at the same time. An interval is shorter by half of one: it has passed when it has in
the transcript.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS, LatencyMarker, StreamElement, Watermark, WatermarkStatus
from flowcore.errors import ConfigurationError
from flowcore.flush.keyed import ELEMENTS, FlushBuffers
from flowcore.keyed.operator import StepOutputs
from flowcore.serializers.formats.raw import RawFormat
from flowcore.serializers.tagged import TaggedSerializer
from flowcore.testing.stepped_query import SteppedQuery
from flowcore.testing.transcripts.elements import format_element, parse_element
from flowcore.testing.transcripts.flush import flush_config

__all__ = ["FlushSteps"]

_TICKS = 1000
_TYPES: dict[str, pa.DataType] = {"key": pa.string(), "value": pa.string(), "timestamp_ms": pa.int64()}
_ROWS = pa.schema(_TYPES)
_NOTHING: Mapping[str, Any] = {"_record": False}
"""Input that is no record of the buffer's."""
_SERIALIZER: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())


class FlushSteps:
    """A buffer in the course of one transcript.

    Args:
        operator: What the transcript says of it.
        spark: A session with the configuration of live queries.
        folder: An empty folder.
    """

    def __init__(self, operator: Mapping[str, Any], spark: Any, folder: Path) -> None:
        config = flush_config(operator)
        if config.holds:
            config = replace(config, interval_ms=(config.interval_ms or 0) * _TICKS - _TICKS // 2)
        keys = ("key",) if config.keyed else ()
        buffers = FlushBuffers(config=config, quiet_ms=0, keys=keys, timestamp="timestamp_ms", rows=_ROWS)
        self._steps = SteppedQuery(
            spark, buffers, rows=_ROWS, keys=keys, folder=folder, key_groups=1, clock_ms=0, relays=True
        )
        self._steps.__enter__()
        self._steps.step([_NOTHING])  # the first interval begins at 0

    def close(self) -> None:
        """Stop the query."""
        self._steps.__exit__(None, None, None)

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        """Do one step and say what was seen."""
        match action:
            case "in":
                seen = self._steps.step([_row(*row) for row in argument])
            case "watermark_ms":
                seen = self._steps.step([Watermark(argument)])
            case "watermark_status" | "latency_marker":
                seen = self._steps.step([_control(action, argument)])
            case "processing_time_ms":
                self._steps.clock_ms = argument * _TICKS
                seen = self._steps.step([_NOTHING])
            case "input_idle":
                self._steps.clock_ms = (self._steps.clock_ms or 0) + 1
                seen = self._steps.step([])
            case "end_of_input":
                seen = self._steps.step([Watermark(MAX_TIMESTAMP_MS)])
            case "restart":
                self._steps.restart()
                return {}
            case _:
                msg = f"transcripts of flush have no action {action!r}: nothing would be done; remove it"
                raise ConfigurationError(msg)
        return {"out": _shown(seen)}


def _row(key: Any, value: Any, timestamp_ms: int | None = None) -> Mapping[str, Any]:
    # As JSON, 1 and true are two keys, and a list is one.
    texts = (json.dumps(key, sort_keys=True), json.dumps(value))
    return {"key": texts[0], "value": texts[1], "timestamp_ms": timestamp_ms}


def _control(action: str, argument: Any) -> WatermarkStatus | LatencyMarker:
    element = parse_element({action: argument})
    assert isinstance(element, WatermarkStatus | LatencyMarker)  # noqa: S101 - the actions write no other
    return element


def _shown(seen: StepOutputs) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for output, batch in seen.batches:
        for row in batch.to_pylist():
            if output == ELEMENTS:
                element: StreamElement[bytes] = _SERIALIZER.decode(row["element"])
                found += [] if element == Watermark(MAX_TIMESTAMP_MS) else [format_element(element)]
            else:
                values = [json.loads(row[name]) for name in ("key", "value")]
                found.append({"record": [*values, row["timestamp_ms"]]})
    return found + [format_element(marker) for marker in seen.markers]
