"""Expressions are evaluated with the logic of SQL, in which null is neither true nor false."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flowcore.keyed.arrow_expressions import (
    ArrowExpression,
    Constant,
    Evaluation,
    Field,
    FunctionCall,
)

COLUMNS: dict[str, pa.Array[Any]] = {
    "n": pa.array([1, 5, None], pa.int32()), "big": pa.array([1, 6, 7], pa.int64()),
    "text": pa.array(["a", None, "ż"]), "flag": pa.array([True, False, None]),
}  # fmt: skip
EMPTY = {name: column.slice(0, 0) for name, column in COLUMNS.items()}
IS_ONE = FunctionCall("equal", (Field("n"), Constant(1)))
HAS_NONE = FunctionCall("is_null", (Field("n"),))
BIG, SMALL = (FunctionCall("text", (Field(name),)) for name in ("big", "n"))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (Field("flag"), [True, False, None]),
        (IS_ONE, [True, False, None]),
        (FunctionCall("less", (Field("n"), Field("big"))), [False, True, None]),
        (FunctionCall("equal", (Field("text"), Constant("ż"))), [False, None, True]),
        (FunctionCall("is_null", (Field("n"),)), [False, False, True]),
        (FunctionCall("invert", (Field("flag"),)), [False, True, None]),
        (FunctionCall("and_kleene", (Field("flag"), IS_ONE)), [True, False, None]),
        (
            FunctionCall("or_kleene", (Field("flag"), FunctionCall("is_null", (Field("n"),)))),
            [True, False, True],
        ),
    ],
    ids=repr,
)
def test_null_is_neither_true_nor_false(condition: ArrowExpression, expected: list[bool | None]) -> None:
    """In comparisons and in logic, of columns of different sizes."""
    assert Evaluation(COLUMNS).value(condition).to_pylist() == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (FunctionCall("case", (Field("flag"), Field("text"), Constant("no"))), ["a", "no", "no"]),
        (FunctionCall("case", (Field("flag"), Field("text"), Constant(None))), ["a", None, None]),
        (FunctionCall("coalesce", (Constant(None), Field("text"), Constant("x"))), ["a", "x", "ż"]),
        (FunctionCall("nullif", (Field("text"), Constant("a"))), [None, None, "ż"]),
        (
            FunctionCall("concat", (Field("text"), Constant(":"), BIG)),
            ["a:1", None, "ż:7"],
        ),
        (
            FunctionCall("concat_ws", (Constant(":"), Field("text"), SMALL)),
            ["a:1", "5", "ż"],
        ),
        (FunctionCall("concat", (Constant("a"), Constant(None))), [None, None, None]),
        (Constant("same"), ["same", "same", "same"]),
    ],
    ids=repr,
)
def test_texts_are_joined_and_chosen(expression: ArrowExpression, expected: list[str | None]) -> None:
    """A condition that is null chooses nothing; concat of a null is null, and concat_ws leaves it out."""
    assert Evaluation(COLUMNS).column(expression, 3, pa.string()).to_pylist() == expected


def test_time_that_has_no_microseconds_is_no_error() -> None:
    """Which rows have such a time is another condition of the same expression."""
    columns: dict[str, pa.Array[Any]] = {"at": pa.array([1_500, 1 << 62])}
    expression = FunctionCall("timestamp_millis", (Field("at"),))

    found = Evaluation(columns).column(expression, 2, pa.timestamp("us", "UTC"))

    assert found.cast(pa.int64())[0].as_py() == 1_500_000


def test_value_that_no_row_has_still_has_its_type() -> None:
    """Logic and the length of it work in a batch in which no condition is true, and in an empty one."""
    chosen = FunctionCall(
        "case", (Field("flag"), FunctionCall("greater", (Field("n"), Constant(0))), Constant(None))
    )
    text = FunctionCall("case", (Field("flag"), Field("text"), Constant(None)))
    for columns in ({name: column.slice(1, 1) for name, column in COLUMNS.items()}, EMPTY):
        evaluation = Evaluation(columns)

        assert evaluation.value(FunctionCall("and_kleene", (chosen, chosen))).type == pa.bool_()
        assert evaluation.value(FunctionCall("octet_length", (text,))).type == pa.int32()


def test_a_part_is_computed_once() -> None:
    """Columns that are made of each other would take twice as long with each step."""
    value: ArrowExpression = Field("big")
    for _ in range(60):
        value = FunctionCall("add", (value, value))

    assert Evaluation(COLUMNS).value(value)[0].as_py() == 1 << 60
