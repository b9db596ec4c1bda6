"""Mistakes in a flow are errors when they are declared, with the names of operator and column."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest

from flowcore import Csv, Flow, Json, KafkaTopic, Parquet, Session, Tumbling
from flowcore.errors import PlanError, SchemaError
from tests.unit.api.given_streams import GivenStreams

MISTAKES: dict[str, tuple[Callable[[GivenStreams], object], str]] = {
    # unknown columns
    "select-unknown": (
        lambda g: g.bids.select("prize", name="pick"),
        "operator 'pick': 'prize' names the column 'prize', .*did you mean 'price'?",
    ),
    "select-unknown-in-expression": (
        lambda g: g.bids.select("round(prise) as p", name="pick"),
        "operator 'pick': .*'prise'.*did you mean 'price'?",
    ),
    "select-unknown-far": (
        lambda g: g.bids.select("zzz"),
        "operator 'select_1'.*'zzz'.*has shop, price, tags",
    ),
    "where-unknown": (lambda g: g.bids.where("prize > 1"), "operator 'where_1'.*'prize'"),
    "with-unknown": (lambda g: g.bids.with_columns(x="prize + 1"), "operator 'with_columns_1'.*'prize'"),
    "select-flush": (
        lambda g: g.bids.select("shop", flush=timedelta(seconds=5)),
        "operator 'select_1': select takes no flush=: .*at an operator with state",
    ),
    "select-keyword": (
        lambda g: g.bids.select(twice="price * 2"),
        "select takes no twice=: .*'price [*] 2 as twice'",
    ),
    "drop-list": (
        lambda g: g.bids.drop(["shop"]),
        "drop.* names \\['shop'\\], which is not the text",
    ),
    "group-by": (lambda g: g.bids.group_by("shop"), "a stream has no group_by: .* aggregate\\(by='id'"),
    "window-write": (
        lambda g: g.bids.window(Tumbling(1), by="shop", time="processing").write("o", KafkaTopic("o")),
        "operator 'window_1': write directly after window.* call aggregate",
    ),
    "sink-text": (
        lambda g: g.bids.write("out", "top-prices"),
        "sink 'out': 'top-prices' is not a sink: .*KafkaTopic\\('top-prices'\\)",
    ),
    "source-text": (
        lambda g: g.flow.read("more", "top-prices"),
        "source 'more': 'top-prices' is not a source: .*KafkaTopic\\('top-prices', schema=",
    ),
    "topic-without-schema": (
        lambda g: g.flow.read("more", KafkaTopic("m")),
        r"'more': KafkaTopic\('m'\) has no schema",
    ),
    "with-nothing": (lambda g: g.bids.with_columns(), r"with_columns\(\) makes no column"),
    "with-name": (
        lambda g: g.bids.with_columns(name="upper(shop)"),
        r"name= is the operator's name.* write select\('\*', 'upper\(shop\) as name'\)",
    ),
    "with-name-of-a-column": (
        lambda g: g.bids.with_columns(twice="price * 2", name="shop"),
        r"name= is the operator's name.* write select\('\*', 'shop as name'\)",
    ),
    "aggregate-name": (
        lambda g: g.bids.aggregate(by="shop", name="max(price)"),
        r"name= is the operator's name.* compute value='max\(price\)'",
    ),
    "window-aggregate-name": (
        lambda g: g.bids.window(Tumbling(1), by="shop", time="processing").aggregate(name="max(price)"),
        "name= is the operator's name",
    ),
    "co-group-name": (
        lambda g: g.sales.co_group(g.shops, on="shop", name="count(left)"),
        "name= is the operator's name",
    ),
    "aggregate-unknown-by": (
        lambda g: g.bids.aggregate(by="shob", n="count(*)"),
        "'aggregate_1': by='shob'.*'shop'",
    ),
    "aggregate-unknown": (lambda g: g.bids.aggregate(by="shop", n="max(prize)"), "'aggregate_1'.*'prize'"),
    "join-unknown-left": (lambda g: g.bids.join(g.shops, on="city"), r"'join_1'.*left input 'bids'.*'city'"),
    "join-unknown-right": (
        lambda g: g.bids.join(g.shops, on={"shop": "shob"}),
        r"right input 'shops'.*'shob'",
    ),
    "write-unknown-key": (
        lambda g: g.bids.write("out", KafkaTopic("o"), key="shob"),
        "operator 'out'.*'shob'",
    ),
    "struct-star": (lambda g: g.bids.select("tags.*"), "operator 'select_1'.*cannot be checked"),
    "drop-unknown": (lambda g: g.bids.drop("prize"), "operator 'drop_1'.*'prize'.*did you mean 'price'"),
    "drop-nothing": (lambda g: g.bids.drop(), "operator 'drop_1' drops nothing.*shop, price, tags, not all"),
    "drop-all": (
        lambda g: g.best.drop("best", "shop"),
        "operator 'drop_1' leaves no column.*shop, best, not all",
    ),
    "drop-key": (lambda g: g.best.drop("shop").write("out", KafkaTopic("o")), "sink 'out'.*no key"),
    "dropped-column": (lambda g: g.bids.select("shop").where("price > 1"), "operator 'where_1'.*'price'"),
    "other-table": (lambda g: g.bids.where("shops.city = 'x'"), "operator 'where_1'.*'shops'"),
    # names
    "select-unnamed": (
        lambda g: g.bids.select("price * 2"),
        r"'select_1': 'price \* 2' has no name.*price \* 2 as",
    ),
    "select-nothing": (lambda g: g.bids.select(), "'select_1' selects nothing"),
    "select-twice": (lambda g: g.bids.select("shop", "price as Shop"), "'select_1'.*column 'Shop' twice"),
    "star-twice": (lambda g: g.bids.select("*", "*"), "'select_1'.*column 'price' twice"),
    "aggregate-twice": (
        lambda g: g.bids.aggregate(by="shop", SHOP="max(price)"),
        "'aggregate_1'.*'SHOP' twice",
    ),
    "sink-named-as-operator": (
        lambda g: g.best.write("best", KafkaTopic("o")),
        r"sink 'best' has the name of operator 'best': sinks and operators share .* write\('best_out', ...\)",
    ),
    "sink-named-as-source": (
        lambda g: g.best.write("Bids", KafkaTopic("o")),
        r"sink 'Bids' has the name of source 'bids': .* write\('Bids_out', ...\)",
    ),
    "operator-named-as-sink": (
        lambda g: [g.bids.write("out", KafkaTopic("o")), g.bids.where("true", name="out")],
        "sink 'out' has the name of operator 'out'",
    ),
    "two-sinks": (
        lambda g: [g.bids.write("out", KafkaTopic(topic)) for topic in ("one", "two")],
        "two operators named 'out'",
    ),
    "two-operators": (lambda g: g.bids.where("true", name="Sales"), "two operators named 'Sales'"),
    "operator-name": (lambda g: g.bids.where("true", name="a/b"), "operator name 'a/b'"),
    "operator-name-dots": (lambda g: g.bids.where("true", name=".."), r"operator name '\.\.'"),
    "flow-name": (lambda _: Flow("my flow"), "flow name 'my flow'"),
    "flow-name-empty": (lambda _: Flow(""), "flow name ''"),
    # aggregates where there are no groups, and the other way round
    "select-aggregate": (
        lambda g: g.sales.select("max(price) as m"),
        r"'select_1': 'max\(price\) as m' aggregates",
    ),
    "select-windows": (
        lambda g: g.bids.select("window(to_timestamp(shop), '2 minutes', '1 minute') as w"),
        r"'select_1': .window\(.*turns one record of an unbounded input into several",
    ),
    "select-mean": (lambda g: g.sales.select("mean(price) as m"), r"'select_1'.*aggregates"),
    "where-aggregate": (lambda g: g.bids.where("count(*) > 1"), "'where_1'.*aggregates"),
    "aggregate-plain": (
        lambda g: g.sales.aggregate(by="shop", p="price"),
        r"'aggregate_1': p='price' is not an aggregate.*max\(price\)",
    ),
    "aggregate-of-one-row": (
        lambda g: g.bids.aggregate(by="shop", p="round(price)"),
        r"'aggregate_1': p='round\(price\)' is not an aggregate.*max\(round\(price\)\)",
    ),
    "aggregate-and-a-row": (
        lambda g: g.sales.aggregate(by="shop", p="max(price) + price"),
        r"'aggregate_1': p='max\(price\) \+ price' reads 'price' outside of an aggregate.*'max\(price\)'",
    ),
    "aggregate-nothing": (lambda g: g.sales.aggregate(), "'aggregate_1' groups and computes nothing"),
    "aggregate-star": (lambda g: g.sales.aggregate(by="shop", n="*"), "'aggregate_1'.*not an aggregate"),
    "where-star": (lambda g: g.bids.where("*"), r"'where_1': '\*' stands for all columns"),
    "window-live": (
        lambda g: g.bids.select("lag(price) over (order by shop) as p"),
        "'select_1'.*neighbouring rows",
    ),
    "explode-live": (
        lambda g: g.bids.select("upper(explode(tags)) as tag"),
        "'select_1'.*turns one record .* into several.*explode",
    ),
    "explode-where-live": (lambda g: g.bids.where("explode(tags) > 'a'"), "'where_1'.*turns one record"),
    "explode-inline-live": (lambda g: g.bids.with_columns(t="inline(tags)"), "'with_columns_1'.*turns one"),
    "explode-two-live": (
        lambda g: g.bids.with_columns(a="explode(tags)", b="explode_outer(tags)"),
        "'with_columns_1': a and b each turn one record into several",
    ),
    "explode-updating": (
        lambda g: (
            g.bids.aggregate(by="shop", prices="collect_list(price)")
            .select("shop", "explode(prices) as one")
            .write("out", KafkaTopic("o"))
        ),
        "sink 'out'.*no key says which record",
    ),
    "distinct-live": (
        lambda g: g.bids.aggregate(by="shop", n="sum(distinct price)"),
        r"'aggregate_1'.*distinct values of the unbounded 'bids'.*count\(distinct",
    ),
    # SQL
    "garbage": (lambda g: g.bids.where("price >"), "'where_1': 'price >' is not a Spark SQL expression"),
    "unfinished": (lambda g: g.bids.where("price > 1 and"), r"'expression' missing for AND\. Line"),
    "ampersands": (lambda g: g.bids.where("price > 1 && shop > 'a'"), r"\(SQL writes AND for &&\)$"),
    "subquery": (lambda g: g.bids.where("price > (select 1)"), "'where_1'.*subqueries"),
    "statement": (lambda g: g.bids.select("select 1"), "'select_1'.*statements"),
    "not-text": (lambda g: g.bids.where(3), "'where_1': 3 is not Spark SQL text"),  # type: ignore[arg-type]
    # joins
    "join-unbounded": (
        lambda g: g.bids.join(g.asks, on="shop"),
        "'join_1' joins two unbounded streams without ttl=",
    ),
    "join-bounded-with-live": (
        lambda g: g.sales.join(g.bids, on="shop"),
        r"'join_1'.*bids.join\(sales, ...\)",
    ),
    "join-ambiguous": (
        lambda g: g.bids.join(g.sales, on="shop"),
        "'join_1': both inputs 'bids' and 'sales' have .*'price'.*rename",
    ),
    "join-full-live": (
        lambda g: g.bids.join(g.shops, on="shop", how="full"),
        "'join_1': how='full'.*inner, left, semi, anti$",
    ),
    "join-right-live": (
        lambda g: g.bids.join(g.shops, on="shop", how="right"),
        "'join_1': how='right'.*unbounded left",
    ),
    "join-no-such": (
        lambda g: g.bids.join(g.shops, on="shop", how="outer"),
        "how='outer': there is no such join",
    ),  # type: ignore[arg-type]
    "join-on-nothing": (lambda g: g.bids.join(g.shops, on=[]), "'join_1' joins on nothing"),
    "join-other-flow": (
        lambda g: g.bids.join(GivenStreams().shops, on="shop"),
        "'join_1' takes 'shops' of the flow",
    ),
    # unions
    "union-columns": (
        lambda g: g.bids.union(g.best),
        "'union_1': 'bids' and 'best' differ in the columns best, price, tags",
    ),
    "union-mixed": (
        lambda g: g.bids.union(g.sales),
        "'union_1' mixes the bounded 'sales' with the unbounded 'bids'",
    ),
    "union-updating": (
        lambda g: g.best.union(g.asks.aggregate(by="shop", best="max(price)")),
        "'union_1': records of 'best' replace",
    ),
    "union-other-flow": (lambda g: g.bids.union(GivenStreams().bids), "'union_1' takes 'bids' of the flow"),
    # sinks
    "sink-no-key": (
        lambda g: g.best.select("best").write("out", KafkaTopic("o")),
        "sink 'out': .*no key says which.*; keep its key shop$",
    ),
    "sink-no-key-after-apply": (
        lambda g: g.best.apply(lambda f: f).write("out", KafkaTopic("o")),
        "sink 'out'.*no key",
    ),
    "sink-no-key-after-replacing": (
        lambda g: g.best.with_columns(shop="upper(shop)").write("out", KafkaTopic("o")),
        "sink 'out'.*no key",
    ),
    "sink-files-updating": (
        lambda g: g.best.write("out", Parquet("o")),
        "sink 'out'.*files cannot do.*KafkaTopic",
    ),
    "sink-folders-unknown": (
        lambda g: g.bids.write("out", Parquet("o", partition_by="town")),
        "'out': partition_by='town' names the column 'town'",
    ),
    "sink-folders-twice": (
        lambda g: g.bids.write("out", Json("o", partition_by=("shop", "SHOP"))),
        "'out'.*'shop' twice",
    ),
    "sink-folders-all": (
        lambda g: g.bids.select("shop").write("out", Csv("o", partition_by="Shop")),
        "sink 'out': .*no column would be left",
    ),
    "sink-folder-shared": (
        lambda g: [g.bids.write(name, Parquet("o")) for name in ("one", "two")],
        "sink 'two' writes to the folder 'o', and so does 'one'",
    ),
    "sink-folder-shared-bounded": (
        lambda g: [each.write(each.operator.name + "_out", Json("o")) for each in (g.sales, g.shops)],
        "sink 'shops_out' writes to the folder 'o', and so does 'sales_out': .* rows of one would be lost",
    ),
    "sink-folder-nested": (
        lambda g: [g.sales.write("one", Parquet("o/1")), g.sales.write("all", Json("o"))],
        "sink 'all' writes to the folder 'o', and 'o/1' is that of 'one'",
    ),
    "sink-loop": (
        lambda g: g.bids.where("price > 1").write("out", KafkaTopic("bids")),
        "sink 'out' writes topic 'bids', which its source 'bids' reads: .* without end",
    ),
    "sink-of-dead-letters": (
        lambda g: g.bids.write("out", KafkaTopic("asks.dead-letter")),
        "sink 'out' writes topic 'asks.dead-letter', where the dead letters of source 'asks' are",
    ),
    "sink-of-events": (
        lambda g: g.bids.write("out", KafkaTopic("bids.events")),
        "sink 'out' writes topic 'bids.events', where the events of source 'bids' are",
    ),
    "sink-folder-read": (
        lambda g: g.sales.where("price > 1").write("out", Parquet("./s/")),
        "sink 'out' writes the folder 's', which its source 'sales' reads",
    ),
    "sink-around-its-source": (
        lambda g: g.flow.read("in", Csv("data/in", schema="a INT")).write("out", Parquet("data")),
        "sink 'out' writes the folder 'data', and the folder 'data/in' in it is what its source 'in' reads",
    ),
    "sink-in-its-source": (
        lambda g: g.sales.write("out", Parquet("s/out")),
        "sink 'out' writes the folder 's/out', and the folder 's' around it is what its source 'sales' reads",
    ),
    "sink-around-another-source": (
        lambda g: [
            g.sales.write("out", Parquet("data")),
            g.flow.read("in", Csv("data/in", schema="a INT")),
        ],
        "sink 'out' writes the folder 'data', .* 'data/in' in it .* source 'in' reads",
    ),
    "sink-in-no-folder": (
        lambda g: g.sales.write("out", Csv("")),
        "sink 'out': path='' of Csv is not the text of a path",
    ),
    "sink-in-data-dir": (
        lambda g: g.sales.write("out", Parquet("x/..")),
        "sink 'out': path='x/..' of Parquet is data.dir or a folder around it: .* would be removed",
    ),
    "source-in-no-folder": (
        lambda g: g.flow.read("x", Parquet(None, schema="a INT")),  # type: ignore[arg-type]
        "source 'x': path=None of Parquet is not the text of a path",
    ),
    "sink-with-options-of-sources": (
        lambda g: g.bids.write("out", KafkaTopic("o", event_time="at", until="latest")),
        "sink 'out': until=, event_time= of topic 'o' counts only where a topic is read",
    ),
    "join-expression": (
        lambda g: g.bids.join(g.shops, on="shop = city"),
        r"on='shop = city' is .*on=\{'shop': 'city'\}",
    ),
    "sink-files-with-key": (
        lambda g: g.bids.write("out", Parquet("o"), key="shop"),
        "sink 'out': key='shop', and rows of files have no key",
    ),
    "sink-deleted-expression": (
        lambda g: g.best.write("out", KafkaTopic("o"), deleted="best = 0"),
        r"'out': deleted='best = 0' .* it is an expression: compute it with with_columns\(",
    ),
    "order-expression": (
        lambda g: g.bids.top_n(2, by="shop", order="price * 2 desc"),
        r"'top_n_1': order=.* 'price \* 2', .* it is an expression: compute it with with_columns\(",
    ),
    "where-alias": (
        lambda g: g.bids.where("price > 1 as x"),
        "'where_1': 'price > 1 as x' gives 'price > 1' the name 'x', and the value has no name here",
    ),
    "gap-alias": (
        lambda g: g.bids.window(Session(gap="10 secs"), by="shop", time="processing").aggregate(n="count(*)"),
        "gap='10 secs' gives '10' the name 'secs'",
    ),
    "event-time-alias": (
        lambda g: g.flow.read("x", KafkaTopic("x", schema="at BIGINT", event_time="at typo")),
        "operator 'x': event_time='at typo' gives 'at' the name 'typo'",
    ),
    # sources
    "no-schema": (lambda g: g.flow.read("x", Parquet("x")), "operator 'x'.*has no schema"),
    "apply-schema": (lambda g: g.bids.apply(lambda f: f, schema="a INT, A INT"), "names a twice"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_flow_refuses(case: str) -> None:
    """Each mistake is an error when it is declared; the message names the operator and has one line."""
    declare, message = MISTAKES[case]

    with pytest.raises((PlanError, SchemaError)) as caught:
        declare(GivenStreams())

    assert re.search(message, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)
