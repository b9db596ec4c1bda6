"""Windows with a buffer are one operator with one state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from flowcore.elements import (
    Record,
    RecordAttributes,
    Watermark,
)
from flowcore.flush import BufferOutput
from flowcore.flush.buffered import BufferedOperator
from flowcore.flush.operator import FlushBuffers
from flowcore.keyed.operator import CONTROL, KeyGroup, StepOutputs
from flowcore.keyed.output_columns import RESULTS, TIMESTAMP
from flowcore.testing.record_buffer import RecordBuffer
from flowcore.windows import TumblingWindows, WindowAggregate, WindowConfig
from flowcore.windows.built_in import BuiltIn, BuiltIns
from flowcore.windows.columnar.keyed import ColumnarWindows
from tests.unit.flush.buffer_steps import ROWS, TAGGED, Item, Worker, packed, rising, workers

WINDOWS = ColumnarWindows(
    config=WindowConfig(
        assigner=TumblingWindows(10),
        function=WindowAggregate(BuiltIns((("total", BuiltIn("sum", ("value",))),))),
        allowed_lateness_ms=20,
        late="side-output",
    ),
    keys=("key",),
    timestamp="t",
    rows=ROWS,
    late=("key", "value", "t"),
)
"""They emit again for late records, and put later ones out."""
BOTH = BufferedOperator(
    operator=WINDOWS,
    buffer=FlushBuffers(
        config=BufferOutput(interval_ms=10),
        quiet_ms=0,
        keys=("key", "@start_ms", "@end_ms"),
        timestamp=TIMESTAMP,
        rows=WINDOWS.outputs[RESULTS],
    ),
)
timed = st.tuples(st.sampled_from("ab"), st.integers(1, 9), st.integers(0, 40))
event_times = st.lists(
    st.tuples(
        st.integers(0, 7),
        st.lists(
            st.one_of(timed, timed, st.just("watermark"), st.builds(RecordAttributes, st.booleans())),
            max_size=6,
        ),
    ),
    max_size=12,
)


def emitted(out: StepOutputs) -> list[tuple[str, Any]]:
    """Each output with its name."""
    return [
        (output, TAGGED.decode(row["element"]) if output == CONTROL else tuple(row.values()))
        for output, batch in out.batches
        for row in batch.to_pylist()
    ]


def without_buffer(windows: KeyGroup, items: Sequence[Item]) -> Iterator[tuple[str, Any]]:
    """Output of the windows in a step, with the watermarks between."""
    for item in items:
        out = StepOutputs()
        if isinstance(item, Watermark):
            windows.advance_watermark(item.timestamp_ms, out)
        elif isinstance(item, tuple):
            windows.rows(pa.record_batch([[value] for value in item], schema=ROWS), out)
        yield from emitted(out)
        if isinstance(item, Watermark | RecordAttributes):
            yield CONTROL, item


def buffered(buffer: RecordBuffer[Any, Any], came: list[tuple[str, Any]], now_ms: int) -> list[Any]:
    """Output of the pure buffer for it; empty input gives empty output."""
    found = [*buffer.poll(now_ms)]
    for output, what in came:
        if output == RESULTS:
            row = dict(zip(WINDOWS.outputs[RESULTS].names, what, strict=True))
            latest = Record(what, row[TIMESTAMP])
            found += buffer.record((row["key"], row["@start_ms"]), latest, now_ms)
        elif output == CONTROL:
            found += buffer.control(what, now_ms)
    return [(RESULTS, each.value) if isinstance(each, Record) else (CONTROL, each) for each in found]


@given(event_times, workers, st.sampled_from([0, 300, 1 << 20]))
def test_buffered_windows_emit_what_a_buffer_downstream_of_windows_does(
    happened: list[tuple[int, list[Any]]], taken_by: list[int], smallest_log: int
) -> None:
    """One operator with one state emits what two operators emit; late records are not buffered."""
    both = Worker(BOTH, 3, smallest_log)
    windows, pure, now_ms = WINDOWS.open(), RecordBuffer[Any, Any](BOTH.buffer.config), 0

    for number, (moves, items) in enumerate(rising(happened)):
        now_ms += moves
        if number == 0:
            pure = RecordBuffer(BOTH.buffer.config, now_ms)
        worker = both.remembered[taken_by[number]]
        came = list(without_buffer(windows, items))
        expected = buffered(pure, came, now_ms)
        if all(isinstance(item, RecordAttributes) for item in items):
            released = pure.input_idle(now_ms)
            expected += [
                (RESULTS, each.value) if isinstance(each, Record) else (CONTROL, each) for each in released
            ]

        found = emitted(both.runtime.step(0, packed(items), now_ms, both.store, worker).outputs)

        assert [each for each in found if each[0] == "late"] == [each for each in came if each[0] == "late"]
        assert [each for each in found if each[0] != "late"] == expected
