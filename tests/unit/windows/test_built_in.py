"""Built-in aggregates have the results of their definitions, over random records and any merges."""

import json
import math
import statistics
from collections.abc import Callable
from decimal import Decimal
from functools import reduce
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flowcore.keyed.plain import from_plain, to_plain
from flowcore.windows.built_in import FOLDS, BuiltIn, BuiltIns

Values = list[Any]


def _or_none(function: Callable[[Values], Any], at_least: int = 1) -> Callable[[Values], Any]:
    return lambda values: function(values) if len(values) >= at_least else None


def _there(every: Values) -> Values:
    return [value for value in every if value is not None]


EXPECTED: dict[BuiltIn, Callable[[Values], Any]] = {
    BuiltIn("count"): len,
    BuiltIn("count", ("x",)): lambda every: sum(value is not None for value in every),
    BuiltIn("count", ("x",), distinct=True): lambda every: len(set(every) - {None}),
    BuiltIn("count_if", ("x",)): lambda every: sum(bool(value) for value in every),
    BuiltIn("sum", ("x",)): lambda every: _or_none(sum)(_there(every)),
    BuiltIn("sum", ("x",), distinct=True): lambda every: _or_none(sum)(list(set(_there(every)))),
    BuiltIn("avg", ("x",)): lambda every: _or_none(statistics.fmean)(_there(every)),
    BuiltIn("avg", ("x",), distinct=True): lambda every: _or_none(statistics.fmean)(list(set(_there(every)))),
    BuiltIn("min", ("x",)): lambda every: min(_there(every), default=None),
    BuiltIn("max", ("x",)): lambda every: max(_there(every), default=None),
    BuiltIn("first_value", ("x",)): lambda every: every[0] if every else None,
    BuiltIn("first_value", ("x",), ignore_nulls=True): lambda every: next(iter(_there(every)), None),
    BuiltIn("last_value", ("x",)): lambda every: every[-1] if every else None,
    BuiltIn("last_value", ("x",), ignore_nulls=True): lambda every: next(iter(_there(every)[::-1]), None),
    BuiltIn("var_samp", ("x",)): lambda every: _or_none(statistics.variance, 2)(_there(every)),
    BuiltIn("var_pop", ("x",)): lambda every: _or_none(statistics.pvariance)(_there(every)),
    BuiltIn("stddev_samp", ("x",)): lambda every: _or_none(statistics.stdev, 2)(_there(every)),
    BuiltIn("stddev_pop", ("x",)): lambda every: _or_none(statistics.pstdev)(_there(every)),
    BuiltIn("collect_list", ("x",)): _there,
    BuiltIn("collect_list", ("x",), distinct=True): lambda every: list(dict.fromkeys(_there(every))),
    BuiltIn("bool_and", ("b",)): lambda every: _or_none(all)([v > 0 for v in _there(every)]),
    BuiltIn("bool_or", ("b",)): lambda every: _or_none(any)([v > 0 for v in _there(every)]),
    BuiltIn("min_by", ("at", "x")): lambda every: _by(every, min),
    BuiltIn("max_by", ("at", "x")): lambda every: _by(every, max),
}


def _by(every: Values, best: Any) -> Any:
    """Index of the last of the best values."""
    there = _there(every)
    return len(every) - 1 - every[::-1].index(best(there)) if there else None


def test_every_function_is_compared() -> None:
    assert {each.function for each in EXPECTED} == set(FOLDS)


def _records(every: Values) -> list[dict[str, Any]]:
    return [
        {"x": value, "at": at, "b": None if value is None else value > 0} for at, value in enumerate(every)
    ]


def _folded(each: BuiltIns, records: list[dict[str, Any]], *, restarted: bool) -> Any:
    kept = each.create()
    for record in records:
        kept = each.add(kept, record)
        if restarted:
            kept = from_plain(json.loads(json.dumps(to_plain(kept))))
    return kept


@pytest.mark.parametrize(
    "each", EXPECTED, ids=lambda each: f"{each.function}{each.distinct:d}{each.ignore_nulls:d}"
)
@settings(max_examples=50, deadline=None)
@given(
    parts=st.lists(st.lists(st.none() | st.integers(-5, 5)), min_size=1, max_size=4), restarted=st.booleans()
)
def test_built_in_is_what_its_name_says_however_it_is_cut_and_merged(
    each: BuiltIn, parts: list[Values], restarted: bool
) -> None:
    """Merged parts are adjacent, as sessions that a later record joins."""
    function, records = BuiltIns((("found", each),)), _records([value for part in parts for value in part])
    cuts = [len(part) for part in parts]
    pieces = [records[sum(cuts[:n]) : sum(cuts[: n + 1])] for n in range(len(cuts))]
    kept = reduce(function.merge, [_folded(function, piece, restarted=restarted) for piece in pieces])
    found = function.result(kept)["found"]
    expected = EXPECTED[each]([value for part in parts for value in part])

    assert found == pytest.approx(expected, abs=1e-9)
    assert function.result(kept)["found"] == found


@example(2**63)
@example(2**64)
@example(-(2**64) + 1)
@example(True)
@given(st.integers() | st.text() | st.booleans() | st.floats(allow_nan=False))
def test_distinct_values_are_kept_under_their_json_text(value: Any) -> None:
    """Also those whose text is made without a serializer, since state has these texts."""
    each = BuiltIn("count", ("x",), distinct=True)

    normal = value + 0.0 if type(value) is float else value

    assert [*each.add(each.create(), {"x": value})] == [json.dumps(to_plain(normal))]


