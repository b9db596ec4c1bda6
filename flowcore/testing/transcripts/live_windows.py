"""Transcripts of windows as a live flow: a topic, a window, and topics of results and of late records."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from flowcore.api.flow import Flow
from flowcore.elements import (
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    EndOfInput,
    Record,
    Watermark,
)
from flowcore.errors import InvalidWindowError, RunError
from flowcore.testing.transcripts.live_flow import Input, LiveEngine, LiveFlow, Output
from flowcore.testing.transcripts.runner import Refused, fail_unknown, refusing
from flowcore.testing.transcripts.window import window_config
from flowcore.windows import DeltaEvictor, DynamicSessionWindows

__all__ = ["LiveWindows"]

_BOUNDS = re.compile(rb"\}:(-?\d+):(-?\d+):\d+(?::\d+)?$")
"""The end of a window's record id: key, first millisecond, end, firing, ordinal."""
_WORDS = {"has no event time": "no-timestamp"}


class LiveWindows:
    """Windows during one transcript.

    Keys are JSON text; values are numbers, or JSON text in lists.
    """

    def __init__(self, operator: Mapping[str, Any], engine: LiveEngine) -> None:
        self._lists = operator.get("aggregate") == "list"
        with refusing(InvalidWindowError):
            flow = _declare(operator, engine, lists=self._lists)
        self._flow = LiveFlow(engine, flow)
        self._watermark_ms = MIN_TIMESTAMP_MS
        self._dropped = 0

    def close(self) -> None:
        self._flow.close()

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        match action:
            case "in":
                return self._observe(self._flow.step(self._record(*row) for row in argument))
            case "watermark_ms":
                return self._advance(Watermark(argument), argument)
            case "end_of_input":
                return self._advance(EndOfInput(), MAX_TIMESTAMP_MS)
            case "processing_time_ms":
                return self._observe(self._flow.step(now_ms=argument))
            case "restart":
                seen = self._observe(self._flow.restart())
                self._dropped = 0
                return seen
            case _:
                return fail_unknown("windows", action)

    def _record(self, key: Any, value: Any, timestamp_ms: int | None = None) -> Input:
        row = {"key": json.dumps(key, sort_keys=True), "value": json.dumps(value) if self._lists else value}
        return Input(Record(json.dumps(row).encode(), timestamp_ms))

    def _advance(self, element: Watermark | EndOfInput, watermark_ms: int) -> Mapping[str, Any]:
        expected = []
        if watermark_ms > self._watermark_ms:
            self._watermark_ms = watermark_ms
            expected = [Watermark(watermark_ms)]
        return self._observe(self._flow.step([Input(element)]), expected)

    def _observe(self, outputs: Iterable[Output], controls: Iterable[Watermark] = ()) -> Mapping[str, Any]:
        """The rows of a step; the sinks must have exactly these control elements, after all records."""
        rows: dict[str, list[Any]] = {"out": [], "late": []}
        found: dict[str, list[Any]] = {"out": [], "late": []}
        for output in outputs:
            if output.topic == "in.dead-letter":
                raise Refused(_word(output))
            element = output.element
            if not isinstance(element, Record):
                found[output.topic].append(element)
                continue
            if found[output.topic]:
                msg = f"a record of topic {output.topic} follows the watermark that released it"
                raise RunError(msg)
            rows[output.topic].append(self._row(element, output))
        expected = [*controls]
        if found["out"] != expected or found["late"] not in (expected, []):
            msg = f"the sinks should have the control elements {expected}, and have {found}"
            raise RunError(msg)
        before, self._dropped = self._dropped, self._flow.progress.dropped
        return {**rows, "dropped": self._dropped - before}

    def _row(self, record: Record[bytes], output: Output) -> list[Any]:
        columns = json.loads(record.value)
        value = columns["value"]
        if self._lists:
            value = json.loads(value)
        row = [json.loads(columns["key"]), value, record.timestamp_ms]
        if output.topic == "out":
            bounds = _BOUNDS.search(output.headers["flowcore-id"])
            row.append([int(bound) for bound in bounds.groups()] if bounds else None)
        return row


def _declare(operator: Mapping[str, Any], engine: LiveEngine, *, lists: bool) -> Flow:
    config = window_config(operator)
    name = engine.new_name()
    flow = Flow(name)
    kind = "STRING" if lists else "BIGINT"
    topic = engine.topic(name, "in", schema=f"key STRING NOT NULL, value {kind}", elements="tagged")
    assigner, evictor = config.assigner, config.evictor
    if isinstance(assigner, DynamicSessionWindows):
        assigner = DynamicSessionWindows(partial(_gap_ms, assigner.gap))
    if isinstance(evictor, DeltaEvictor):
        evictor = replace(evictor, delta=_difference)
    lateness_ms = config.allowed_lateness_ms if config.has_lateness else 0
    late = config.late if config.has_lateness else "drop"
    windows = flow.read("in", topic).window(
        assigner,
        by="key",
        trigger=config.trigger,
        evictor=evictor,
        allowed_lateness=math.inf if lateness_ms == MAX_TIMESTAMP_MS else timedelta(milliseconds=lateness_ms),
        late=late,
        time=config.time,
        name="windows",
    )
    results = (
        windows.process(_collect, schema="value STRING") if lists else windows.aggregate(value="sum(value)")
    )
    sink = {"elements": "tagged", "partitions": 1}
    results.write("out", engine.topic(name, "out", **sink))
    if late == "side-output":
        results.late.write("late", engine.topic(name, "late", **sink))
    return flow


def _gap_ms(gap: Any, key: Any, record: Mapping[str, Any]) -> int:
    found: int = gap(json.loads(key), _value(record))
    return found


def _difference(own: Mapping[str, Any], newest: Mapping[str, Any]) -> Any:
    return _value(newest) - _value(own)


def _collect(_context: Any, records: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    return [{"value": json.dumps([_value(record) for record in records])}]


def _value(record: Mapping[str, Any]) -> Any:
    value = record["value"]
    return json.loads(value) if isinstance(value, str) else value


def _word(dead_letter: Output) -> str:
    """The README's word for the reason of a dead letter."""
    reason = dead_letter.headers["flowcore-reason"].decode()
    return next((word for text, word in _WORDS.items() if text in reason), reason)
