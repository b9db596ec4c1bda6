"""Expressions are evaluated with the logic of SQL, in which null is neither true nor false."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flowcore.keyed.arrow_expressions import (
    ArrowExpression,
    Call,
    Constant,
    Evaluation,
    Field,
)

COLUMNS: dict[str, pa.Array[Any]] = {
    "n": pa.array([1, 5, None], pa.int32()), "big": pa.array([1, 6, 7], pa.int64()),
    "text": pa.array(["a", None, "ż"]), "flag": pa.array([True, False, None]),
}  # fmt: skip
EMPTY = {name: column.slice(0, 0) for name, column in COLUMNS.items()}
IS_ONE = Call("equal", (Field("n"), Constant(1)))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (Field("flag"), [True, False, None]),
        (IS_ONE, [True, False, None]),
        (Call("less", (Field("n"), Field("big"))), [False, True, None]),
        (Call("equal", (Field("text"), Constant("ż"))), [False, None, True]),
        (Call("is_null", (Field("n"),)), [False, False, True]),
        (Call("invert", (Field("flag"),)), [False, True, None]),
        (Call("and_kleene", (Field("flag"), IS_ONE)), [True, False, None]),
        (Call("or_kleene", (Field("flag"), Call("is_null", (Field("n"),)))), [True, False, True]),
    ],
    ids=repr,
)
def test_null_is_neither_true_nor_false(condition: ArrowExpression, expected: list[bool | None]) -> None:
    """In comparisons and in logic, of columns of different sizes."""
    assert Evaluation(COLUMNS).value(condition).to_pylist() == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (Call("case", (Field("flag"), Field("text"), Constant("no"))), ["a", "no", "no"]),
        (Call("case", (Field("flag"), Field("text"), Constant(None))), ["a", None, None]),
        (Call("coalesce", (Constant(None), Field("text"), Constant("x"))), ["a", "x", "ż"]),
        (Call("nullif", (Field("text"), Constant("a"))), [None, None, "ż"]),
        (Call("concat", (Field("text"), Constant(":"), Call("text", (Field("big"),)))), ["a:1", None, "ż:7"]),
        (Call("concat_ws", (Constant(":"), Field("text"), Call("text", (Field("n"),)))), ["a:1", "5", "ż"]),
        (Call("concat", (Constant("a"), Constant(None))), [None, None, None]),
        (Constant("same"), ["same", "same", "same"]),
    ],
    ids=repr,
)
def test_texts_are_joined_and_chosen(expression: ArrowExpression, expected: list[str | None]) -> None:
    """A condition that is null chooses nothing; concat of a null is null, and concat_ws leaves it out."""
    assert Evaluation(COLUMNS).rows(expression, 3, pa.string()).to_pylist() == expected


def test_time_that_has_no_microseconds_is_no_error() -> None:
    """Which rows have such a time is another condition of the same expression."""
    columns: dict[str, pa.Array[Any]] = {"at": pa.array([1_500, 1 << 62])}
    expression = Call("timestamp_millis", (Field("at"),))

    found = Evaluation(columns).rows(expression, 2, pa.timestamp("us", "UTC"))

    assert found.cast(pa.int64())[0].as_py() == 1_500_000


def test_value_that_no_row_has_still_has_its_type() -> None:
    """Logic and the length of it work in a batch in which no condition is true, and in an empty one."""
    chosen = Call("case", (Field("flag"), Call("greater", (Field("n"), Constant(0))), Constant(None)))
    text = Call("case", (Field("flag"), Field("text"), Constant(None)))
    for columns in ({name: column.slice(1, 1) for name, column in COLUMNS.items()}, EMPTY):
        evaluation = Evaluation(columns)

        assert evaluation.value(Call("and_kleene", (chosen, chosen))).type == pa.bool_()
        assert evaluation.value(Call("octet_length", (text,))).type == pa.int32()


def test_a_part_is_computed_once() -> None:
    """Columns that are made of each other would take twice as long with each step."""
    value: ArrowExpression = Field("big")
    for _ in range(60):
        value = Call("add", (value, value))

    assert Evaluation(COLUMNS).value(value)[0].as_py() == 1 << 60
