"""Joins by time of two bounded inputs agree with nested loops over all rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import SparkSession

from flowcore import Flow, Parquet, Stream, Tumbling
from flowcore.elements import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from flowcore.spark.operators import batch

pytestmark = pytest.mark.spark

LEFT, RIGHT = "key STRING, l BIGINT, at BIGINT", "k STRING, r BIGINT, seen TIMESTAMP, tags MAP<STRING, INT>"
BEFORE_MS, AFTER_MS, SIZE_MS, OFFSET_MS = 30, 50, 40, 7
KINDS = ("inner", "left", "right", "full", "semi", "anti")


class Row(NamedTuple):
    """A row of either side."""

    key: str | None
    value: int
    at: int


def _rows(seed: int, count: int = 60) -> list[Row]:
    """Rows around 1970, some with equal times, without key, or of a key that the other side lacks."""
    chance = random.Random(seed)  # noqa: S311 - test data
    keys = ["a", "b", "c", None, f"only {seed}"]
    return [Row(chance.choice(keys), number, chance.randrange(-150, 150)) for number in range(count)]


def _joined(spark: SparkSession, declare: Callable[[Stream, Stream], Stream]) -> list[tuple[Any, ...]]:
    """The output over the rows of seeds 1 and 2."""
    flow = Flow("f")
    one = flow.read("one", Parquet("one", schema=LEFT))
    other = flow.read("other", Parquet("other", schema=RIGHT))
    node = declare(one, other).operator
    assert node.bounded
    assert node.compiled().value == "native"
    left = spark.createDataFrame([tuple(each) for each in _rows(1)], LEFT)
    seen = [(each.key, each.value, _time(each.at), {"n": each.value}) for each in _rows(2)]
    right = spark.createDataFrame(seen, RIGHT)
    result = batch.apply_native(
        node, {one.operator: left.repartition(3), other.operator: right.repartition(2)}
    )
    assert result.columns == list(node.columns)
    return [tuple(row) for row in result.drop("tags").collect()]


def _time(at: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at)


def _pairs(how: str, matches: Callable[[Row, Row], bool]) -> Iterator[tuple[Row | None, Row | None]]:
    """What a join has of the rows of seeds 1 and 2."""
    lefts, rights = _rows(1), _rows(2)
    found = [
        (one, two)
        for one in lefts
        for two in rights
        if one.key is not None and one.key == two.key and matches(one, two)
    ]
    if how in ("semi", "anti"):
        have = {one for one, _ in found}
        yield from ((one, None) for one in lefts if (one in have) == (how == "semi"))
        return
    yield from found
    if how in ("left", "full"):
        yield from ((one, None) for one in lefts if one not in {each for each, _ in found})
    if how in ("right", "full"):
        yield from ((None, two) for two in rights if two not in {each for _, each in found})


def _output(how: str, one: Row | None, two: Row | None) -> tuple[Any, ...]:
    """Key and columns of both sides as the output has them."""
    key = one.key if one else two.key if two else None
    mine = (one.value, one.at) if one else (None, None)
    theirs = (two.value, _time(two.at).replace(tzinfo=None)) if two else (None, None)
    return (key, *mine, *(() if how in ("semi", "anti") else theirs))


def _same(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    assert expected
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


@pytest.mark.parametrize("how", KINDS[:4])
def test_interval_join_has_the_pairs_within_its_bounds(spark: SparkSession, how: Any) -> None:
    """Both bounds belong to the interval."""
    found = _joined(
        spark,
        lambda one, other: one.join_interval(
            other,
            on={"key": "k"},
            before=timedelta(milliseconds=BEFORE_MS),
            after=timedelta(milliseconds=AFTER_MS),
            how=how,
            timestamps=("at", "seen"),
        ),
    )
    near = _pairs(how, lambda one, two: one.at - BEFORE_MS <= two.at <= one.at + AFTER_MS)
    _same(found, [_output(how, *each) for each in near])


@pytest.mark.parametrize("how", KINDS)
def test_window_join_has_the_pairs_of_a_window_with_its_bounds(spark: SparkSession, how: Any) -> None:
    """Before 1970 and with an offset, too."""
    windows = Tumbling(SIZE_MS / 1000, offset=OFFSET_MS / 1000)
    found = _joined(
        spark,
        lambda one, other: one.join_window(
            other, windows, on={"key": "k"}, how=how, timestamps=("at", "unix_millis(seen)")
        ),
    )

    def start(row: Row | None) -> int:
        assert row is not None
        return (row.at - OFFSET_MS) // SIZE_MS * SIZE_MS + OFFSET_MS

    expected = [
        (
            *_output(how, one, two),
            *(_time(start(one or two) + each).replace(tzinfo=None) for each in (0, SIZE_MS)),
        )
        for one, two in _pairs(how, lambda one, two: start(one) == start(two))
    ]
    _same(found, expected)


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("tolerance_ms", [None, 0, 20])
def test_as_of_join_has_the_newest_right_row(spark: SparkSession, how: Any, tolerance_ms: int | None) -> None:
    """Of equal times the last in order of the other columns; one that is too old hides no older one."""
    tolerance = None if tolerance_ms is None else timedelta(milliseconds=tolerance_ms)
    found = _joined(
        spark,
        lambda one, other: one.join_asof(
            other, on={"key": "k"}, tolerance=tolerance, how=how, timestamps=("at", "seen")
        ),
    )
    expected = []
    for one in _rows(1):
        oldest = MIN_TIMESTAMP_MS if tolerance_ms is None else one.at - tolerance_ms
        near = [two for two in _rows(2) if two.key == one.key is not None and oldest <= two.at <= one.at]
        newest = max(near, key=lambda two: (two.at, two.value), default=None)
        if newest or how == "left":
            expected.append(_output(how, one, newest))
    _same(found, expected)


def test_bounds_beyond_64_bits_are_those_of_all_times(spark: SparkSession) -> None:
    """Rows at both ends of 64-bit time have partners, and no sum overflows."""
    flow = Flow("f")
    one, other = (flow.read(name, Parquet(name, schema=f"{name} BIGINT, k INT")) for name in ("x", "y"))
    node = one.join_interval(
        other, on="k", before=timedelta(days=1), after=timedelta(days=1), timestamps=("x", "y")
    ).operator
    ends = [MIN_TIMESTAMP_MS, MIN_TIMESTAMP_MS + 5, MAX_TIMESTAMP_MS - 5, MAX_TIMESTAMP_MS]
    frames = (spark.createDataFrame([(at, 1) for at in ends], f"{name} BIGINT, k INT") for name in ("x", "y"))

    found = batch.apply_native(node, dict(zip(node.inputs, frames, strict=True))).select("x", "y").collect()

    assert sorted(map(tuple, found)) == sorted(
        (first, second) for first in ends for second in ends if (first < 0) == (second < 0)
    )


def test_row_without_time_fails_the_stage_with_its_key(spark: SparkSession) -> None:
    """Its partners are not known."""
    flow = Flow("f")
    one, other = (flow.read(name, Parquet(name, schema=f"{name} BIGINT, k INT")) for name in ("x", "y"))
    node = one.join_asof(other, on="k", timestamps=("x", "nullif(y, 3)"), name="j").operator
    frames = (spark.createDataFrame([(3, 1)], f"{name} BIGINT, k INT") for name in ("x", "y"))

    with pytest.raises(SparkRuntimeException) as failed:
        batch.apply_native(node, dict(zip(node.inputs, frames, strict=True))).collect()

    text = str(failed.value)
    assert """operator 'j': the record {"k":1,"y":3} has no timestamp""" in text
    assert "let timestamps=('x', 'nullif(y, 3)') give every row one" in text


def test_no_row_of_a_bounded_join_is_late(spark: SparkSession) -> None:
    """Its side outputs are empty, with the columns of their sides."""
    flow = Flow("f")
    one, other = (flow.read(name, Parquet(name, schema=f"{name} BIGINT, k INT")) for name in ("x", "y"))
    joined = one.join_window(other, Tumbling(1), on="k", timestamps=("x", "y"), late="side-output")
    frames = {
        each.operator: spark.createDataFrame([(3, 1)], f"{name} BIGINT, k INT")
        for name, each in (("x", one), ("y", other))
    }
    frames[joined.operator] = batch.apply_native(joined.operator, frames)

    for late, columns in ((joined.late_left, ["x", "k"]), (joined.late_right, ["y", "k"])):
        found = batch.apply_native(late.operator, frames)
        assert found.columns == columns
        assert found.isEmpty()


@pytest.mark.parametrize("how", ["semi", "anti"])
def test_rows_may_be_joined_with_windows_and_leave_them(spark: SparkSession, how: Any) -> None:
    """The other side has columns of windows, as this join has."""
    flow = Flow("f")
    one = flow.read("one", Parquet("one", schema=LEFT))
    windows = flow.read("other", Parquet("other", schema=RIGHT)).with_columns(
        window_start="seen", window_end="seen"
    )
    node = one.join_window(
        windows, Tumbling(SIZE_MS / 1000), on={"key": "k"}, how=how, timestamps=("at", "window_start")
    ).operator
    left = spark.createDataFrame([tuple(each) for each in _rows(1)], LEFT)
    seen = [(each.key, each.value, _time(each.at), {"n": each.value}) for each in _rows(2)]
    right = spark.createDataFrame(seen, RIGHT).selectExpr("*", "seen AS window_start", "seen AS window_end")

    found = batch.apply_native(node, {one.operator: left, windows.operator: right})

    pairs = _pairs(how, lambda one, two: one.at // SIZE_MS == two.at // SIZE_MS)
    assert found.columns == list(node.columns)
    assert sorted(row["l"] for row in found.collect()) == sorted(mine.value for mine, _ in pairs if mine)
