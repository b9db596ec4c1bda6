"""Transcripts of joins as a live flow: two topics, a join, and topics of results and of late records."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from flowcore.api.flow import Flow, Stream
from flowcore.api.window_assigners import Tumbling
from flowcore.elements import MIN_TIMESTAMP_MS, Record, Watermark
from flowcore.testing.transcripts.join import SIDES, parse_elements, parse_join, require_on_time
from flowcore.testing.transcripts.live_flow import Input, LiveEngine, LiveFlow, Output
from flowcore.testing.transcripts.runner import Refused

__all__ = ["LiveJoins"]


class LiveJoins:
    """A join during one transcript. Keys are JSON text, or null."""

    def __init__(self, operator: Mapping[str, Any], engine: LiveEngine) -> None:
        self._flow = LiveFlow(engine, _declare(operator, engine))
        self._current_ms = MIN_TIMESTAMP_MS
        self._dropped = 0

    def close(self) -> None:
        self._flow.close()

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        match action:
            case "in":
                return self._observe(self._flow.step(_record(*row) for row in argument))
            case "processing_time_ms":
                return self._observe(self._flow.step(now_ms=argument))
            case "restart":
                seen = self._observe(self._flow.restart())
                self._dropped = 0
                return seen
            case _:
                elements = parse_elements(action, argument)
                return self._observe(
                    self._flow.step(Input(element, topic=side) for side, element in elements.items())
                )

    def _observe(self, outputs: Iterable[Output]) -> Mapping[str, Any]:
        """The rows of a step; none may be late by the watermark that was emitted before it."""
        out, late = [], []
        for output in outputs:
            if output.topic.endswith(".dead-letter"):
                raise Refused(output.headers["flowcore-reason"].decode())
            element = output.element
            if output.topic == "out":
                if isinstance(element, Record):
                    require_on_time(element.timestamp_ms, self._current_ms)
                    row = json.loads(element.value)
                    values = (row.get(name) for name in SIDES)
                    change = ["deleted"] if row.get("is_deleted") else []
                    out.append([_key(row), *values, element.timestamp_ms, *change])
                elif isinstance(element, Watermark):
                    self._current_ms = element.timestamp_ms
            elif isinstance(element, Record):
                side = output.topic.removeprefix("late_")
                row = json.loads(element.value)
                late.append([side, _key(row), row[side], element.timestamp_ms])
        before, self._dropped = self._dropped, self._flow.progress.dropped
        dropped = self._dropped - before
        return {"out": out, "late": late, "dropped": dropped, "current_ms": self._current_ms}


def _declare(operator: Mapping[str, Any], engine: LiveEngine) -> Flow:
    name = engine.new_name()
    flow = Flow(name)
    left, right = (
        flow.read(side, engine.topic(name, side, schema=f"key STRING, `{side}` BIGINT", elements="tagged"))
        for side in SIDES
    )
    joined = _join(left, right, operator)
    sink = {"elements": "tagged", "partitions": 1}
    # With another key than the row's id, a deletion is written as a row.
    joined.write("out", engine.topic(name, "out", **sink), key="key" if joined.operator.updating else None)
    if operator.get("late") == "side-output":
        joined.late_left.write("late_left", engine.topic(name, "late_left", **sink))
        joined.late_right.write("late_right", engine.topic(name, "late_right", **sink))
    return flow


def _join(left: Stream, right: Stream, operator: Mapping[str, Any]) -> Stream:
    kind, lengths_ms = parse_join(operator)
    options: dict[str, Any] = {
        name: value if value is None or name == "load" else timedelta(milliseconds=value)
        for name, value in lengths_ms.items()
    }
    options |= {"on": "key", "how": operator["how"], "name": "joined"}
    match kind:
        case "regular":
            return left.join(right, **options)
        case "latest":
            if isinstance(options["load"], int):
                options["load"] = datetime.fromtimestamp(options["load"] / 1000, UTC)
            return left.join_latest(right, **options)
    options["late"] = operator.get("late", "drop")
    if kind == "window":
        windows = Tumbling(options.pop("size"), offset=options.pop("offset"))
        return left.join_window(right, windows, **options)
    return (left.join_asof if kind == "as-of" else left.join_interval)(right, **options)


def _record(side: str, key: Any, value: Any, timestamp_ms: int) -> Input:
    row = {"key": None if key is None else json.dumps(key, sort_keys=True), side: value}
    return Input(Record(json.dumps(row).encode(), timestamp_ms), topic=side)


def _key(row: Mapping[str, Any]) -> Any:
    return None if row.get("key") is None else json.loads(row["key"])
