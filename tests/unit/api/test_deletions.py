"""A sink writes tombstones where a column says that a record deletes its key."""

from __future__ import annotations

from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Parquet
from flowcore.api.operators import Write
from flowcore.errors import PlanError
from flowcore.planner.rules.fingerprint import fingerprint_operators


def sink(to: Any = None, **options: Any) -> Write:
    flow = Flow("f")
    stock = flow.read("stock", KafkaTopic("stock", schema="item STRING, left BIGINT, gone BOOLEAN"))
    stock.write("out", to or KafkaTopic("out"), **options)
    return flow.sinks[0]


def test_a_sink_knows_the_column_of_its_deletions() -> None:
    """It is found whatever its case, and the plan names it."""
    node = sink(key="item", deleted="GONE")

    assert node.deleted == "gone"
    assert node.describe() == "write KafkaTopic out, key item, tombstones where gone"


def test_a_sink_without_deletions_has_the_fingerprint_that_it_had() -> None:
    """Bounded stages of earlier versions do not run again."""
    with_deletions, without = sink(key="item", deleted="gone"), sink(key="item")

    assert fingerprint_operators([without]) != fingerprint_operators([with_deletions])
    assert fingerprint_operators([without]) == (
        "95199a8afd00d075826aca5cc82d98d38f04e9d590e4ecd3d12c05cf12364225"
    )


def test_the_column_need_not_be_in_the_schema_of_the_topic() -> None:
    """The column is not written."""
    topic = KafkaTopic("out", format="avro", schema="item STRING, left BIGINT")

    assert sink(topic, key="item", deleted="gone").deleted == "gone"
    with pytest.raises(PlanError, match="gone"):
        sink(topic, key="item")


@pytest.mark.parametrize(
    ("to", "options", "why"),
    [
        (None, {"deleted": "gone"}, "no key says which record is deleted"),
        (None, {"key": ["item", "gone"], "deleted": "gone"}, "is part of its key"),
        (None, {"key": "item", "deleted": "unknown"}, "unknown"),
        (
            None,
            {"key": "item", "deleted": "left"},
            r"deleted='left' is BIGINT.*with_columns\(gone='left = 0'\)",
        ),
        (Parquet("out"), {"key": "item", "deleted": "gone"}, "files keep every row"),
    ],
    ids=["no key", "in the key", "unknown", "number", "files"],
)
def test_a_tombstone_that_would_delete_nothing_is_refused(to: Any, options: Any, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        sink(to, **options)
