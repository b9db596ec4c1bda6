"""Declaring how long state is kept."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, Global, KafkaTopic, Parquet, Tumbling
from flowcore.api.flow import Stream
from flowcore.errors import InvalidWindowError, PlanError
from flowcore.planner import plan_flow
from flowcore.windows.triggers import Count
from tests.unit.api.windowed import bids_of

HOUR = timedelta(hours=1)


def totals(stream: Stream, ttl: Any = HOUR, **options: Any) -> Stream:
    return stream.aggregate(by="category", total="sum(price * 2)", n="count(*)", ttl=ttl, **options)


def latest(stream: Stream, ttl: Any = HOUR) -> Stream:
    return stream.window(Global(), by="category", trigger=Count(1), ttl=ttl).aggregate(n="count(*)")


def reduced(stream: Stream, ttl: Any = HOUR) -> Stream:
    return stream.reduce(newer, by="category", schema="category STRING, price DOUBLE", ttl=ttl)


def newer(kept: Any, new: Any) -> Any:
    return max(kept, new, key=lambda record: record["price"])


def test_aggregate_with_ttl_has_the_columns_and_key_of_one_without() -> None:
    """Later rows replace earlier ones, and may be buffered."""
    with_ttl, without = (totals(bids_of(), ttl, flush=HOUR).operator for ttl in (HOUR, None))

    assert with_ttl.columns == without.columns == ("category", "total", "n")
    assert with_ttl.key == without.key == with_ttl.buffer_key
    assert with_ttl.updating
    assert with_ttl.attributes() == without.attributes()


@pytest.mark.parametrize("declared", [totals, latest, reduced])
def test_plan_takes_ttl_into_account_and_names_it(declared: Callable[..., Stream]) -> None:
    """Without it the state is unbounded, and ttl= is the way out."""
    bounded, unbounded = (declared(bids_of(), ttl).operator for ttl in (HOUR, None))

    assert bounded.unbounded_state() is None
    found = unbounded.unbounded_state()
    assert found is not None
    assert "declare ttl=" in found.change[0]


def test_plan_says_what_is_kept_and_where() -> None:
    """The state is by key group, in a query of micro-batches."""
    flow = Flow("f")
    totals(bids_of(flow), name="spent").write("totals", KafkaTopic("totals"))
    text = plan_flow(flow).explain()

    assert "aggregate sum(price * 2) as total, count(*) as n by category, emitted at each change" in text
    assert "kept 1 h after the last record" in text
    assert "spent is key-group in 16 key groups because Spark's own aggregate has no time to live" in text


def test_plan_shows_a_reduce_by_its_function_and_its_ttl() -> None:
    """The process that calls the function is not the user's."""
    flow = Flow("f")
    reduced(bids_of(flow)).write("newest", KafkaTopic("newest"))
    text = plan_flow(flow).explain()

    assert "reduce newer by category, kept 1 h after the last record" in text
    assert "ReducingProcess" not in text
    assert "unbounded" not in text


@pytest.mark.parametrize("declared", [totals, latest])
@pytest.mark.parametrize(
    "ttl", [timedelta(0), timedelta(microseconds=1500), -HOUR, 5], ids=["none", "parts", "negative", "number"]
)
def test_ttl_is_a_positive_number_of_milliseconds(declared: Callable[..., Stream], ttl: Any) -> None:
    """State would be removed at once."""
    with pytest.raises(PlanError, match="is not a positive number of whole milliseconds"):
        declared(bids_of(), ttl)


def test_ttl_of_a_reduce_is_checked_when_it_is_declared() -> None:
    """A worker would refuse it later."""
    with pytest.raises(PlanError, match="is not a positive number of whole milliseconds"):
        bids_of().reduce(lambda kept, _: kept, by="category", schema="category STRING", ttl=timedelta(0))


def test_ttl_has_no_meaning_for_bounded_input_and_windows_that_end() -> None:
    """What would be forgotten depends on the speed of reading, or is removed anyway."""
    rows = Flow("f").read("rows", Parquet("rows", schema="category STRING, price DOUBLE"))

    for declared in (totals, latest):
        with pytest.raises(PlanError, match="ttl= over the bounded 'rows'"):
            declared(rows)
    with pytest.raises(InvalidWindowError, match="removed at their end"):
        bids_of().window(Tumbling(10), ttl=HOUR)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("price", "a group has many records"),
        ("sum(price) / count(*)", r"a select\(...\) downstream of the aggregate$"),
        ("median(price)", r"built-in aggregate of groups with ttl= .*, or leave ttl= out$"),
        ("stddev(distinct price)", r", or leave ttl= out$"),
    ],
)
def test_errors_of_aggregates_without_windows_do_not_speak_of_windows(text: str, message: str) -> None:
    """Neither with ttl= nor over rows that replace earlier ones, where there is no ttl= to leave out."""
    with pytest.raises(PlanError, match=message) as refused:
        bids_of().aggregate(by="category", x=text, ttl=HOUR)
    with pytest.raises(PlanError) as replaced:
        bids_of().latest(by="category").aggregate(by="category", x=text)

    assert "window" not in str(refused.value)
    assert "window" not in str(replaced.value)
    assert "ttl=" not in str(replaced.value)


def test_aggregate_with_ttl_refuses_what_windows_cannot_compute() -> None:
    """Its functions are those of windows."""
    with pytest.raises(PlanError, match="'percentile' is not a built-in aggregate"):
        bids_of().aggregate(by="category", p="percentile(price, 0.5)", ttl=HOUR)
