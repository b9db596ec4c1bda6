"""The watermark of a key group, from what tasks report of the partitions of its sources."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flowcore.errors import FunctionError
from flowcore.keyed.control import decode_control
from flowcore.keyed.packing import InputColumns, Packing, Recipient
from flowcore.watermarks import periodic
from flowcore.watermarks.generated import NewestTimes
from flowcore.watermarks.progress import WatermarkProgress, WatermarkSource


def _four_seconds_behind(timestamps: pa.Array[int]) -> int | None:
    newest = pc.max(timestamps).as_py()
    return None if newest is None else newest - 4_000


def _packing(function: object) -> Packing:
    inputs = InputColumns(channel="partition", offset="offset", newest="newest")
    return Packing(
        inputs=inputs,
        sources=("bids",),
        key_groups=1,
        recipients=(Recipient(key_group="key_group", columns=("v",)),),
        functions={"bids": function},  # type: ignore[dict-item]
    )


def _batch(*timestamps_ms: int | None) -> pa.RecordBatch:
    count = len(timestamps_ms)
    return pa.record_batch(
        {
            "key_group": pa.array([0] * count, pa.int32()),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "newest": pa.array(timestamps_ms, pa.int64()),
            "v": pa.array(range(count), pa.int64()),
        }
    )


def _progress() -> WatermarkProgress:
    strategy = periodic(_four_seconds_behind)
    return WatermarkProgress({"bids": WatermarkSource(strategy, ("0",))})


@pytest.mark.parametrize(
    ("times_ms", "newest_ms"), [((None, None), None), ((9_000, None, 10_000), 6_000)], ids=["none", "some"]
)
def test_function_gets_no_null(times_ms: tuple[int | None, ...], newest_ms: int | None) -> None:
    """A process function may read records without event time, and the function need not know that."""
    (*_, last) = _packing(lambda times: int(times.to_numpy().max()) - 4_000).run([_batch(*times_ms)])

    (row,) = last.to_pylist()
    found = decode_control(((row["channel"], row["payload"]),)).newest["bids"]
    assert found.times_ms.tolist() == NewestTimes.of({"0": newest_ms}).times_ms.tolist()


def test_progress_applies_a_function_once_to_the_timestamps_of_a_batch() -> None:
    """The task that reads a partition calls the function; a key group takes its result as it is."""
    (*_, last) = _packing(_four_seconds_behind).run([_batch(9_000, None, 10_000)])
    (row,) = last.to_pylist()
    progress = _progress()
    progress.take("bids", decode_control(((row["channel"], row["payload"]),)).newest["bids"])
    progress.poll(0)

    assert progress.watermark_ms == 6_000


def test_progress_keeps_its_watermark_when_a_function_reports_nothing() -> None:
    """A batch without timestamps does not advance the watermark."""
    progress = _progress()
    progress.take("bids", NewestTimes.of({"0": 6_000}))
    progress.take("bids", NewestTimes.of({"0": None}))
    progress.poll(0)

    assert progress.watermark_ms == 6_000


def test_packing_refuses_a_function_whose_result_is_not_a_time() -> None:
    """No operator downstream could read a text as a time."""
    with pytest.raises(FunctionError, match="not a time"):
        list(_packing(lambda _: "soon").run([_batch(1_000)]))
