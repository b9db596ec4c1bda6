"""Transcripts of serializers as live flows: a topic is copied to a tagged or a value-only topic.

A watermark never goes back and a status is written where it changes, so each control element gets a new flow.
"""

import json
from collections.abc import Mapping
from typing import Any

from flowcore.api.flow import Flow
from flowcore.elements import LatencyMarker, Record, StreamElement
from flowcore.errors import ConfigurationError, PlanError, RunError
from flowcore.process import KeyedProcessFunction
from flowcore.testing.transcripts.elements import format_element, parse_element
from flowcore.testing.transcripts.live_flow import Input, LiveEngine, LiveFlow, Output
from flowcore.testing.transcripts.runner import Refused, fail_unknown
from flowcore.testing.transcripts.serializer import choose_serialization

__all__ = ["LiveSerializer"]

_MODES = ("tagged", "value-only")
_RAW = {"schema": "value BINARY", "format": "raw"}
_NO_TIMESTAMPS = {"pipeline.force-timestamp-support": "false", "pipeline.auto-watermark-interval": "0 ms"}


class _ReadTimestamp(KeyedProcessFunction):
    """Emits the timestamp of each record."""

    def process(self, _record: Any, context: Any) -> Any:
        yield {"value": str(context.timestamp_ms).encode()}


class LiveSerializer:
    """A topic's elements during one transcript; the values of records are JSON."""

    def __init__(self, operator: Mapping[str, Any], engine: LiveEngine) -> None:
        self._mode = operator.get("mode", "tagged")
        if self._mode not in _MODES:
            msg = f"mode {self._mode!r} is none of {', '.join(_MODES)}: nothing could be written; use one"
            raise ConfigurationError(msg)
        self._engine = engine

    def close(self) -> None:
        """Nothing stays open between two steps."""

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        match action:
            case "write":
                return self._write(parse_element(argument))
            case "through_event":
                operator_id, subtask, marked_ms = argument
                read = self._write(LatencyMarker(marked_ms, operator_id, subtask), plain=True)["read"]
                return {"read": read["latency_marker"]}
            case "read_timestamp_of":
                return self._read_timestamp(Record(*argument))
            case "settings":
                return {"mode": choose_serialization(argument)}
            case "restart":
                return {}
            case _:
                return fail_unknown("serializers", action)

    def _write(self, element: StreamElement[Any], *, plain: bool = False) -> Mapping[str, Any]:
        """Copy an element; a value-only topic takes records from topics that bring no watermarks."""
        value = b""
        if isinstance(element, Record):
            value = json.dumps(element.value, ensure_ascii=False).encode()
            element = Record(value, element.timestamp_ms)
        plain = plain or (self._mode == "value-only" and isinstance(element, Record))
        name = self._engine.new_name()
        flow = Flow(name)
        source = self._engine.topic(name, "in", elements="plain" if plain else "tagged", **_RAW)
        sink = self._engine.topic(name, "out", elements=self._mode, partitions=1, **_RAW)
        flow.read("in", source).write("out", sink)
        try:
            run = LiveFlow(self._engine, flow, changes={"metrics.latency.interval": "1 d"})
        except PlanError as error:
            word = "only-records"
            raise Refused(word) from error
        try:
            # A companion topic also has the markers of the flow itself.
            outputs = run.step([Input(element)])
            (found,) = (each for each in outputs if f"{name}/".encode() not in each.value)
        finally:
            run.close()
        return {"overhead_bytes": len(found.value) - len(value), "read": self._read(found)}

    def _read(self, found: Output) -> dict[str, Any]:
        if self._mode == "value-only" and found.topic == "out":
            return {"record": [json.loads(found.value), None]}
        element = found.element
        if isinstance(element, Record):
            element = Record(json.loads(element.value), element.timestamp_ms)
        return format_element(element)

    def _read_timestamp(self, record: Record[Any]) -> Mapping[str, Any]:
        name = self._engine.new_name()
        flow = Flow(name)
        tagged = self._mode == "tagged"
        source = self._engine.topic(name, "in", elements="tagged" if tagged else "value-only", **_RAW)
        read = flow.read("in", source).process(_ReadTimestamp(), schema="value BINARY")
        read.write("out", self._engine.topic(name, "out", partitions=1, **_RAW))
        run = LiveFlow(self._engine, flow, changes={} if tagged else _NO_TIMESTAMPS)
        try:
            outputs = run.step([Input(Record(json.dumps(record.value).encode(), record.timestamp_ms))])
        except RunError as error:
            if "NoTimestampError" not in str(error) and "timestamp" not in str(error):
                raise
            word = "no-timestamp"
            raise Refused(word) from error
        finally:
            run.close()
        return {"read": next(int(each.value) for each in outputs if each.topic == "out")}