def test_result_is_not_changed_by_later_records() -> None:
    function = BuiltIns((("all", BuiltIn("collect_list", ("x",))),))
    kept = function.add(function.create(), {"x": 1})
    first = function.result(kept)
    function.add(kept, {"x": 2})

    assert first == {"all": [1]}


@pytest.mark.parametrize(
    ("function", "expected"), [("min", 1.0), ("max", math.nan), ("min_by", 1.0), ("max_by", math.nan)]
)
def test_not_a_number_is_above_all_numbers(function: str, expected: float) -> None:
    """NaN is the maximum, as in Spark."""
    each = BuiltIn(function, ("x",) * FOLDS[function].arguments)
    kept = each.create()
    for value in (math.nan, 1.0, math.nan, 2.0):
        kept = each.add(kept, {"x": value})

    assert each.result(kept) == pytest.approx(expected, nan_ok=True)


def _result(function: str, *values: Any, distinct: bool = False) -> Any:
    """The result over windows of one value each, merged after a restart."""
    each = BuiltIn(function, ("x",), distinct)
    parts = [each.add(each.create(), {"x": value}) for value in values]
    stored = [from_plain(json.loads(json.dumps(to_plain(part)))) for part in parts]
    return each.result(reduce(each.merge, stored, each.create()))


@pytest.mark.parametrize("distinct", [False, True], ids=["all", "distinct"])
@pytest.mark.parametrize(
    ("function", "values", "expected"),
    [
        ("avg", ["1.5", "2"], "1.75000"),
        ("avg", ["1.00", "1.01", "1.02", "2.00", "-1.02", "3.00"], "1.168333"),
        ("avg", ["0.05", "-0.10", "0.04"], "-0.003333"),
        ("avg", ["0.000000000000000001", "0.000000000000000002"], "0.0000000000000000015000"),
        ("avg", ["9" * 38, "1"], None),
        ("sum", ["123456789012345678901234567890123.45", "0.01"], "123456789012345678901234567890123.46"),
        ("sum", ["9" * 38, "-1"], "9" * 37 + "8"),
        ("sum", ["9" * 38, "1"], None),
        ("sum", ["-" + "9" * 38, "-1"], None),
    ],
)
def test_sums_and_averages_of_decimals_are_those_of_spark(
    function: str, values: list[str], expected: str | None, distinct: bool
) -> None:
    """All 38 digits count, an average has four more digits after the point, and what does not fit is null."""
    found = _result(function, *map(Decimal, values), distinct=distinct)

    assert (found if found is None else f"{found:f}") == expected


@pytest.mark.parametrize("distinct", [False, True], ids=["all", "distinct"])
def test_a_sum_of_integers_wraps_and_an_average_does_not(distinct: bool) -> None:
    """A sum of 64-bit integers is one, as in Spark."""
    values = (2**62, 2**62 + 1024, 2**62 + 2048)

    assert _result("sum", *values, distinct=distinct) == sum(values) - 2**64
    assert _result("avg", *values, distinct=distinct) == 2.0**62 + 1024


def test_an_average_of_integers_adds_them_as_doubles() -> None:
    """As Spark does, and windows of functions by column."""
    assert _result("avg", 2**53, 1, 1) == 2.0**53 / 3


NAN = math.nan
ASCENDING: dict[str, list[Any]] = {
    "lists": [[], [None], [None, 1.0], [1.0], [1.0, None], [1.0, 0.5], [1.0, NAN], [NAN]],
    "structs": [{"a": None, "b": 2}, {"a": 1, "b": None}, {"a": 1, "b": 1}, {"a": 2, "b": None}],
    "nested": [{"a": None}, {"a": [{"b": None}]}, {"a": [{"b": b"x"}]}, {"a": [{"b": b"x"}, None]}],
}


@pytest.mark.parametrize("values", ASCENDING.values(), ids=ASCENDING)
def test_lists_and_structs_have_sparks_order(values: list[Any]) -> None:
    """A null in them is below all values, and a list is below the longer ones that begin with it."""
    for position, least in enumerate(values):
        rest = values[position:]
        assert repr([_result("min", *rest), _result("min", *rest[::-1])]) == repr([least, least])
    assert repr([_result("max", *values), _result("max", *values[::-1])]) == repr([values[-1]] * 2)


def test_zeros_of_both_signs_are_one_distinct_value() -> None:
    assert _result("count", 0.0, -0.0, NAN, NAN, 1.0, distinct=True) == 3
    assert _result("count", [0.0, {"x": -0.0}], [-0.0, {"x": 0.0}], distinct=True) == 1
    assert repr(_result("collect_list", -0.0, 0.0, distinct=True)) == "[0.0]"


@pytest.mark.parametrize("function", ["stddev_pop", "stddev_samp", "var_pop", "var_samp"])
@pytest.mark.parametrize("values", [[1e308, -1e308], [math.inf], [1.0, math.inf, -math.inf]])
def test_a_deviation_that_overflows_is_not_a_number(function: str, values: list[float]) -> None:
    """As in Spark, for records that arrive one after the other."""
    each = BuiltIn(function, ("x",))
    kept = reduce(lambda kept, value: each.add(kept, {"x": value}), values, each.create())

    assert str(each.result(kept)) == ("nan" if len(values) > 1 or "pop" in function else "None")
