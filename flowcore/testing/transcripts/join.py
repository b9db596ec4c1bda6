"""Runner of transcripts of kind ``join``: a join of two streams on the runtime of key groups, in memory."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, StreamElement, Watermark
from flowcore.errors import ConfigurationError, NoTimestampError, RunError
from flowcore.joins.asof import AsOfJoin
from flowcore.joins.group import JoinConfig
from flowcore.joins.interval import IntervalJoin
from flowcore.joins.latest import LatestJoin
from flowcore.keyed.control import Channel, ControlElement
from flowcore.keyed.operator import CONTROL, StepOutputs
from flowcore.keyed.output_columns import DELETED, LATE_LEFT, LATE_RIGHT, RESULTS, TIMESTAMP
from flowcore.keyed.packed import Packed, sort_packed
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.state_cache import StateCache
from flowcore.serializers import TaggedSerializer
from flowcore.serializers.formats import RawFormat
from flowcore.testing.memory_store import MemoryStore
from flowcore.testing.transcripts.elements import parse_element
from flowcore.testing.transcripts.runner import fail_unknown, refusing
from flowcore.watermarks.progress import WatermarkSource
from flowcore.windows.assigners import TumblingWindows

__all__ = ["SIDES", "JoinRunner", "parse_elements", "parse_join", "require_on_time"]

SIDES = ("left", "right")
_TYPES: dict[str, pa.DataType] = {
    "is_right": pa.bool_(), "key": pa.string(), "value": pa.int64(), "time": pa.int64(), "joined": pa.int64(),
}  # fmt: skip
_ROWS = pa.schema(_TYPES)
_LATE = {LATE_LEFT: "left", LATE_RIGHT: "right"}
_ELEMENTS: TaggedSerializer[bytes] = TaggedSerializer(RawFormat())


class JoinRunner:
    """A join during one transcript; its watermarks arrive, from one channel a side."""

    def __init__(self, operator: Mapping[str, Any]) -> None:
        self._runtime = Runtime(
            operator=_join_config(operator),
            query="join",
            key_groups=1,
            rows=_ROWS,
            emits_control=True,
            sources={side: WatermarkSource(None, ("0",)) for side in SIDES},
        )
        self._store, self._cache = MemoryStore(), StateCache()
        self._windows = _windows(operator)
        self._now_ms = 0
        self._current_ms = MIN_TIMESTAMP_MS

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        match action:
            case "in":
                with refusing(NoTimestampError, "no-timestamp"):
                    return self._step(rows=argument)
            case "processing_time_ms":
                self._now_ms = argument
                return self._step()
            case "restart":  # another worker reads the store
                self._store, self._cache = self._store.copy(), StateCache()
                return {"current_ms": self._current_ms}
            case _:
                return self._step(elements=parse_elements(action, argument))

    def _step(
        self, elements: Mapping[str, StreamElement[Any]] | None = None, rows: Iterable[Sequence[Any]] = ()
    ) -> Mapping[str, Any]:
        """A step with control elements by side, or with rows, of which those of the left are first."""
        items = []
        for side, element in (elements or {}).items():
            arriving = ControlElement(side, "0", "replay", 0, element)
            items.append(Packed.of_control(Channel(side, "0"), elements=[arriving]))
        by_side: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for side, key, value, time_ms in rows:
            row = {"is_right": side == "right", "key": key, "value": value, "time": time_ms}
            by_side[side].append({**row, "joined": self._joined_ms(time_ms)})
        for side, mine in by_side.items():
            channel = Channel(side, "0")
            items.append(Packed.of_control(channel, {channel: None}))
            items.append(Packed.of_rows(channel, 0, pa.RecordBatch.from_pylist(mine, _ROWS)))
        step = self._runtime.step(0, sort_packed(items), self._now_ms, self._store, self._cache)
        return self._observe(step.outputs)

    def _joined_ms(self, time_ms: int | None) -> int | None:
        """The time by which a row is joined: the last millisecond of its window, or its own."""
        if self._windows is None or time_ms is None:
            return time_ms
        (window,) = self._windows.assign(time_ms)
        return window.last_ms

    def _observe(self, outputs: StepOutputs) -> Mapping[str, Any]:
        """The rows of a step; none may be late by the watermark that was emitted before it."""
        out, late = [], []
        for output, batch in outputs.batches:
            for row in batch.to_pylist():
                if output == RESULTS:
                    require_on_time(row[TIMESTAMP], self._current_ms)
                    change = ["deleted"] if row.get(DELETED) else []
                    out.append([row["key"], row.get("left"), row.get("right"), row[TIMESTAMP], *change])
                elif output == CONTROL:
                    element = _ELEMENTS.decode(next(iter(row.values())))
                    if isinstance(element, Watermark):
                        self._current_ms = element.timestamp_ms
                else:
                    late.append([_LATE[output], row["key"], row["value"], row["time"]])
        dropped = outputs.counters.get("dropped_records", 0)
        return {"out": out, "late": late, "dropped": dropped, "current_ms": self._current_ms}


def parse_elements(action: str, argument: Any) -> dict[str, StreamElement[Any]]:
    """The control element of each side that an action gives one."""
    match action:
        case "watermark_ms":
            return dict.fromkeys(SIDES, Watermark(argument))
        case "end_of_input":
            return dict.fromkeys(SIDES, Watermark(MAX_TIMESTAMP_MS))
        case "left" | "right":
            return {action: parse_element(argument)}
        case _:
            return fail_unknown("joins", action)


def parse_join(operator: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The kind of a join, and its arguments as `flowcore.api.joining_stream` names them, in milliseconds.

    Those of a window join are the size and the offset of its windows, besides its own.

    Raises:
        ConfigurationError: The join is unknown.
    """
    match operator["join"]:
        case {"kind": "as-of", **others}:
            return "as-of", {"tolerance": others.get("tolerance_ms")}
        case {"kind": "interval", "before_ms": before_ms, "after_ms": after_ms, **others}:
            lateness_ms = others.get("allowed_lateness_ms", 0)
            return "interval", {"before": before_ms, "after": after_ms, "allowed_lateness": lateness_ms}
        case {"kind": "latest", **others}:
            return "latest", {"load": others.get("load"), "ttl": others.get("ttl_ms")}
        case {"kind": "regular", **others}:
            return "regular", {"ttl": others.get("ttl_ms")}
        case {"kind": "window", "size_ms": size_ms, **others}:
            lateness_ms = others.get("allowed_lateness_ms", 0)
            return "window", {
                "size": size_ms, "offset": others.get("offset_ms", 0), "allowed_lateness": lateness_ms,
            }  # fmt: skip
        case other:
            msg = f"join {other!r} is not in the README: nothing could be run; use one that is"
            raise ConfigurationError(msg)


