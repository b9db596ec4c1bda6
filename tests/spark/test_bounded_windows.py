"""Windows over bounded input assign rows as the assigners do and give the pure operators' results."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flowcore import EndOfStream, Flow, Parquet, Sliding, Tumbling
from flowcore.api.operators import Window
from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.errors import RunError
from flowcore.spark.operators import batch
from flowcore.windows import WindowAssigner

pytestmark = pytest.mark.spark

Run = Callable[..., Any]
Rows = Callable[[str], list[tuple[Any, ...]]]

ROWS = "key STRING, number BIGINT, at BIGINT"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR_MS = 3_600_000


def _data(*, ends: bool) -> list[tuple[str | None, int, int]]:
    """Unsorted rows around 1970 and, with ``ends``, at both ends of 64-bit time."""
    chosen = random.Random(7)  # noqa: S311 - no secret
    times = [chosen.randrange(-40_000, 40_000) for _ in range(120)]
    times += [0, -1, 1, 9_999, 10_000, -10_000, -10_001]
    if ends:
        for far in (0, 1, 2_999, 3_000, 9_999, 12_345):
            times += [MIN_TIMESTAMP_MS + far, MAX_TIMESTAMP_MS - far]
    return [(chosen.choice(["a", "b", None]), number, at) for number, at in enumerate(times)]


def _shown(time_ms: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return None


def _expected(assigner: WindowAssigner, rows: list[tuple[str | None, int, int]]) -> list[tuple[Any, ...]]:
    """One row for each key and window, computed in plain Python."""
    found: dict[Any, list[int]] = defaultdict(list)
    for key, number, at in rows:
        for window in assigner.assign(at):
            found[key, window].append(number)
    return [
        (key, sum(numbers), len(numbers), _shown(window.start_ms), _shown(window.end_ms), 1, False)
        for (key, window), numbers in found.items()
    ]


def _in_one_order(rows: list[tuple[Any, ...]]) -> list[str]:
    return sorted(map(repr, rows))


@pytest.mark.parametrize(
    "windows",
    [
        Tumbling(10),
        Tumbling(10, offset=-3.5),
        Sliding(10, slide=5),
        Sliding(10, slide=3, offset=1.25),
        Sliding(0.01, slide=0.004),
    ],
    ids=repr,
)
def test_native_windows_start_as_the_assigners_compute(spark: SparkSession, windows: Any) -> None:
    """Starts are right before 1970, with offsets, for uneven slides, and at both ends of 64-bit time."""
    rows = _data(ends=True)
    stream = Flow("f").read("in", Parquet("in", schema=ROWS))
    window = stream.window(windows, by="key", timestamp="at").aggregate(total="sum(number)", n="count(*)")
    node = window.operator
    assert isinstance(node, Window)
    assert node.compiled().value == "native"
    frame = spark.createDataFrame(rows, ROWS).repartition(3)
    result = batch.apply_native(node, {node.inputs[0]: frame})
    assert result.columns == list(node.columns)
    found = [
        tuple(value.replace(tzinfo=UTC) if isinstance(value, datetime) else value for value in row)
        for row in result.collect()
    ]
    assert _in_one_order(found) == _in_one_order(_expected(node.config.assigner, rows))


@pytest.fixture
def visits(tmp_path: Path) -> list[tuple[str | None, int, int]]:
    """A table ``visits`` in two files, not sorted by time."""
    rows = _data(ends=False)
    (tmp_path / "visits").mkdir()
    for part in (0, 1):
        keys, numbers, times = map(list, zip(*rows[part::2], strict=True))
        table = pa.table({
            "key": pa.array(keys), "number": numbers, "at": pa.array(times),
            "stamp": pa.array([at * 1000 for at in times], pa.timestamp("us", tz="UTC")),
        })  # fmt: skip
        pq.write_table(table, tmp_path / "visits" / f"part-{part}.parquet")
    return rows


VISITS = Parquet("visits", schema=f"{ROWS}, stamp TIMESTAMP")


@pytest.mark.usefixtures("visits")
def test_native_windows_give_what_duckdb_gives(run: Run, rows: Rows) -> None:
    """Windows by a TIMESTAMP, with and without a key, and until the end of input, are right."""
    flow = Flow("f")
    read = flow.read("visits", VISITS)
    read.window(Tumbling(7), by="key", timestamp="stamp", name="a").aggregate(n="count(*)").write(
        "keyed", Parquet("keyed")
    )
    read.window(Tumbling(7), timestamp="stamp + interval 1 hour", name="b").aggregate(
        top="max(number)"
    ).write("whole", Parquet("whole"))
    read.window(EndOfStream(), name="c").aggregate(top="max(number)").write("end", Parquet("end"))
    run(flow)
    start = "floor(epoch_ms(stamp) / 7000.0)::BIGINT * 7000"
    assert rows("""select key, n, epoch_ms(window_start), epoch_ms(window_end), firing, is_late
        from '{dir}/keyed/*.parquet'""") == rows(
        f"""select key, count(*), {start}, {start} + 7000, 1, false
        from '{{dir}}/visits/*.parquet' group by all"""  # noqa: S608
    )
    later = f"floor((epoch_ms(stamp) + {_HOUR_MS}) / 7000.0)::BIGINT * 7000"
    assert rows("select top, epoch_ms(window_start) from '{dir}/whole/*.parquet'") == rows(
        f"select max(number), {later} from '{{dir}}/visits/*.parquet' group by 2"  # noqa: S608
    )
    assert rows("select top, window_start, window_end, firing, is_late from '{dir}/end/*.parquet'") == [
        (126, None, None, 1, False)
    ]


def test_row_without_timestamp_is_refused_by_name(run: Run, tmp_path: Path) -> None:
    """The row would belong to no window, so the run fails instead of dropping it."""
    (tmp_path / "visits").mkdir()
    table = pa.table({"key": ["a", "b"], "number": [1, 2], "at": pa.array([5, None], pa.int64())})
    pq.write_table(table, tmp_path / "visits" / "part-0.parquet")
    flow = Flow("f")
    windows = flow.read("in", Parquet("visits", schema=ROWS)).window(Tumbling(1), by="key", timestamp="at")
    windows.aggregate(n="count(*)").write("out", Parquet("out"))
    with pytest.raises(RunError, match=r"the record \{\"key\":\"b\",\"at\":null\} has no timestamp: it belo"):
        run(flow)
    assert not (tmp_path / "out").exists()
