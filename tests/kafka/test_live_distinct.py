"""Numbers of distinct values of a stream are exact, whatever the batches and restarts."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic
from tests.kafka.conftest import Live

pytestmark = pytest.mark.kafka

VISIT = "page STRING, user BIGINT, seconds DOUBLE"
Pages = dict[Any, tuple[Any, ...]]


def visited_pages(visits: KafkaTopic, pages: KafkaTopic, total: KafkaTopic) -> Flow:
    """Users of each page beside other aggregates, and of all pages."""
    flow = Flow("visits")
    read = flow.read("visits", visits)
    found = read.where("user > -5").aggregate(
        by="page", users="count(distinct user)", times="count(distinct round(seconds))", n="count(*)",
        total="sum(seconds)", longest="max(seconds)", name="per_page",
    )  # fmt: skip
    found.select("page", "users", "times", "n", "total", "longest").write("pages", pages)
    read.aggregate(users="count(distinct user)", name="everything").write("total", total, key="users")
    return flow


def expected(rows: list[dict[str, Any]]) -> Pages:
    """The results by page."""
    by_page: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["user"] is not None:
            by_page[row["page"]].append(row)
    found: Pages = {}
    for page, of_page in by_page.items():
        seconds = [row["seconds"] for row in of_page if row["seconds"] is not None]
        times = {int(each + 0.5) for each in seconds}
        found[page] = (
            len({row["user"] for row in of_page}), len(times), len(of_page),
            sum(seconds) if seconds else None, max(seconds, default=None),
        )  # fmt: skip
    return found


@pytest.mark.thorough
def test_distinct_values_are_counted_over_slices_and_a_repeated_batch(live: Live) -> None:
    """Nulls do not count; a page is emitted only if it has changed; state has each value once."""
    visits = live.topic("visits", schema=VISIT)
    pages, total = live.topic("pages"), live.topic("total")
    flow = visited_pages(visits, pages, total)
    chance = random.Random(3)  # noqa: S311 - test data
    rows: list[dict[str, Any]] = [
        {
            "page": chance.choice(["a", "b", "c", None]),
            "user": chance.choice([None, *range(40)]),
            "seconds": chance.choice([None, 0.25, 1.25, 2.75, 2.75, 9.5]),
        }
        for _ in range(300)
    ]
    for part in (rows[:100], rows[100:200], rows[200:]):
        live.send(visits, *part, partitions=2)
        live.run(flow)
    live.forget_last_batch("visits", "visits-batches")
    again = {"page": "a", "user": 1, "seconds": 0.25}
    live.send(visits, again, partitions=2)
    live.run(flow)

    latest = {row.get("page"): row for row in live.values(pages)}
    assert {
        page: tuple(row.get(name) for name in ("users", "times", "n", "total", "longest"))
        for page, row in latest.items()
    } == expected([*rows, again])
    assert live.values(total)[-1]["users"] == 40
    found: dict[str, dict[str, Any]] = {}
    for record in [*live.records(pages), *live.records(total)]:
        assert found.setdefault(record.id, record.json) == record.json
    (everything,) = live.held_keys(flow, "everything")
    assert everything.states["values0"] == 40
    counted = {str(key.key["page"]): key.states["values0"] for key in live.held_keys(flow, "per_page")}
    assert counted == {str(page): values[0] for page, values in expected(rows).items()}
