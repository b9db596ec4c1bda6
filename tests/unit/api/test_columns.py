"""Streams know their columns and their key."""

from collections.abc import Callable

import pytest

from flowcore import KafkaTopic, Stream
from tests.unit.api.given_streams import GivenStreams


def test_flow_ignores_the_case_of_columns() -> None:
    """Case is ignored as in Spark; the output has the last spelling."""
    given = GivenStreams()

    stream = (
        given.bids.select("SHOP", "Price")
        .join(given.shops, on={"shop": "Shop"})
        .where("PRICE > 1 and City > ''")
    )

    assert stream.columns == ("SHOP", "Price", "city")


def test_flow_key_is_spelled_as_the_column() -> None:
    """A key in another case is the same column."""
    given = GivenStreams()

    given.bids.write("out", KafkaTopic("o"), key=["SHOP"])

    assert given.flow.sinks[0].key == ("shop",)


KEYS: dict[str, tuple[Callable[[GivenStreams], Stream], tuple[str, ...] | None]] = {
    "live-aggregate": (lambda g: g.best, ("shop",)),
    "live-aggregate-of-all": (lambda g: g.bids.aggregate(n="count(*)"), ()),
    "renamed": (lambda g: g.best.select("best", "`Shop` as place"), ("place",)),
    "kept": (lambda g: g.best.where("best > 1").with_columns(twice="best * 2"), ("shop",)),
    "joined": (lambda g: g.best.join(g.shops, on="shop"), ("shop",)),
    "bounded-aggregate": (lambda g: g.sales.aggregate(by="shop", n="count(*)"), ("shop",)),
    "bounded-join": (lambda g: g.sales.aggregate(by="shop", n="count(*)").join(g.shops, on="shop"), None),
    "drop": (lambda g: g.best.drop("best"), ("shop",)),
    "plain": (lambda g: g.bids, None),
}  # fmt: skip


@pytest.mark.parametrize("case", KEYS)
def test_flow_carries_the_key_to_the_sink(case: str) -> None:
    """A sink has the key of its input, under the name that the columns have there."""
    declare, key = KEYS[case]
    given = GivenStreams()

    declare(given).write("out", KafkaTopic("out"))

    assert given.flow.sinks[0].key == key


def test_flow_columns_follow_the_operators() -> None:
    """The order is that of the written columns."""
    given = GivenStreams()

    assert given.bids.select("*", "price * 2 as twice").columns == ("shop", "price", "tags", "twice")
    assert given.bids.select("tags", "price * 2 as Price", "*").columns == ("tags", "Price", "shop")
    assert given.bids.with_columns(Price="1", extra="2").columns == ("shop", "tags", "Price", "extra")
    assert given.bids.drop("PRICE").columns == ("shop", "tags")
    assert given.bids.join(given.shops, on="shop", how="semi").columns == given.bids.columns
    assert given.bids.join(given.shops, on="shop").columns == ("shop", "price", "tags", "city")
    assert given.sales.select("explode(tags) as tag").columns == ("tag",)
    assert given.bids.with_columns(tag="explode_outer(tags)").columns == ("shop", "price", "tags", "tag")
    assert given.sales.select("sum(price) over (partition by shop) as t").columns == ("t",)
