"""Key groups over bounded input: records in order of time, then the end; and nothing without records."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from flowcore import KeyedProcessFunction
from flowcore.errors import FunctionError
from flowcore.keyed.bounded import run_on_bounded
from flowcore.keyed.output_columns import RESULTS
from flowcore.process.keyed import KeyedProcesses
from flowcore.process.outputs import side_output_name

ROWS = pa.schema([("user", pa.string()), ("at", pa.int64()), ("n", pa.int64())])
NUMBERS = pa.schema([("n", pa.int64())])


class _Noted(KeyedProcessFunction):
    """Emits its input and the time of its last opening; records its calls in a list."""

    def __init__(self, life: list[str]) -> None:
        self.life = life

    def open(self, context: Any) -> None:
        self.life.append("open")
        self.total = context.value_state("total", "BIGINT")

    def process(self, record: Mapping[str, Any], context: Any) -> Iterator[dict[str, Any]]:
        self.total.set(self.total.get(0) + record["n"])
        context.register_event_timer(context.timestamp_ms)
        if record["n"] < 0:
            context.side_output("odd", {"n": record["n"]})
        yield {"n": record["n"]} if record["n"] != 99 else {"m": 1}

    def on_timer(self, time_ms: int, context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002
        self.life.append("timer")
        yield {"n": 1000 + self.total.get()}

    def close(self) -> None:
        self.life.append("close")


def _run(life: list[str], *batches: list[dict[str, Any]]) -> list[tuple[str, list[int]]]:
    process = KeyedProcesses(
        name="noted", function=_Noted(life), keys=("user",), values=("n",), timestamp="at", rows=ROWS,
        results=NUMBERS, side_outputs={"odd": NUMBERS},
    )  # fmt: skip
    given = (pa.RecordBatch.from_pylist(batch, schema=ROWS) for batch in batches)
    return [
        (name, rows["n"].to_pylist()) for name, rows in run_on_bounded(process, given, processing_time_ms=5)
    ]


def test_timers_are_due_when_the_records_have_ended() -> None:
    life: list[str] = []
    first = [{"user": "a", "at": 1, "n": 3}, {"user": "b", "at": 1, "n": -4}]
    assert _run(life, first, [{"user": "a", "at": 2, "n": 5}]) == [
        (RESULTS, [3, -4]),
        (side_output_name("odd"), [-4]),
        (RESULTS, [5]),
        (RESULTS, [1008, 996, 1008]),
    ]
    assert life == ["open", "timer", "timer", "timer", "close"]


class _Backlog(KeyedProcessFunction):
    """Emits the backlog status of its records."""

    def process(self, record: Mapping[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002
        yield {"n": int(context.is_backlog)}


def test_bounded_records_are_backlog() -> None:
    process = KeyedProcesses(
        name="backlog", function=_Backlog(), keys=("user",), values=("n",), timestamp="at", rows=ROWS,
        results=NUMBERS, side_outputs={},
    )  # fmt: skip
    given = pa.RecordBatch.from_pylist([{"user": "a", "at": 1, "n": 3}], schema=ROWS)

    assert [rows["n"].to_pylist() for _, rows in run_on_bounded(process, [given], processing_time_ms=5)] == [
        [1]
    ]


def test_without_records_no_function_is_opened() -> None:
    life: list[str] = []
    assert _run(life) == []
    assert life == []


def test_function_that_fails_is_named() -> None:
    with pytest.raises(FunctionError, match=r"operator 'noted': its function raised TypeError"):
        _run([], [{"user": "a", "at": 1, "n": None}])


def test_record_of_other_columns_is_refused_by_name() -> None:
    with pytest.raises(
        FunctionError, match=r"operator 'noted': its function emitted \{'m': 1\}, which is not a record of"
    ):
        _run([], [{"user": "a", "at": 1, "n": 99}])
