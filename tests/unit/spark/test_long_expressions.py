"""Long expressions can be sent to workers, or are left to Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from flowcore.keyed.arrow_expressions import Evaluation, Field
from flowcore.spark.frame.arrow_sql import TypedExpression, parse_expression
from flowcore.spark.frame.sql import saturate_times

FIELDS: dict[str, TypedExpression | None] = {"n": (Field("n"), "BIGINT"), "t": (Field("t"), "STRING")}


@pytest.mark.parametrize("values", [1, 260, 5_000])
def test_in_takes_a_list_of_any_length(values: int) -> None:
    """It is one call, which is null where the value is."""
    found = parse_expression(f"n IN ({', '.join(map(str, range(values)))})", FIELDS)

    assert found is not None
    expression = cloudpickle.loads(cloudpickle.dumps(found[0]))
    columns = {"n": pa.array([0, None, values - 1, values])}
    assert Evaluation(columns).value(expression).to_pylist() == [True, None, True, False]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n IN (n, 1)", [True, None, True]),
        ("n NOT IN (1, 7)", [False, None, True]),
        ("7 IN (1, n)", [False, None, False]),
        ("t IN ('a', '')", [True, None, False]),
        ("n IN (2, nullif(1, 1))", [None, None, True]),
        ("n IN (1, 9223372036854775807)", [True, None, False]),
    ],
)
def test_null_is_neither_in_a_list_nor_not_in_it(text: str, expected: list[bool | None]) -> None:
    """Of whole numbers and of text, also if a column is in the list."""
    columns = {"n": pa.array([1, None, 2]), "t": pa.array(["a", None, "b"])}
    found = parse_expression(text, FIELDS)

    assert found is not None
    assert Evaluation(columns).value(found[0]).to_pylist() == expected


@pytest.mark.parametrize("text", ["n IN (1, NULL)", "n IN ('1')", "t IN (1)"])
def test_lists_of_other_types_are_left_to_spark(text: str) -> None:
    """With null in it, a value that is not in the list gives null; a text is cast."""
    assert parse_expression(text, FIELDS) is None


@pytest.mark.parametrize(
    "text",
    [" + ".join(["n"] * 125), " OR ".join(f"n = {number}" for number in range(250)), "NOT " * 250 + "n = 1"],
    ids=["sum", "or", "not"],
)
def test_deep_expressions_are_left_to_spark(text: str) -> None:
    """Python could not pickle them."""
    assert parse_expression(text, FIELDS) is None


def test_column_made_of_columns_counts_with_them() -> None:
    """An expression over many steps is as deep as one that was written at once."""
    value, steps = FIELDS["n"], 0
    while value is not None:
        cloudpickle.dumps(value)
        value, steps = parse_expression("n + n", {"n": value}), steps + 1

    assert 20 < steps < 60


def test_time_of_an_aggregate_has_it_once() -> None:
    """Spark would keep the state of each copy of one that depends on the order of records."""
    assert saturate_times("timestamp_millis(last(at))") == "timestamp_millis(last(at))"
    assert saturate_times("max(timestamp_millis(at))").count("max(") == 1
