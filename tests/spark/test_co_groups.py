"""Co-groups give what DuckDB gives over the same files, and a function gets each group as a whole."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flowcore import Flow, Parquet, RichFunction, Stream
from flowcore.errors import RunError
from flowcore.spark.operators import co_groups

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("tables")]

Run = Callable[..., Any]
Rows = Callable[[str], list[tuple[Any, ...]]]

SALES = "id BIGINT, shop STRING, region BIGINT, price DOUBLE"
SHOPS = "name STRING, area BIGINT, city STRING"


class _Sides:
    def __init__(self) -> None:
        self.flow = Flow("f")
        self.sales = self.flow.read("sales", Parquet("sales", schema=SALES))
        self.shops = self.flow.read("shops", Parquet("shops", schema=SHOPS))

    def grouped(self, *args: Any, **kwargs: Any) -> Stream:
        return self.sales.co_group(self.shops, *args, on={"shop": "name"}, **kwargs)


_KEYS = "(select shop as k from sales union select name from shops)"


def _by_shop(columns: str) -> str:
    """Aggregate each side separately over the keys of both; null is a key."""
    return f"""
        select k, {columns} from {_KEYS}
        left join (select shop, sum(price) as total, count(*) as sold, count(distinct region) as regions,
            min(id) as first_id from sales group by shop) s on s.shop is not distinct from k
        left join (select name, count(*) as places, max(city) as city from shops group by name) p
            on p.name is not distinct from k"""  # noqa: S608 - columns are constants of this module


CASES: dict[str, tuple[Callable[[_Sides], Stream], str]] = {
    "aggregates-of-both-sides": (
        lambda g: g.grouped(total="sum(left.price)", sold="count(left)", city="max(right.city)"),
        _by_shop("total, coalesce(sold, 0), city"),
    ),
    "distinct": (
        lambda g: g.grouped(regions="count(distinct left.region)", places="count(right.name)"),
        _by_shop("coalesce(regions, 0), case when k is null then 0 else coalesce(places, 0) end"),
    ),
    "nulls-of-the-other-side-are-not-seen": (
        lambda g: g.grouped(zero="max(coalesce(right.city, 'none'))", first="first(left.id)").select(
            "shop", "zero", "first is null as missing"
        ),
        _by_shop("case when places > 0 then coalesce(city, 'none') end, first_id is null"),
    ),
    "several-columns": (
        lambda g: g.sales.co_group(
            g.shops, on={"shop": "name", "region": "area"}, sold="count(left)", places="count(right)"
        ),
        """select k, r, (select count(*) from sales
                where shop is not distinct from k and region is not distinct from r),
            (select count(*) from shops where name is not distinct from k and area is not distinct from r)
        from (select shop as k, region as r from sales union select name, area from shops)""",
    ),
    "with-itself": (
        lambda g: g.sales.co_group(g.sales.where("price > 5"), on="shop", n="count(left)", m="count(right)"),
        "select shop, count(*), count(*) filter (where price > 5) from sales group by shop",
    ),
    "one-side-empty": (
        lambda g: g.sales.co_group(g.shops.where("area > 99"), on={"shop": "name"}, n="count(right)"),
        "select shop, 0 from sales group by shop",
    ),
    "function-of-records": (
        lambda g: g.grouped(_pairs, schema="shop STRING, sold INT, cities ARRAY<STRING>").select(
            "shop", "sold", "array_join(array_sort(cities), ',') as cities"
        ),
        f"""select k, (select count(*) from sales where shop is not distinct from k),
            coalesce((select string_agg(city, ',' order by city) from shops
                where name is not distinct from k), '')
        from {_KEYS}""",  # noqa: S608 - a constant
    ),
    "function-of-batches": (
        lambda g: g.grouped(_totals, schema="shop STRING, total DOUBLE, places BIGINT", batches=True),
        _by_shop("total, coalesce(places, 0)"),
    ),
}


def _pairs(
    key: str | None, left: list[dict[str, Any]], right: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    assert all(record["shop"] == key for record in left)
    assert all(record["name"] == key for record in right)
    yield {"shop": key, "sold": len(left), "cities": [each["city"] for each in right if each["city"]]}


def _totals(key: str | None, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
    total = pc.sum(left.column("price")).as_py()
    rows = [{"shop": key, "total": total, "places": right.num_rows}]
    return pa.RecordBatch.from_pylist(
        rows, schema=pa.schema({"shop": "string", "total": "double", "places": "int64"})
    )


@pytest.mark.parametrize("once", [False, True], ids=["", "grouped-once"])
@pytest.mark.parametrize("case", CASES)
def test_co_group_gives_what_duckdb_gives(
    case: str, *, once: bool, run: Run, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each key of either side has one row; the sides are aggregated separately, however rows are grouped."""
    monkeypatch.setattr(co_groups, "has_distinct_keys", lambda *_: once)
    sides = _Sides()
    declare, query = CASES[case]
    declare(sides).write("out", Parquet("out"))
    query = re.sub(r"from (sales|shops)\b", r"from '{dir}/\1/*.parquet'", query)

    run(sides.flow)

    assert rows("from '{dir}/out/*.parquet'") == rows(query)


class _Numbered(RichFunction):
    """Is open when it is called; returns how often it was called."""

    def open(self) -> None:
        self.opened = 1

    def __call__(self, key: Any, left: Any, right: Any) -> Any:  # type: ignore[override]
        return [{"shop": key, "opened": self.opened}] * (len(left) + len(right))


def test_rich_function_of_a_co_group_is_opened_and_emits_any_number(run: Run, rows: Rows) -> None:
    """It is a Python function like those of other operators, and later functions are in its chain."""
    sides = _Sides()
    every = sides.grouped(_Numbered(), schema="shop STRING, opened INT")
    every.filter(lambda record: record["shop"] is not None).write("out", Parquet("out"))

    run(sides.flow)

    counted = "select count(*), min(opened), max(opened) from '{dir}/out/*.parquet'"
    known = "select count(*) from '{dir}/sales/*.parquet' where shop is not null"
    others = "select count(*) from '{dir}/shops/*.parquet' where name is not null"
    assert rows(counted) == [(rows(known)[0][0] + rows(others)[0][0], 1, 1)]


def _failing(key: Any, left: Any, right: Any) -> Any:
    return {"shop": key, "price": left[0]["price"] / 0}, right


def test_co_group_names_operator_and_group_when_its_function_fails(run: Run) -> None:
    """The error has the user's line and the group's key, and no internal stack frames."""
    sides = _Sides()
    sides.grouped(_failing, schema="shop STRING, price DOUBLE", name="best").write("out", Parquet("out"))

    with pytest.raises(
        RunError, match=r"operator 'best': its function raised \w+.*test_co_groups.py:\d+.*'shop'"
    ):
        run(sides.flow)
