"""Windows are declared by lengths, gaps and keys, and have columns of their own."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowcore import (
    EndOfStream,
    Flow,
    Global,
    Parquet,
    Session,
    Sliding,
    Tumbling,
)
from flowcore.api.stateful import key_of
from flowcore.api.window_assigners import GAP_COLUMN
from flowcore.errors import InvalidWindowError, PlanError
from flowcore.windows import (
    EndOfStreamWindows,
    GlobalWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindow,
    TumblingWindows,
)
from flowcore.windows.columnar.keyed import ColumnarWindows
from tests.unit.api.windowed import WINDOW_COLUMNS, bids_of, window_of


def test_window_has_columns_of_key_values_and_window() -> None:
    per_category = (
        bids_of().window(Tumbling(seconds=10), by="Category").aggregate(n="count(*)", top="max(price)")
    )

    assert per_category.columns == ("category", "n", "top", *WINDOW_COLUMNS)


def test_window_without_key_is_one_for_all() -> None:
    assert bids_of().window(Tumbling(10)).aggregate(n="count(*)").columns == ("n", *WINDOW_COLUMNS)


@pytest.mark.parametrize(
    ("values", "key"), [((), None), (("a",), "a"), ((None,), None), (("a", 1), ("a", 1))], ids=str
)
def test_key_is_what_functions_see(values: tuple[Any, ...], key: Any) -> None:
    assert key_of(values) == key


@pytest.mark.parametrize(
    ("windows", "assigner"),
    [
        (Tumbling(seconds=10), TumblingWindows(10_000)),
        (Tumbling(0.5, offset=-0.1), TumblingWindows(500, -100)),
        (Tumbling(timedelta(days=1), offset=timedelta(hours=-1)), TumblingWindows(86_400_000, -3_600_000)),
        (Sliding(10, slide=1), SlidingWindows(10_000, 1_000)),
        (Sliding(10, slide=timedelta(seconds=5), offset=2), SlidingWindows(10_000, 5_000, 2_000)),
        (Session(gap=30), SessionWindows(30_000)),
        (Global(), GlobalWindows()),
        (EndOfStream(), EndOfStreamWindows()),
    ],
    ids=str,
)
def test_lengths_are_seconds_or_timedeltas(windows: Any, assigner: Any) -> None:
    assert windows.assigner() == assigner


@pytest.mark.parametrize(
    "declare",
    [
        lambda: Tumbling(0),
        lambda: Tumbling(seconds=-1),
        lambda: Tumbling(0.0001),
        lambda: Tumbling("10 s"),
        lambda: Tumbling(True),
        lambda: Tumbling(float("nan")),
        lambda: Tumbling(1e300),
        lambda: Sliding(1, slide=2),
        lambda: Session(gap=0),
        lambda: Session(gap=" "),
        lambda: Session(gap=None),
    ],
    ids=[
        "zero",
        "negative",
        "microseconds",
        "text",
        "truth",
        "no number",
        "too long",
        "long slide",
        "no gap",
        "empty gap",
        "none",
    ],
)
def test_other_lengths_are_refused(declare: Callable[[], Any]) -> None:
    with pytest.raises(InvalidWindowError):
        declare()


def test_gap_of_a_session_can_be_computed_natively() -> None:
    """It is a column that is computed upstream of the operator."""
    window = window_of(bids_of().window(Session(gap="gap_ms * 2"), by="category").aggregate(n="count(*)"))
    ((name, expression),) = window.computed

    assert (name, expression.text) == (GAP_COLUMN, "gap_ms * 2")
    assert window.config.assigner.assign(5, "a", {GAP_COLUMN: 10}) == (TimeWindow(5, 15),)
    with pytest.raises(InvalidWindowError, match="the gap of key 'a' is null"):
        window.config.assigner.assign(5, "a", {GAP_COLUMN: None})


def test_gap_of_a_session_can_be_a_function_of_key_and_record() -> None:
    windows = Session(gap=lambda key, record: 10 * record["price"] if key == "a" else 1)

    assert windows.assigner().assign(5, "a", {"price": 2}) == (TimeWindow(5, 25),)


def test_own_assigner_can_be_given() -> None:
    assert window_of(
        bids_of().window(TumblingWindows(7)).aggregate(n="count(*)")
    ).config.assigner == TumblingWindows(7)
    with pytest.raises(InvalidWindowError, match="does not assign windows to a record"):
        bids_of().window(Tumbling)  # type: ignore[arg-type]


class _Lagging(TumblingWindows):
    """Windows that begin a millisecond later."""

    def assign(self, timestamp_ms: int, key: Any, value: Any) -> tuple[TimeWindow, ...]:
        (window,) = super().assign(timestamp_ms, key, value)
        return (TimeWindow(window.start_ms + 1, window.end_ms + 1),)


@pytest.mark.parametrize(("assigner", "is_built_in"), [(TumblingWindows(7), True), (_Lagging(7), False)])
def test_assigner_derived_from_another_one_is_asked(assigner: TumblingWindows, is_built_in: bool) -> None:
    """Windows that are computed by arithmetic would be those of its base class."""
    live = window_of(bids_of().window(assigner).aggregate(n="count(*)"))
    table = Flow("f").read("sales", Parquet("sales", schema="v BIGINT, at BIGINT"))
    bounded = window_of(table.window(assigner, timestamp="at").aggregate(n="count(*)"))

    assert (ColumnarWindows.refusal(live.config, {}, latest_only=False) is None) == is_built_in
    assert (bounded.compiled().value == "native") == is_built_in
    assert ("tumbling" in live.describe()) == is_built_in


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: Tumbling(0), "^seconds=0 is not above 0"),
        (lambda: Tumbling("10 s"), r"^seconds='10 s' \(a text: pass timedelta\(seconds=10\)\) is not"),
        (lambda: Tumbling("long"), r"^seconds='long' \(a text: pass a timedelta\) is not"),
        (lambda: Sliding(10, slide=0), "^slide=0 is not above 0"),
        (
            lambda: Sliding(10, slide=0.0005),
            "^slide=0.0005 is not a whole number of milliseconds: .*pass sec",
        ),
        (
            lambda: Sliding(86_400, slide=1),
            "windows of 1 d every 1 s: .* be in 86,400 windows, and 10,000 is",
        ),
        (lambda: Sliding(10, slide=20), "slide=20 s is longer than the windows of 10 s"),
        (lambda: Session(gap=-1), "^gap=-1 is not above 0"),
        (lambda: Session(gap="10 s"), r"gap='10 s' \(a text: pass timedelta\(seconds=10\)\) is not Spark"),
    ],
)
def test_errors_of_windows_name_what_was_declared(declare: Callable[[], object], message: str) -> None:
    """Lengths are called as in the declaration, and not as in the windows that it makes."""
    with pytest.raises(InvalidWindowError, match=message):
        declare()


@pytest.mark.parametrize(("column", "whose"), [("Category", "of by="), ("window_end", "of each window")])
def test_schema_with_a_column_that_windows_add_is_refused(column: str, whose: str) -> None:
    """A rename would not help: the column is there already."""
    windows = bids_of().window(Tumbling(10), by="category")

    with pytest.raises(PlanError, match=f"windows add the columns {whose} .* leave {column} out of schema"):
        windows.process(lambda _, records: records, schema=f"{column} STRING, n INT")


def test_late_records_are_a_stream_with_the_columns_of_the_input() -> None:
    per_category = bids_of().window(Tumbling(10), by="category", late="side-output").aggregate(n="count(*)")

    assert per_category.late.columns == ("category", "price", "gap_ms", "tags", "at")
    assert per_category.late.operator is per_category.late.operator
    assert per_category.late.operator.name == "window_1.late"


def test_dropped_late_records_are_not_a_stream() -> None:
    with pytest.raises(
        PlanError, match=r"operator 'window_1' has no side output 'late'; it has none; a window, a sort or"
    ):
        _ = bids_of().window(Tumbling(10)).aggregate(n="count(*)").late
