"""Conditions are evaluated with the logic of SQL, in which null is neither true nor false."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flowcore.keyed.conditions import Call, Condition, Constant, Field, evaluate

COLUMNS: dict[str, pa.Array[Any]] = {
    "n": pa.array([1, 5, None], pa.int32()), "big": pa.array([1, 6, 7], pa.int64()),
    "text": pa.array(["a", None, "ż"]), "flag": pa.array([True, False, None]),
}  # fmt: skip
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
def test_null_is_neither_true_nor_false(condition: Condition, expected: list[bool | None]) -> None:
    """In comparisons and in logic, of columns of different sizes."""
    assert evaluate(condition, COLUMNS).to_pylist() == expected
