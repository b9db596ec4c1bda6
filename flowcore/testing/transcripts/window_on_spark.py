"""Transcripts of kind ``window`` on Spark: each step is one micro-batch of a query on key groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS, Watermark
from flowcore.errors import InvalidWindowError, NoTimestampError, RunError
from flowcore.keyed.operator import KeyGroupOperator, StepOutputs
from flowcore.keyed.output_columns import END, RESULTS, START, TIMESTAMP
from flowcore.testing.stepped_query import SteppedQuery
from flowcore.testing.transcripts.runner import Refused
from flowcore.testing.transcripts.window import window_config
from flowcore.testing.window_functions import Sum
from flowcore.windows import WindowAggregate, WindowConfig
from flowcore.windows.built_in import BuiltIn, BuiltIns
from flowcore.windows.columnar.keyed import ColumnarWindows
from flowcore.windows.keyed import RecordWindows

__all__ = ["WindowSteps"]

_TYPES: dict[str, pa.DataType] = {"key": pa.string(), "value": pa.int64(), "timestamp_ms": pa.int64()}
_ROWS = pa.schema(_TYPES)
_TOTAL = WindowAggregate(BuiltIns((("value", BuiltIn("sum", ("value",))),)))


class WindowSteps:
    """Windows in the course of one transcript.

    Args:
        operator: What the transcript says of them.
        spark: A session with the configuration of live queries.
        folder: An empty folder.
    """

    def __init__(self, operator: Mapping[str, Any], spark: Any, folder: Path) -> None:
        try:
            config = window_config(operator)
        except InvalidWindowError as error:
            word = "invalid-argument"
            raise Refused(word) from error
        listing = operator.get("aggregate") == "list"
        self._steps = SteppedQuery(
            spark, _operator(config, listing=listing), rows=_ROWS, keys=("key",), folder=folder, clock_ms=0
        )
        self._steps.__enter__()

    def close(self) -> None:
        """Stop the query."""
        self._steps.__exit__(None, None, None)

    def act(self, action: str, argument: Any, /) -> Mapping[str, Any]:
        """Do one step and say what was seen."""
        match action:
            case "in":
                seen = self._feed(argument)
            case "watermark_ms":
                seen = self._steps.step([Watermark(argument)])
            case "processing_time_ms":
                self._steps.clock_ms = argument
                seen = self._steps.step([])
            case "end_of_input":
                seen = self._steps.step([Watermark(MAX_TIMESTAMP_MS)])
            case _:
                self._steps.restart()
                return {}
        rows = {name: [row for output, batch in seen.batches if output == name for row in batch.to_pylist()]
                for name in (RESULTS, "late")}  # fmt: skip
        return {
            "out": [
                [row["key"], row["value"], row[TIMESTAMP], [row[START], row[END]]] for row in rows[RESULTS]
            ],
            "late": [list(row.values()) for row in rows["late"]],
            "dropped": seen.counters.get("dropped_records", 0),
        }

    def _feed(self, rows: Any) -> StepOutputs:
        try:
            return self._steps.step([dict(zip(_ROWS.names, row, strict=True)) for row in rows])
        except RunError as error:
            for kind, word in ((NoTimestampError, "no-timestamp"), (InvalidWindowError, "invalid-argument")):
                if kind.__name__ in str(error):
                    raise Refused(word) from error
            raise


def _operator(config: WindowConfig, *, listing: bool) -> KeyGroupOperator:
    types = {field.name: field.type for field in _ROWS}
    folded = config
    if isinstance(config.function, WindowAggregate) and isinstance(config.function.function, Sum):
        folded = replace(config, function=_TOTAL)
    if ColumnarWindows.refusal(folded, types) is None:
        return ColumnarWindows(
            config=folded, keys=("key",), timestamp="timestamp_ms", rows=_ROWS, late=tuple(types)
        )
    value = pa.list_(pa.int64()) if listing else pa.int64()
    return RecordWindows(
        name="windows",
        config=config,
        keys=("key",),
        key_of=_only,
        values=("value",),
        value_of=_value,
        record_of=_record,
        timestamp="timestamp_ms",
        rows=_ROWS,
        results=pa.schema([pa.field("value", value)]),
        late=tuple(types),
    )


def _only(values: tuple[Any, ...]) -> Any:
    return values[0]


def _value(record: Mapping[str, Any]) -> Any:
    return record["value"]


def _record(value: Any) -> Mapping[str, Any]:
    return {"value": value}
