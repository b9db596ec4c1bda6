"""Runner of transcripts of kind ``window`` on Spark: each step is one micro-batch of a query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from flowcore.elements import MAX_TIMESTAMP_MS, Watermark
from flowcore.errors import InvalidWindowError, NoTimestampError, RunError
from flowcore.keyed.operator import KeyGroupOperator, StepOutputs
from flowcore.keyed.output_columns import END, LATE, RESULTS, START, TIMESTAMP
from flowcore.testing.stepped_query import SteppedQuery
from flowcore.testing.transcripts.runner import Refused, refusing
from flowcore.testing.transcripts.window import window_config
from flowcore.testing.window_functions import Sum
from flowcore.windows import WindowAggregate, WindowConfig
from flowcore.windows.built_in import BuiltIn, BuiltIns
from flowcore.windows.columnar.keyed import ColumnarWindows
from flowcore.windows.keyed import RecordWindows

__all__ = ["SparkWindowRunner"]

_TYPES: dict[str, pa.DataType] = {"key": pa.string(), "value": pa.int64(), "timestamp_ms": pa.int64()}
_ROWS = pa.schema(_TYPES)
_TOTAL = WindowAggregate(BuiltIns((("value", BuiltIn("sum", ("value",))),)))


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
        windows = _windows(config, pa.list_(pa.int64()) if lists else pa.int64())
        self._query = SteppedQuery(spark, windows, rows=_ROWS, keys=("key",), folder=folder, clock_ms=0)
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
            return self._query.step([dict(zip(_ROWS.names, row, strict=True)) for row in rows])
        except RunError as error:
            for kind, word in ((NoTimestampError, "no-timestamp"), (InvalidWindowError, "invalid-argument")):
                if kind.__name__ in str(error):
                    raise Refused(word) from error
            raise


def _windows(config: WindowConfig, value: pa.DataType) -> KeyGroupOperator:
    """The operator of a live query: columnar where that is possible."""
    columnar = config
    if isinstance(config.function, WindowAggregate) and isinstance(config.function.function, Sum):
        columnar = replace(config, function=_TOTAL)
    if ColumnarWindows.refusal(columnar, _TYPES) is None:
        return ColumnarWindows(
            config=columnar, keys=("key",), timestamp="timestamp_ms", rows=_ROWS, late=tuple(_TYPES)
        )
    return RecordWindows(
        name="windows",
        config=config,
        keys=("key",),
        key_of=_first,
        values=("value",),
        value_of=_value,
        record_of=_record,
        timestamp="timestamp_ms",
        rows=_ROWS,
        results=pa.schema([pa.field("value", value)]),
        late=tuple(_TYPES),
    )


def _first(values: tuple[Any, ...]) -> Any:
    return values[0]


def _value(record: Mapping[str, Any]) -> Any:
    return record["value"]


def _record(value: Any) -> Mapping[str, Any]:
    return {"value": value}
