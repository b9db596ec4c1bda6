"""Expressions have columns and a name, and can be rewritten with other columns."""

import pytest
import sqlglot
from hypothesis import example, given
from hypothesis import strategies as st

from flowcore.api.expressions import Expression
from flowcore.errors import PlanError

PIECES = [
    "price", "Price", "`b c`", "bid.price", "bid.`b c`.x", "xs[0].price", "m['price']", "'price'", '"price"',
    "'it''s `price`'", r"'it\'s price'", "r'\\price'", "'é😀 price'", "`é😀`", "1.5", "/* price */ price",
    "transform(xs, x -> x + price)", "transform(xs, price -> price + 1)",
    "aggregate(xs, 0, (acc, x) -> acc + x * price, acc -> acc / `b c`)",
    "transform(xs, x -> transform(ys, y -> x.a + y + price))", "exists(xs, x -> x > price)",
    "map_filter(m, (k, v) -> k > v and price > 1)", "case when price > 1 then 'price' else `b c` end",
    "cast(price as decimal(10, 2))", "price::int", "extract(year from ts)", "interval 1 day + ts",
    "timestampdiff(HOUR, ts, end)", "named_struct('price', price)", "price between 1 and `b c`", "date",
    "key", "value", "`order`", "count", "sum(price) over (partition by `b c` order by ts)", "user",
    "max(price) filter (where `b c` > 1)", "count(distinct price)", "price\n-- price, not 'this'\n",
]  # fmt: skip
JOINS = [" + ", "+", " || ", "\n,\t".replace(",", "||"), " <=> ", " /* `price` */ - "]


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Expressions of several pieces that mislead a search for names."""
    pieces = draw(st.lists(st.sampled_from(PIECES), min_size=1, max_size=4))
    text = draw(st.sampled_from(["", " ", "\n"]))
    for number, piece in enumerate(pieces):
        text += (draw(st.sampled_from(JOINS)) if number else "") + piece
    return text


def _tree(text: str) -> str:
    tree = sqlglot.parse_one(text, dialect="spark")
    return tree.sql("spark", comments=False, identify=True)


@given(texts())
def test_expression_renamed_to_the_same_names_is_the_same(text: str) -> None:
    """Renaming each column to itself adds backquotes and changes nothing else."""
    expression = Expression.parse(text, "op")
    # Spark compares without case, so the spelling of a name is the only thing that may change.
    same = {name.lower(): name.lower() for name in expression.columns}

    assert _tree(expression.rename(same)).lower() == _tree(text).lower()


@given(texts())
def test_expression_renamed_and_renamed_back_is_the_same(text: str) -> None:
    """Every column is renamed, but no literal, comment, field or lambda variable."""
    expression = Expression.parse(text, "op")
    there = {name.lower(): f"_c{number}" for number, name in enumerate(expression.columns)}
    back = {new: old for old, new in there.items()}

    renamed = Expression.parse(expression.rename(there), "op")

    assert {name.lower() for name in renamed.columns} == set(there.values())
    assert _tree(renamed.rename(back)).lower() == _tree(text).lower()


@given(
    texts(), st.sampled_from([" as total", " AS `a total`", " total", "\nas\ntotal", "/*as*/as/* as */total"])
)
def test_expression_without_its_alias_is_the_expression(text: str, alias: str) -> None:
    """The text before the alias is kept, for every spelling of the alias."""
    expression = Expression.parse(text + alias, "op")

    assert expression.name == ("a total" if "`" in alias else "total")
    assert _tree(expression.text) == _tree(text)


@pytest.mark.parametrize(
    ("text", "body", "name"),
    [
        ("price", "price", "price"),
        ("bid.price", "bid.price", "price"),
        ("xs[0].price", "xs[0].price", "price"),
        ("`b c`", "`b c`", "b c"),
        ("price * 2", "price * 2", None),
        ("(a + b)as c", "(a + b)", "c"),
        ("a as -- as x\n c", "a", "c"),
        ("a -- as c", "a -- as c", "a"),
        ("cast(a as int)", "cast(a as int)", None),
        ("struct(a as b) as c", "struct(a as b)", "c"),
    ],
)
def test_expression_has_the_name_that_spark_gives(text: str, body: str, name: str | None) -> None:
    """A column and a field have their own name, an alias has the alias, others have none."""
    expression = Expression.parse(text, "op")

    assert (expression.text, expression.name) == (body, name)


def test_expression_positions_count_characters_not_bytes() -> None:
    """Characters of several bytes before a column do not shift its position."""
    expression = Expression.parse("concat('é😀漢', `é`, price)", "op")

    assert expression.rename({"é": "_c1", "price": "_c2"}) == "concat('é😀漢', `_c1`, `_c2`)"


@pytest.mark.parametrize(
    ("text", "aggregates"),
    [
        ("max(price)", True), ("1 + count(*)", True), ("mean(price)", True), ("std(price)", True),
        ("any(sold)", True), ("every(sold)", True), ("try_sum(price)", True), ("hll_sketch_agg(a)", True),
        ("max(price) filter (where sold)", True),
        ("percentile_cont(0.5) within group (order by price)", True),
        ("sum(sum(price)) over (order by ts)", True),
        ("greatest(a, b)", False), ("array_max(xs)", False), ("name like any ('a', 'b')", False),
        ("aggregate(xs, 0, (acc, x) -> acc + x)", False), ("sum(price) over (partition by a)", False),
        ("lag(price) ignore nulls over (order by ts)", False), ("my_function(price)", False),
    ],
)  # fmt: skip
def test_expression_finds_aggregates(text: str, aggregates: bool) -> None:
    """Aggregates make one row of many; window functions and array functions do not."""
    assert Expression.parse(text, "op").aggregates is aggregates


@pytest.mark.parametrize(
    "text", ["explode(xs)", "posexplode_outer(xs)", "inline_outer(xs)", "stack(2, a, b)"]
)
def test_expression_finds_generators(text: str) -> None:
    """Generators make several rows of one."""
    assert Expression.parse(text, "op").generates


@pytest.mark.parametrize(
    ("text", "array", "outer"),
    [
        ("explode(tags) as tag", "tags", False),
        ("EXPLODE /* ( */ (split(a, ')')) -- )", "split(a, ')')", False),
        ("explode_outer( array(price, 2) )", "array(price, 2)", True),
    ],
)
def test_expression_finds_the_array_of_explode(text: str, array: str, outer: bool) -> None:
    """It is an expression of its own, in the user's spelling."""
    found = Expression.parse(text, "op").exploded
    assert found is not None
    assert (found[0].text, found[1]) == (array, outer)
    assert found[0].columns == Expression.parse(text, "op").columns