def require_on_time(timestamp_ms: int | None, watermark_ms: int) -> None:
    """Check that a record that was emitted is not late downstream.

    Raises:
        RunError: The record is late.
    """
    if timestamp_ms is not None and timestamp_ms <= watermark_ms:
        msg = f"a record of {timestamp_ms} was emitted after the watermark {watermark_ms}: it would be late"
        raise RunError(msg)


def _join_config(operator: Mapping[str, Any]) -> JoinConfig:
    columns = ("key", "value", "time") if operator.get("late") == "side-output" else None
    fields: dict[str, Any] = {
        "keys": ("key",), "side": "is_right", "timestamp": "joined", "rows": _ROWS, "how": operator["how"],
        "left": {"left": "value"}, "right": {"right": "value"}, "late_left": columns, "late_right": columns,
    }  # fmt: skip
    match parse_join(operator):
        case "as-of", {"tolerance": tolerance_ms}:
            return AsOfJoin(**fields, tolerance_ms=tolerance_ms)
        case "latest", {"load": load, "ttl": ttl_ms}:
            return LatestJoin(**fields, load=load, ttl_ms=ttl_ms)
        case "regular", {"ttl": ttl_ms}:
            kept_ms = MAX_TIMESTAMP_MS if ttl_ms is None else ttl_ms
            return IntervalJoin(**fields, before_ms=kept_ms, after_ms=kept_ms, time="processing")
        case _, lengths:
            fields |= {"before_ms": lengths.get("before", 0), "after_ms": lengths.get("after", 0)}
            return IntervalJoin(**fields, allowed_lateness_ms=lengths["allowed_lateness"])


def _windows(operator: Mapping[str, Any]) -> TumblingWindows | None:
    """The windows of a window join; None for another join."""
    kind, lengths = parse_join(operator)
    return TumblingWindows(lengths["size"], lengths["offset"]) if kind == "window" else None
