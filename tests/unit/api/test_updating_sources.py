"""Sources whose records replace those of their Kafka key: what is refused, and what the plan says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Parquet, Stream, Tumbling
from flowcore.api import updating_rows
from flowcore.api.operators import Operator
from flowcore.api.updating_rows import decide_changes
from flowcore.errors import ConfigurationError, PlanError
from flowcore.planner.rules.fingerprint import fingerprint_operators
from flowcore.watermarks import monotonous
from tests.unit.api.updating_flows import BID, HOUR, plan, same, top, written

SHOPS = "shop STRING NOT NULL, region STRING, total DOUBLE"


def shops(flow: Flow, name: str = "shops", **options: Any) -> Stream:
    """The rows of another flow, which replace and delete each other."""
    return flow.read(name, KafkaTopic(name, **{"schema": SHOPS, "updating_by": "shop", **options}))


@pytest.mark.parametrize("by", ["SHOP", ("shop",), ("region", "shop")])
def test_records_of_a_source_replace_those_of_their_kafka_key(by: str | tuple[str, ...]) -> None:
    """The plan prints by which columns; an aggregate takes them back, and each sink writes deletions."""
    key = (by,) if isinstance(by, str) else by
    stream = shops(Flow("f"), updating_by=by)
    assert stream.columns == ("shop", "region", "total", "is_deleted")
    shown = ", ".join(key).lower()
    assert decide_changes(stream.operator).value == f"updating by {shown}"
    assert written(stream.select("*")).deleted == "is_deleted"

    found = plan(shops(Flow("f"), updating_by=by).aggregate(by="region", n="count(*)", name="regions"))
    (query,) = found.live_queries
    assert [[node.name for node in each] for each in query.exchanges] == [["regions.changes"], ["regions"]]
    text = found.explain()
    assert f"shops is updating by {shown} because a later row of a key replaces the earlier one" in text
    assert "read KafkaTopic shops from earliest, deletions where a record has no value" in text
    assert f"changelog of the last row by {shown}, deletions where is_deleted" in text
    assert "the state of regions.changes is unbounded because it keeps the last row of each key" in text


def test_a_bounded_source_has_the_last_rows() -> None:
    """The rows are final, as those of a table."""
    stream = shops(Flow("f"), until="latest")
    assert (stream.columns, stream.operator.key) == (("shop", "region", "total"), None)
    assert decide_changes(stream.operator).value == "append"
    assert stream.operator.describe().endswith("until latest, the last row of each key")


def test_a_source_of_final_records_has_the_fingerprint_that_it_had() -> None:
    """Bounded stages of earlier versions do not run again."""
    final, updating = (shops(Flow("f"), until="latest", updating_by=by).operator for by in (None, "shop"))
    assert fingerprint_operators([final]) != fingerprint_operators([updating])
    assert fingerprint_operators([final]) == (
        "86c99f957fabb255ab34a9af5973a51fe1c0041ee18932952eb2f94cf5d64d7d"
    )


def live(flow: Flow) -> Stream:
    return flow.read("live", KafkaTopic("live", SHOPS, watermark=monotonous()))


def orders(flow: Flow) -> Stream:
    return live(flow).select("shop")


def timed_shops(flow: Flow) -> Stream:
    return shops(flow, schema="shop STRING, region STRING, id INT", watermark=monotonous())


def test_the_newest_row_of_a_source_can_be_a_partner() -> None:
    """A deleted row is no partner; the column of deletions is not in the output, whatever its name."""
    flow = Flow("f")
    renamed = timed_shops(flow).select("id", "shop as Name", "is_deleted as Gone", name="renamed")
    joined = live(flow).select("shop").join_latest(renamed, on={"shop": "Name"}, how="left", name="joined")
    assert joined.columns == ("shop", "id")
    assert decide_changes(joined.operator).value == "append"
    found = plan(joined)
    assert "left join on shop = Name, newest right on arrival, none where Gone" in found.explain()
    (query,) = found.live_queries
    used = {node.name: columns for node, columns in query.used_columns.items()}
    assert used["renamed"] == {"id", "name", "gone"}


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda f: shops(f).window(Tumbling(10), time="processing"), "replace and delete .*use aggregate"),
        (lambda f: shops(f).where("total > 1").window(Tumbling(10)), "would still be counted; use aggregate"),
        (lambda f: shops(f).reduce(max, by="shop", schema=SHOPS), "by shop: those would still be counted"),
        (lambda f: shops(f).latest(by="region"), "its rank; rank what the writer of 'shops'.*until="),
        (lambda f: shops(f).drop("is_deleted").top_n(1, order="total"), "what is deleted would still"),
        (lambda f: shops(f).deduplicate(by="shop", within=HOUR), "first of a key would pass"),
        (lambda f: shops(f).sort_by_event_time(), "must not replace"),
        (lambda f: shops(f).union(shops(f, "more")), "counted again in a union"),
        (lambda f: shops(f).where("total > 1").join(orders(f), on="shop", ttl=HOUR), "make the condition a"),
        (lambda f: shops(f, watermark=monotonous()).join_latest(live(f), on="shop"), "one more record"),
        (
            lambda f: orders(f).select("shop AS at").join_latest(timed_shops(f), on={"at": "region"}),
            "region: .*join on shop",
        ),
        (
            lambda f: live(f).select("shop", "region").join_latest(timed_shops(f), on=["shop", "region"]),
            "joins on their shop, region: .*; join on shop",
        ),
        (
            lambda f: orders(f).join_latest(timed_shops(f).where("id > 1"), on="shop"),
            "'where_1' may drop or repeat some: .*; put the condition after the join$",
        ),
        (lambda f: orders(f).join_latest(timed_shops(f).drop("is_deleted"), on="shop"), "select it too"),
        (lambda f: live(f).join_interval(shops(f), on="shop", before=HOUR, after=HOUR), "use join"),
        (lambda f: shops(f).write("out", Parquet("out")), "files cannot do"),
        (lambda f: shops(f).map(same, schema=SHOPS).aggregate(n="count(*)"), "does not have all of these"),
        (lambda f: shops(f).drop("is_deleted").aggregate(n="count(*)"), "what is deleted would still"),
        (lambda f: shops(f).where("total > 1").aggregate(n="count(*)"), "may drop or repeat some"),
        (
            lambda f: f.read("old", Parquet("old", f"{SHOPS}, is_deleted BOOLEAN")).then(shops(f)),
            "rows of the history 'old' have none.*start the topic at 'earliest'",
        ),
        (lambda f: live(f).write("out", KafkaTopic("out", updating_by="shop")), "pass key= for the"),
        (
            lambda f: top(f).through(KafkaTopic("cut", updating_by="auction"), schema=f"{BID}, rank INT"),
            "deletions cross a cut as records; leave updating_by out",
        ),
        (lambda f: shops(f, updating_by="id"), "updating_by='id'"),
        (lambda f: shops(f, updating_by=("shop", "Shop")), "shop"),
        (lambda f: shops(f, schema=f"{SHOPS}, is_deleted BOOLEAN"), "is_deleted"),
        (lambda f: shops(f, schema="shop ARRAY<STRING>"), "is ARRAY<STRING>: the text of a Kafka key"),
    ],
)  # fmt: skip
def test_what_cannot_take_rows_of_a_source_back_is_refused(
    declare: Callable[[Flow], Any], message: str
) -> None:
    """The declaration is refused at its own line, with an alternative."""
    with pytest.raises(PlanError, match=message):
        declare(Flow("f"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"updating_by": ()}, "names no columns: .*updating_by='id'"),
        ({"updating_by": ("shop", 1)}, "names no columns"),
        ({"elements": "tagged"}, "no value that a tag could precede"),
        ({"event_time": "total"}, "no event time; leave event_time out"),
        ({"deduplicate": True}, "replaces itself"),
    ],
)
def test_what_a_tombstone_cannot_have_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"updating_by=.* of topic 'shops'.*{message}"):
        shops(Flow("f"), **options)


def test_unions_of_unions_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operator upstream is visited once, however many unions there are."""
    flow = Flow("f")
    united = live(flow)
    for number in range(12):
        united = united.union(flow.read(f"more_{number}", KafkaTopic(f"more_{number}", SHOPS)))
    visited = []
    find = updating_rows.find_replacing

    def count(node: Operator) -> Operator | None:
        visited.append(node)
        return find(node)

    monkeypatch.setattr(updating_rows, "find_replacing", count)

    assert count(united.operator) is None
    assert len(visited) == len({*visited})