@pytest.mark.parametrize(
    "text",
    ["explode(xs)[0]", "upper(explode(xs))", "explode(array(explode(xs)))", "posexplode(xs)", "inline(xs)",
     "size(xs)", "xs", "explode(distinct xs)"],
)  # fmt: skip
def test_expression_is_not_a_call_of_explode(text: str) -> None:
    """Other generators, and more than the call, have no array."""
    assert Expression.parse(text, "op").exploded is None


@pytest.mark.parametrize(
    "text",
    [
        "price >", "1 +", "(((", "a b c", "a, b", "", "  ", "select 1", "select a from t", "a; drop table x",
        "(select max(x) from t)", "a in (select b from t)", "exists (select 1)",
        "with x as (select 1) select 1",
        "insert into t values (1)", "set", "set a = 1", "describe t", "map(a)", "else", "bid.*", "bid:price",
    ],
)  # fmt: skip
def test_expression_refuses_what_is_not_one_expression(text: str) -> None:
    """The message names operator and text, without terminal codes or stack."""
    with pytest.raises(PlanError) as caught:
        Expression.parse(text, "enrich")

    assert f"operator 'enrich': {text!r}" in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value).replace(repr(text), "")


@given(st.text(max_size=30))
@example("a.?")
def test_expression_is_parsed_or_refused_and_nothing_else(text: str) -> None:
    """For any text the only error is `PlanError`."""
    try:
        expression = Expression.parse(text, "op")
    except PlanError:
        return
    assert expression.rename({name.lower(): "c" for name in expression.columns})
