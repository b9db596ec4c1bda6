"""Column lineage gives, for each column of a result, the source columns it is computed from."""

from __future__ import annotations

import pytest

from flowcore import EndOfStream, Flow, Parquet
from flowcore.api.flow import Stream
from flowcore.planner.rules.columns import trace_columns
from pipelines.auctions.flow import catalog


def _lineage(stream: Stream) -> dict[str, str]:
    return {
        column: " ".join(f"{source.name}.{name}" for source, name in origins)
        for column, origins in trace_columns(stream.operator).items()
    }


@pytest.fixture
def sales() -> Stream:
    """A source with three columns."""
    return Flow("f").read("sales", Parquet("sales", schema="Item STRING, price DOUBLE, shop STRING"))


def test_lineage_of_the_reference_flow() -> None:
    """It follows two joins and an aggregate."""
    assert _lineage(catalog) == {
        "auction_id": "auctions.auction_id",
        "category": "auctions.category",
        "seller": "auctions.seller",
        "sold": "auctions.auction_id",
        "median": "past_bids.price",
    }


def test_lineage_of_passed_columns(sales: Stream) -> None:
    """Columns that are not dropped keep their origin."""
    assert _lineage(sales.drop("item")) == {"price": "sales.price", "shop": "sales.shop"}


def test_lineage_of_ranked_records(sales: Stream) -> None:
    """Each column is its own; a rank is made of the columns of the order."""
    windows = sales.window(EndOfStream(), by="shop")

    assert _lineage(windows.top_n(1, order="price desc").select("shop", "item", "price", "rank")) == {
        "shop": "sales.shop",
        "item": "sales.Item",
        "price": "sales.price",
        "rank": "sales.price",
    }


def test_lineage_of_expressions(sales: Stream) -> None:
    """All columns of an expression count; conditions and the case of names do not."""
    made = (
        sales.where("shop = 'a'").with_columns(worth="price * length(ITEM)").select("worth", "shop as place")
    )

    assert _lineage(made) == {"worth": "sales.Item sales.price", "place": "sales.shop"}


def test_lineage_of_a_union_is_that_of_all_inputs() -> None:
    """Columns are matched by name."""
    flow = Flow("f")
    one, two = (flow.read(name, Parquet(name, schema="a BIGINT")) for name in ("one", "two"))

    assert _lineage(one.union(two)) == {"a": "one.a two.a"}


@pytest.mark.parametrize(("how", "key"), [("left", "one.a"), ("full", "one.a two.b")], ids=["left", "full"])
def test_lineage_of_a_key_is_that_of_the_sides_that_may_give_it(how: str, key: str) -> None:
    """The key of a full join is from both sides."""
    flow = Flow("f")
    one = flow.read("one", Parquet("one", schema="a BIGINT"))
    two = flow.read("two", Parquet("two", schema="b BIGINT, c BIGINT"))

    assert _lineage(one.join(two, on={"a": "b"}, how=how)) == {"a": key, "c": "two.c"}  # type: ignore[arg-type]


def test_lineage_of_a_function_is_all_that_it_reads(sales: Stream) -> None:
    """Columns that it passes through keep their own origin."""
    made = sales.map(lambda record: {"n": len(record["Item"])}, schema="n BIGINT")

    assert _lineage(made) == {"n": "sales.Item sales.price sales.shop"}
