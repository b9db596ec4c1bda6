"""Transcripts of flush buffers as a live flow: a function whose latest output counts, and a topic after it.

A topic shows less of the order of a step than a buffer. A batch writes its records before its last watermark
and status, and latency markers go to a topic of their own.

An input is idle when it has been silent for a while, which a transcript has no time for. So one of its
milliseconds is `_TICKS` milliseconds of the flow.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from flowcore import elements
from flowcore.api.attributes import OperatorAttributes
from flowcore.api.flow import Flow
from flowcore.process import KeyedProcessFunction
from flowcore.testing.transcripts.elements import format_element, parse_element
from flowcore.testing.transcripts.flush import flush_config
from flowcore.testing.transcripts.live_flow import Input, LiveEngine, LiveFlow, Output
from flowcore.testing.transcripts.runner import fail_unknown

__all__ = ["LiveBuffers", "agrees_at_sink"]

_TICKS = 10_000
_IDLE_MS = 2_500
"""An input that is silent for this time is idle; at most three of them are less than `_TICKS`."""
_BEFORE = "before"
"""The observation of the last status and watermark before a step; the end of input hides watermarks."""


class _Copy(KeyedProcessFunction):
    """Emits each record as it is."""

    def process(self, record: Any, _context: Any) -> Any:
        yield record


class LiveBuffers:
    """A buffer during one transcript; keys and values are JSON text."""

    def __init__(self, operator: Mapping[str, Any], engine: LiveEngine) -> None:
        config = flush_config(operator)
        name = engine.new_name()
        flow = Flow(name)
        schema = "key STRING, value STRING, skipped BOOLEAN"
        records = flow.read("in", engine.topic(name, "in", schema=schema, elements="tagged"))
        latest = records.where("skipped IS NULL").process(
            _Copy(),
            schema="key STRING, value STRING",
            by="key" if config.keyed else (),
            name="latest",
            attributes=OperatorAttributes(output_idempotent=True),
        )
        latest.write("out", engine.topic(name, "out", elements="tagged", partitions=1))
        interval_ms = (config.interval_ms or 0) * _TICKS
        if interval_ms:
            interval_ms -= _TICKS // 2  # the idle times of less than a millisecond do not count
        changes = {
            "metrics.latency.interval": "1 d",
            "execution.flush.max-interval": timedelta(milliseconds=interval_ms),
            "execution.flush.memory-buffer-only": config.memory_buffer_only,
            "state.key-groups": 1,
        }
        if config.max_entries is not None:
            changes["state.backend.cache.max-entries-num"] = config.max_entries
        self._own = f"{name}/"
        self._last: dict[str, Any] = {"status": "active", "watermark": elements.MIN_TIMESTAMP_MS}
        self._flow = LiveFlow(engine, flow, changes=changes)

    def close(self) -> None:
        self._flow.close()

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        match action:
            case "in":
                outputs = self._flow.step(_record(*row) for row in argument)
            case "watermark_ms":
                outputs = self._flow.step([Input(elements.Watermark(argument))])
            case "watermark_status" | "latency_marker":
                outputs = self._flow.step([Input(parse_element({action: argument}))])
            case "processing_time_ms":
                # The input is not idle: it has a record that the flow skips.
                outputs = self._flow.step([_record("", "", skipped=True)], argument * _TICKS)
            case "input_idle":
                outputs = self._flow.step(now_ms=self._flow.now_ms + _IDLE_MS)
            case "end_of_input":
                outputs = self._flow.step([Input(elements.EndOfInput())])
            case "restart":
                outputs = self._flow.restart()
            case _:
                return fail_unknown("flush", action)
        out = [_format(each) for each in self._elements(outputs)]
        before, self._last = self._last, dict(self._last)
        for each in out:
            self._last |= {kind: value for kind, value in each.items() if kind in self._last}
        ended = {"watermark": elements.MAX_TIMESTAMP_MS} if action == "end_of_input" else {}
        return {"out": out, _BEFORE: before | ended}

    def _elements(self, outputs: Iterable[Output]) -> Iterable[elements.StreamElement[bytes]]:
        for element in (output.element for output in outputs):
            own = isinstance(element, elements.LatencyMarker) and element.operator_id.startswith(self._own)
            ends = element == elements.Watermark(elements.MAX_TIMESTAMP_MS)
            if not (own or ends or isinstance(element, elements.RecordAttributes)):
                yield element


def agrees_at_sink(name: str, expected: Any, seen: Mapping[str, Any]) -> bool | None:
    """Compare ``out`` as a sink shows it: records, then what has changed, then latency markers."""
    if name != "out":
        return None
    return _as_written(expected or (), seen[_BEFORE]) == _as_written(seen["out"], seen[_BEFORE])


def _as_written(elements: Iterable[Any], before: Mapping[str, Any]) -> list[list[str]]:
    """Records, control elements and markers; only a status that changes, and only the last watermark."""
    found: dict[str, list[str]] = {"record": [], "control": [], "latency_marker": []}
    last: dict[str, Any] = {}
    for each in _flatten(elements):
        ((kind, value),) = each.items()
        if kind in before:
            last.pop(kind, None)
            last[kind] = value
        else:
            found[kind].append(json.dumps(each, sort_keys=True))
    control = [f"{kind} {value}" for kind, value in last.items() if _changes(kind, value, before[kind])]
    return [sorted(found["record"]), control, sorted(found["latency_marker"])]


def _changes(kind: str, value: Any, before: Any) -> bool:
    return bool(value != before if kind == "status" else value > before)


def _flatten(elements: Iterable[Any]) -> Iterable[Any]:
    for each in elements:
        if each.keys() == {"any_order"}:
            yield from _flatten(each["any_order"])
        else:
            yield each


def _record(key: Any, value: Any, timestamp_ms: int | None = None, *, skipped: bool | None = None) -> Input:
    # In JSON, 1 and true are two keys, and a list is a key.
    row = {"key": json.dumps(key, sort_keys=True), "value": json.dumps(value), "skipped": skipped}
    return Input(elements.Record(json.dumps(row).encode(), timestamp_ms))


def _format(element: elements.StreamElement[bytes]) -> dict[str, Any]:
    if isinstance(element, elements.Record):
        columns = json.loads(element.value)
        return {"record": [json.loads(columns["key"]), json.loads(columns["value"]), element.timestamp_ms]}
    return format_element(element)
