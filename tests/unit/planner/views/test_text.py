"""The words of a plan: each line says one thing, of the user's own operators."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, Global, KafkaTopic, Parquet, Tumbling
from flowcore.api.flow import Stream
from flowcore.planner import plan_flow
from flowcore.settings import Settings
from flowcore.windows.triggers import Count

SALE = "shop STRING, price DOUBLE"


def lines(declare: Callable[[Stream], Stream], **settings: Any) -> list[str]:
    flow = Flow("f")
    declare(flow.read("sales", KafkaTopic("sales", schema=SALE))).write("out", KafkaTopic("out"))
    text = plan_flow(flow, settings=Settings.of(settings, environment={})).explain()
    return [line.strip() for line in text.splitlines()]


def newest(sales: Stream) -> Stream:
    return sales.latest(by="shop", ttl=timedelta(days=1), name="newest")


def top(sales: Stream) -> Stream:
    return sales.top_n(3, by="shop", order="price desc", name="top")


def per_minute(rows: Stream) -> Stream:
    return rows.window(Tumbling(60), by="shop", time="processing", name="w").aggregate(n="count(*)")


@pytest.mark.parametrize("ranked", [newest, top])
def test_windows_over_replaced_rows_say_that_each_replacement_counts(
    ranked: Callable[[Stream], Stream],
) -> None:
    """Windows over final rows do not."""
    (line,) = (each for each in lines(lambda sales: per_minute(ranked(sales))) if " counts each " in each)

    assert line.startswith(f"w counts each replacement of {ranked.__name__} because")
    assert line.endswith("; to change it, use aggregate(by=...), which does")
    assert not any(" counts each " in each for each in lines(per_minute))


def test_a_condition_on_replaced_rows_says_that_it_does_not_retract() -> None:
    """One on final rows does not."""
    found = lines(lambda sales: newest(sales).where("price > 10", name="dear"))

    assert any(each.startswith("dear does not retract rows of newest because") for each in found)
    assert not any("retract" in each for each in lines(lambda sales: newest(sales.where("price > 10"))))


CITY = "shop STRING, city STRING"


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda rows, shops: rows.join(shops, on="shop", name="n"), "without a partner is dropped"),
        (
            lambda rows, shops: rows.join(shops, on="shop", how="semi", name="n"),
            "without a partner is dropped",
        ),
        (lambda rows, shops: rows.join(shops, on="shop", how="anti", name="n"), "with a partner is dropped"),
        (lambda rows, shops: rows.join(shops, on="shop", how="left", name="n"), ""),
        (lambda rows, _: rows.flat_map(lambda row: [row], schema=SALE, name="n"), "fewer rows"),
        (lambda rows, _: rows.select("shop", "explode(array(price)) as price", name="n"), "fewer rows"),
        (lambda rows, _: rows.with_columns(p="explode(array(price))", name="n"), "fewer rows"),
        (lambda rows, _: rows.with_columns(p="price + 1", name="n"), ""),
    ],
)
def test_operators_that_drop_replaced_rows_say_that_they_do_not_retract(
    declare: Callable[[Stream, Stream], Stream], said: str
) -> None:
    """Joins that keep all rows, and expressions, say nothing; nor do others over final rows."""

    def retracting(ranked: Callable[[Stream], Stream]) -> list[str]:
        flow = Flow("f")
        rows = ranked(flow.read("sales", KafkaTopic("sales", schema=SALE)))
        found = declare(rows, flow.read("shops", Parquet("shops", schema=CITY)))
        found.write("out", KafkaTopic("out"), key="shop")
        text = plan_flow(flow).explain()
        return [line.strip() for line in text.splitlines() if "retract" in line]

    (line,) = retracting(newest) or [""]

    assert line.startswith("n does not retract rows of newest because a row ") == bool(said)
    assert said in line
    assert not retracting(lambda sales: sales)


def test_a_reason_of_several_operators_is_one_line() -> None:
    """The names are in the order of the operators."""
    found = lines(lambda sales: per_minute(newest(sales)))

    assert [each for each in found if each.startswith("micro-batch because")] == [
        "micro-batch because each of newest and w keeps its state by key group, in Python workers"
    ]


def test_reasons_name_what_applies_to_the_operator() -> None:
    """A latest has no ranks, a window without end no watermark, a changelog no ttl= of its own."""

    def last(sales: Stream) -> Stream:
        return sales.window(Global(), by="shop", trigger=Count(1), name="last").aggregate(n="count(*)")

    def groups(sales: Stream) -> Stream:
        return newest(sales).aggregate(by="price", n="count(*)", name="groups")

    text = "\n".join(each for declare in (newest, last, groups) for each in lines(declare))
    assert "newest is key-group in 16 key groups because a record is compared with the newest of its" in text
    assert (
        "last is key-group in 16 key groups because Spark's own aggregate has no windows without end" in text
    )
    assert "to change it, declare ttl= on groups, if a row" in text


def test_sources_have_no_input_and_files_have_no_key() -> None:
    """A sink of files gets the columns, whatever replaces what."""
    flow = Flow("f")
    sales = flow.read("sales", Parquet("sales", schema=SALE))
    sales.aggregate(by="shop", n="count(*)", name="n").write("out", Parquet("out/n"))
    text = plan_flow(flow).explain().splitlines()

    assert "    sales: read Parquet sales" in text
    assert "    out <- n: write Parquet out/n" in text


@pytest.mark.parametrize(("partitions", "idle"), [(16, ""), (64, "48 of 64 ")])
def test_partitions_without_a_key_group_are_named(partitions: int, idle: str) -> None:
    """They have no work; a query without state by key group has no partitions of it."""
    settings = {"execution.shuffle-partitions": partitions}
    found = [each for each in lines(newest, **settings) if "no work" in each]

    assert len(found) == bool(idle)
    assert all(
        each.startswith(f"{idle}shuffle partitions have no work because state.key-groups is 16")
        for each in found
    )
    assert not any("no work" in each for each in lines(lambda sales: sales, **settings))


def test_a_query_waits_for_results_in_the_plural() -> None:
    """One of them is committed, two are."""

    def backlog(*tables: str) -> str:
        flow = Flow("f")
        joined = flow.read("sales", KafkaTopic("sales", schema=SALE))
        for name in tables:
            joined = joined.join(flow.read(name, Parquet(name, schema=f"shop STRING, {name} INT")), on="shop")
        joined.write("out", KafkaTopic("out"))
        text = plan_flow(flow).explain()
        return next(line.strip() for line in text.splitlines() if line.strip().startswith("backlog"))

    assert backlog("a") == "backlog until a is committed, and while sales lags"
    assert backlog("a", "b") == "backlog until a, b are committed, and while sales lags"


def _firing(rows: Stream, name: str = "w") -> Stream:
    trigger = Count(10)
    return rows.window(Tumbling(60), by="shop", time="processing", trigger=trigger, name=name).aggregate(
        n="count(*)"
    )


@pytest.mark.parametrize(
    ("declare", "sink", "said"),
    [
        (_firing, Parquet("out"), "rows of files do not replace earlier ones"),
        (lambda rows: _firing(rows).select("shop", "n"), KafkaTopic("out"), "records without a key do not"),
        (
            lambda rows: _firing(rows).union(_firing(rows.where("price > 1"), "more")),
            Parquet("out"),
            "rows of",
        ),
        (_firing, KafkaTopic("out"), ""),
        (lambda rows: _firing(rows).select("shop", "n"), KafkaTopic("out", key="shop"), ""),
        (per_minute, Parquet("out"), ""),
    ],
)
def test_sinks_that_keep_each_firing_of_a_window_say_so(
    declare: Callable[[Stream], Stream], sink: KafkaTopic | Parquet, said: str
) -> None:
    """A key of the topic says which row replaces which, and windows that fire once replace nothing."""
    flow = Flow("f")
    declare(flow.read("sales", KafkaTopic("sales", schema=SALE))).write("out", sink)

    (line,) = [each.strip() for each in plan_flow(flow).explain().splitlines() if "each firing" in each] or [
        ""
    ]

    assert line.startswith("out adds a row for each firing of w because ") == bool(said)
    assert said in line
