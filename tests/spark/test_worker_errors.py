"""An exception in a Spark worker reaches the user with its own message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowcore import Flow, Parquet
from flowcore.elements import Record, Watermark
from flowcore.errors import RunError
from flowcore.serializers import ValueOnlySerializer
from flowcore.serializers.formats import RawFormat

pytestmark = pytest.mark.spark


def _ask_for_a_timestamp() -> None:
    assert ValueOnlySerializer(RawFormat(), "clicks").decode(b"x").timestamp_ms


def _send_a_watermark() -> None:
    ValueOnlySerializer(RawFormat(), "clicks").encode(Watermark(7))


def _divide() -> None:
    Record(1 / len([]), 5)


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        (
            _ask_for_a_timestamp,
            "operator 'clicks' reads the timestamp of a record that was read value-only",
        ),
        (
            _send_a_watermark,
            r"operator 'clicks' sends Watermark\(timestamp_ms=7\), but its output is value-only",
        ),
        (_divide, "a Python function raised ZeroDivisionError: division by zero"),
    ],
    ids=["timestamp", "watermark", "function"],
)
def test_error_in_a_worker_keeps_its_message(
    run: Callable[[Flow], Any], tmp_path: Path, fails: Callable[[], None], says: str
) -> None:
    """The error has the message and the operator's name, without a stack of Java or Python."""

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fails()
        yield from batches

    pq.write_table(pa.table({"a": [1]}), tmp_path / "in.parquet")
    flow = Flow("f")
    read = flow.read("in", Parquet("in.parquet", schema="a BIGINT"))
    read.apply(lambda frame: frame.mapInArrow(fail, "a BIGINT"), name="strict").write("out", Parquet("out"))

    with pytest.raises(RunError, match=says) as caught:
        run(flow)

    assert "stage 'out' failed" in str(caught.value)
    for stack in ("Traceback", "org.apache", "File "):
        assert stack not in str(caught.value)
