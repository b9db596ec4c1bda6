"""Each bounded operator gives what DuckDB gives over the same files."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from flowcore import EndOfStream, Flow, Parquet, Stream, from_frame
from flowcore.errors import PlanError

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("tables")]

Run = Callable[..., Any]
Rows = Callable[[str], list[tuple[Any, ...]]]

SALES = "id BIGINT, shop STRING, region BIGINT, price DOUBLE"
SHOPS = "name STRING, area BIGINT, city STRING"


class _Tables:
    def __init__(self) -> None:
        self.flow = Flow("f")
        self.sales = self.flow.read("sales", Parquet("sales", schema=SALES))
        self.shops = self.flow.read("shops", Parquet("shops", schema=SHOPS))
        self.places = self.shops.select("name as shop", "city")
        self.areas = self.shops.select("name as shop", "area as region", "city")


def _double_price(frame: DataFrame) -> DataFrame:
    return frame.withColumn("price", F.col("price") * 2)


def _diamond(tables: _Tables) -> Stream:
    totals = tables.sales.aggregate(by="shop", total="sum(price)")
    return tables.sales.join(totals, on="shop").select("id", "price / total as share")


def _self_join(tables: _Tables) -> Stream:
    other = tables.sales.select("id as other_id", "shop")
    return tables.sales.join(other, on="shop").where("id < other_id").select("id", "other_id")


CASES: dict[str, tuple[Callable[[_Tables], Stream], str]] = {
    **{
        f"join-{how}-same-name": (
            lambda g, how=how: g.sales.join(g.places, on="shop", how=how).select("id", "shop", "city"),
            f"select s.id, coalesce(s.shop, p.name), city from sales s {how} join shops p on s.shop = p.name",  # noqa: S608 - how is one of four words
        )
        for how in ("inner", "left", "right", "full")
    },
    **{
        f"join-{how}-other-name": (
            lambda g, how=how: g.sales.join(g.shops, on={"shop": "name", "region": "area"}, how=how).select(
                "id", "shop", "region", "city"
            ),
            (
                "select id, coalesce(s.shop, p.name), coalesce(s.region, p.area), city "  # noqa: S608 - how is one of four words
                f"from sales s {how} join shops p on s.shop = p.name and s.region = p.area"
            ),
        )
        for how in ("inner", "left", "right", "full")
    },
    "deduplicate": (
        lambda g: g.sales.deduplicate(by="shop", within=None, timestamp="id").select("id", "shop"),
        "select id, shop from sales qualify row_number() over (partition by shop order by id) = 1",
    ),
    "join-several-same-names": (
        lambda g: g.sales.join(g.areas, on=["shop", "region"]),
        "select s.*, city from sales s join shops p on shop = name and region = area",
    ),
    "join-other-case": (
        lambda g: g.sales.select("ID", "Shop").join(g.places, on={"SHOP": "shop"}).select("id", "city"),
        "select id, city from sales s join shops p on shop = name",
    ),
    "window-at-the-end": (
        lambda g: (
            g.sales.window(EndOfStream(), by="shop")
            .aggregate(top="max(price)", n="count(*)")
            .select("shop", "top", "n", "window_start is null as open", "firing", "is_late")
        ),
        "select shop, max(price), count(*), true, 1, false from sales group by shop",
    ),
    "window-at-the-end-of-all": (
        lambda g: g.sales.window(EndOfStream()).aggregate(total="sum(price)").select("total"),
        "select sum(price) from sales",
    ),
    "window-at-the-end-of-nothing": (
        lambda g: g.sales.where("id > 99").window(EndOfStream()).aggregate(n="count(*)").select("n"),
        "select id from sales where id > 99",
    ),
    "join-semi": (
        lambda g: g.sales.join(g.places, on="shop", how="semi"),
        "select * from sales where shop in (select name from shops where name is not null)",
    ),
    "join-anti": (
        lambda g: g.sales.join(g.shops, on={"shop": "name"}, how="anti"),
        "select * from sales s where not exists (select 1 from shops where name = s.shop)",
    ),
    "join-diamond": (
        _diamond,
        "select id, price / sum(price) over (partition by shop) from sales where shop is not null",
    ),
    "join-self": (
        _self_join,
        "select a.id, b.id from sales a join sales b on a.shop = b.shop and a.id < b.id",
    ),
    "aggregate": (
        lambda g: g.sales.aggregate(
            by="shop",
            n="count(*)",
            prices="count(price)",
            kinds="count(distinct price)",
            total="sum(price)",
            high="max(price)",
            middle="median(price)",
            spread="round(std(price), 6)",
        ),
        (
            "select shop, count(*), count(price), count(distinct price), sum(price), max(price), "
            "median(price), round(stddev(price), 6) from sales group by shop"
        ),
    ),
    "aggregate-several": (
        lambda g: g.sales.aggregate(by=["region", "shop"], n="count(*) filter (where price > 5)"),
        "select region, shop, count(*) filter (where price > 5) from sales group by all",
    ),
    "aggregate-all": (
        lambda g: g.sales.aggregate(total="sum(price)", n="count(*)"),
        "select sum(price), count(*) from sales",
    ),
    "aggregate-distinct": (lambda g: g.sales.aggregate(by=["shop"]), "select distinct shop from sales"),
    "aggregate-of-aggregate": (
        lambda g: g.sales.aggregate(by=["shop", "region"], n="count(*)").aggregate(by="shop", most="max(n)"),
        "select shop, max(n) from (select shop, count(*) n from sales group by shop, region) group by shop",
    ),
    "aggregate-with-key": (
        lambda g: g.sales.aggregate(by="region", twice="region * 2", n="count(*)"),
        "select region, region * 2, count(*) from sales group by region",
    ),
    "union": (
        lambda g: g.sales.where("price > 5").union(g.sales.select("price", "id", "region", "shop")),
        "select * from sales where price > 5 union all select * from sales",
    ),
    "union-of-three": (
        lambda g: g.places.union(g.places.select("city", "shop"), g.places.where("city = 'Bern'")),
        (
            "select name, city from shops union all select name, city from shops "
            "union all select name, city from shops where city = 'Bern'"
        ),
    ),
    "select": (
        lambda g: g.sales.select("*", "price * 2 as twice", "upper(shop) as `the shop`"),
        "select *, price * 2, upper(shop) from sales",
    ),
    "select-window": (
        lambda g: g.sales.select("id", "row_number() over (partition by shop order by id) as n"),
        "select id, row_number() over (partition by shop order by id) from sales",
    ),
    "select-explode": (
        lambda g: g.sales.select("id", "explode(sequence(1, region)) as n"),
        "select id, unnest(range(1, region + 1)) from sales where region is not null",
    ),
    "with-columns-replaces": (
        lambda g: g.sales.with_columns(PRICE="price + 1", extra="price").select("id", "price", "extra"),
        "select id, price + 1, price from sales",
    ),
    "drop": (lambda g: g.sales.drop("PRICE", "region"), "select id, shop from sales"),
    "top-n": (
        lambda g: g.sales.top_n(2, by="shop", order=["price desc", "id"]),
        (
            "select * from (select *, row_number() over (partition by shop order by price desc nulls last, "
            "id) as rank from sales) where rank <= 2"
        ),
    ),
    "top-n-of-all": (
        lambda g: g.sales.top_n(3, order=["price", "id desc"], rank="nth").select("nth", "id"),
        (
            "select row_number() over (order by price nulls first, id desc) as nth, id from sales "
            "order by nth limit 3"
        ),
    ),
    "latest": (
        lambda g: g.sales.latest(by="shop", timestamp="id"),
        (
            "select * exclude (nth) from (select *, row_number() over (partition by shop order by id desc) "
            "as nth from sales) where nth = 1"
        ),
    ),
    "where-null-is-not-true": (lambda g: g.sales.where("price > 5"), "select * from sales where price > 5"),
    "apply": (
        lambda g: g.sales.apply(_double_price),
        "select id, shop, region, price * 2 from sales",
    ),
    "apply-schema": (
        lambda g: g.sales.apply(
            lambda frame: frame.groupBy("shop").agg(F.count("*").alias("n")), schema="n BIGINT, shop STRING"
        ),
        "select count(*), shop from sales group by shop",
    ),
    "from-frame": (
        lambda g: g.flow.read("numbers", from_frame(lambda spark: spark.range(5), "id INT")).select(
            "id + 1 as n"
        ),
        "select range + 1 from range(5)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bounded_operator_gives_what_duckdb_gives(case: str, run: Run, rows: Rows) -> None:
    """Rows, their counts, nulls and column names are those of DuckDB."""
    declare, query = CASES[case]
    tables = _Tables()
    stream = declare(tables)
    stream.write("out", Parquet("out"))

    run(tables.flow)

    for table in ("sales", "shops"):
        query = query.replace(f"from {table}", f"from '{{dir}}/{table}/*.parquet'")
        query = query.replace(f"join {table}", f"join '{{dir}}/{table}/*.parquet'")
    assert rows("select * from '{dir}/out/*.parquet'") == rows(query)
    names = rows("select column_name from (describe select * from '{dir}/out/*.parquet')")
    assert sorted(stream.columns) == [name for (name,) in names]


MISTAKES: dict[str, tuple[Callable[[_Tables], Stream], str]] = {
    "unknown-function": (
        lambda g: g.sales.select("id", "no_such(price) as x"),
        "'select_3' cannot be compiled: .*no_such",
    ),
    "type": (lambda g: g.sales.where("price + array(1) > 1"), "'where_1' cannot be compiled: "),
    "type-in-aggregate": (
        lambda g: g.sales.aggregate(by="shop", n="sum(reverse(split(shop, '')))"),
        "'aggregate_1' cannot be compiled: ",
    ),
    "not-an-aggregate": (
        lambda g: g.sales.aggregate(by="shop", n="crc32(price)"),
        "'aggregate_1' cannot be compiled: .*price",
    ),
    "union-types": (
        lambda g: g.places.union(g.shops.select("coalesce(array(1)) as shop", "city")),
        "'union_1' cannot be compiled: ",
    ),
    "field": (
        lambda g: g.sales.select("named_struct('a', price).b as x"),
        "'select_3' cannot be compiled: .*`?b`?",
    ),
    "apply-columns": (
        lambda g: g.sales.apply(lambda frame: frame.drop("price"), name="model"),
        "'model': its function returned the columns id, shop, region, and id, .*, price were declared",
    ),
    "apply-none": (lambda g: g.sales.apply(lambda _: None, name="model"), "'model': .* returned a NoneType"),
    "frame-columns": (
        lambda g: g.flow.read("made", from_frame(lambda spark: spark.range(5), "n BIGINT")),
        "source 'made' declares the column 'n', and its function returned id",
    ),
    "no-time": (
        lambda g: g.sales.with_columns(at="price * 2").latest(by="shop", timestamp="at", name="newest"),
        "operator 'newest': timestamp 'at' is DOUBLE: neither BIGINT",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_operator_that_spark_refuses_is_named(case: str, run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """The error is one line that names the operator, without a JVM trace."""
    declare, message = MISTAKES[case]
    tables = _Tables()
    declare(tables).write("out", Parquet("out"))

    with pytest.raises(PlanError, match=message) as caught:
        run(tables.flow)

    assert "\n" not in str(caught.value)
    assert "org.apache" not in str(caught.value)
    assert capfd.readouterr().err == ""
