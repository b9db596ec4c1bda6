"""Aggregates folded by column have the values and types that they have record by record."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flowcore.errors import PlanError
from flowcore.windows.built_in import BuiltIn
from flowcore.windows.columnar.accumulators import AccumulatorTable, ColumnarAggregates, result_type

UTC = dt.UTC
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=UTC)
COLUMNS: dict[str, pa.Array[Any]] = {
    "short": pa.array([3, None, -1], pa.int16()),
    "long": pa.array([2**62, None, 2**62], pa.int64()),
    "single": pa.array([0.5, None, 2.5], pa.float32()),
    "when": pa.array([NOON, None, NOON - dt.timedelta(days=1)], pa.timestamp("us", tz="UTC")),
    "day": pa.array([dt.date(2024, 1, 2), None, dt.date(2024, 1, 1)], pa.date32()),
    "true": pa.array([True, None, False]),
    "none": pa.array([None, None, None], pa.int64()),
}
CASES = [
    *(
        (function, column)
        for function in ("sum", "avg", "min", "max", "count")
        for column in ("short", "long", "single")
    ),
    *((function, column) for function in ("min", "max", "count") for column in ("when", "day")),
    *((function, "true") for function in ("count_if", "bool_and", "bool_or", "count")),
    *((function, "none") for function in ("sum", "avg", "min", "max", "count")),
]


@pytest.mark.parametrize(("function", "column"), CASES, ids=[f"{f}({c})" for f, c in CASES])
def test_a_fold_by_column_is_the_fold_by_record(function: str, column: str) -> None:
    """This includes columns of nulls; the type is Spark's."""
    values = COLUMNS[column]
    aggregate = BuiltIn(function, (column,))
    aggregates = ColumnarAggregates((("found", aggregate),), {column: values.type})
    table = AccumulatorTable(aggregates.accumulators)
    rows = pa.record_batch([values], names=[column])
    positions = table.positions(["key"], [pa.array(["key"])])[np.zeros(3, np.int64)]
    for each in aggregates.accumulators:
        table.combine(each, positions, each.values_of(rows))
    kept = aggregate.create()
    for value in values.to_pylist():
        kept = aggregate.add(kept, {column: value})

    found = aggregates.results(table.values())["found"]

    assert found.to_pylist() == [aggregate.result(kept)]
    assert found.type == result_type(aggregate, {column: values.type})


@pytest.mark.parametrize(
    ("aggregate", "kind", "why"),
    [
        (BuiltIn("collect_list", ("c",)), pa.int64(), "collect_list"),
        (BuiltIn("count", ("c",), distinct=True), pa.int64(), "distinct"),
        (BuiltIn("sum", ("c",)), pa.decimal128(10, 2), "not a number of 64 bits"),
        (BuiltIn("max", ("c",)), pa.string(), "not a number of 64 bits"),
        (BuiltIn("sum", ("c",)), pa.date32(), "not a number of 64 bits"),
    ],
    ids=["list", "distinct", "decimal", "text", "sum of dates"],
)
def test_what_numpy_cannot_fold_is_refused_with_the_reason(
    aggregate: BuiltIn, kind: pa.DataType, why: str
) -> None:
    assert why in (ColumnarAggregates.refusal([("found", aggregate)], {"c": kind}) or "")
    assert ColumnarAggregates.refusal([("found", BuiltIn("count", ("c",)))], {"c": kind}) is None


@pytest.mark.parametrize(
    ("aggregate", "kind", "expected"),
    [
        (BuiltIn("sum", ("c",)), pa.decimal128(10, 2), pa.decimal128(20, 2)),
        (BuiltIn("avg", ("c",)), pa.decimal128(10, 2), pa.decimal128(14, 6)),
        (BuiltIn("collect_list", ("c",)), pa.string(), pa.list_(pa.string())),
        (BuiltIn("var_pop", ("c",)), pa.int32(), pa.float64()),
        (BuiltIn("max_by", ("c", "d")), pa.string(), pa.string()),
    ],
    ids=["sum", "average", "list", "variance", "max_by"],
)
def test_results_that_are_folded_by_record_have_sparks_types(
    aggregate: BuiltIn, kind: pa.DataType, expected: pa.DataType
) -> None:
    """Decimals get Spark's precision."""
    assert result_type(aggregate, {"c": kind, "d": pa.int64()}) == expected


@pytest.mark.parametrize(
    "aggregate", [BuiltIn("min", ("c",)), BuiltIn("max_by", ("d", "c"))], ids=lambda each: each.function
)
@pytest.mark.parametrize("nested", [False, True], ids=["map", "in a struct"])
def test_an_order_of_maps_is_refused(aggregate: BuiltIn, nested: bool) -> None:
    kind: pa.DataType = pa.map_(pa.string(), pa.int64())
    types = {"c": pa.struct([("m", kind)]) if nested else kind, "d": pa.int64()}

    with pytest.raises(PlanError, match=r"by 'c' of type .*maps have no order"):
        result_type(aggregate, types)
    assert result_type(BuiltIn("max_by", ("c", "d")), types) == types["c"]
