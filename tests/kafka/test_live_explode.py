"""``explode`` over a stream: a record becomes several, each with an id of its own."""

from __future__ import annotations

from typing import Any

import pytest

from flowcore import Flow, Tumbling, monotonous
from flowcore.planner import plan_flow
from tests.sampling import sample

pytestmark = pytest.mark.kafka

Live = Any
BID = "id BIGINT NOT NULL, tags ARRAY<STRING>, at BIGINT"
BIDS: list[Any] = [
    {"id": 1, "tags": ["a", "b,c", None], "at": 1_000},
    b"garbage",
    {"id": 2, "tags": [], "at": 2_000},
    {"id": 3, "at": 3_000},
    {"id": 4, "tags": ["d"], "at": 4_000},
]
ELEMENTS = [(1, "a"), (1, "b,c"), (1, None), (4, "d")]


@pytest.mark.parametrize("mode", sample(["slice", None], None))
def test_explode_makes_a_record_of_each_element(mode: Any, live: Live) -> None:
    """Null and empty arrays give none, or one without an element; a bad record is one dead letter.

    Other branches of the source keep their records. Slices and real-time mode give the same records and ids.
    """
    bids, out, words, outer, all_ = (live.topic(name) for name in ("bids", "out", "words", "outer", "all"))
    bids = live.topic("bids", schema=BID)
    flow = Flow("f")
    source = flow.read("bids", bids)
    tags = source.select("id", "explode(tags) as tag", name="tags")
    tags.write("out", out)
    tags.with_columns(tag="explode(split(tag, ','))").write("words", words)
    source.with_columns(tag="EXPLODE_OUTER(tags)", twice="id * 2").drop("tags").write("outer", outer)
    source.write("all", all_)
    modes = {query.mode.value for query in plan_flow(flow, mode).live_queries}
    assert modes == {mode or "realtime"}
    live.send(bids, *BIDS)

    def follow(run: Any) -> None:
        for topic, count in ((out, 4), (words, 4), (outer, 6), (all_, 4), (bids.dead_letter, 1)):
            live.wait_for_records(run, topic, count)

    live.run(flow, mode, None if mode else follow)

    def found(topic: Any) -> list[Any]:
        rows = [(r.json["id"], r.json.get("tag")) for r in live.records(topic)]
        return sorted(rows, key=str)

    assert found(out) == sorted(ELEMENTS, key=str)
    assert found(words) == [(1, "a"), (1, "b"), (1, "c"), (4, "d")]
    assert found(outer) == sorted([*ELEMENTS, (2, None), (3, None)], key=str)
    assert {value["twice"] for value in live.values(outer)} == {2, 4, 6, 8}
    assert sorted(value["id"] for value in live.values(all_)) == [1, 2, 3, 4]
    assert [record.value for record in live.records(bids.dead_letter)] == [b"garbage"]
    ids = {(r.json["id"], r.json.get("tag")): r.id for r in live.records(words)}
    head = f"f/words:{live.topic_id(bids)}:0"
    assert ids == {
        (1, "a"): f"{head}:0:0",
        (1, "b"): f"{head}:0:0.1-1",
        (1, "c"): f"{head}:0:0.1-1.2-1",
        (4, "d"): f"{head}:4:0",
    }


def test_elements_have_the_event_time_of_their_record(live: Live) -> None:
    """Windows count each element once; a record without elements still advances the watermark."""
    bids = live.topic("bids", schema=BID, event_time="at", watermark=monotonous())
    counts = live.topic("counts")
    flow = Flow("f")
    tags = flow.read("bids", bids).select("id", "explode(tags) as tag")
    per_tag = tags.window(Tumbling(10), by="tag", name="per_tag").aggregate(n="count(*)", ids="sum(id)")
    per_tag.write("counts", counts)
    live.send(bids, *BIDS, {"id": 5, "tags": ["a", "a"], "at": 9_999}, {"id": 6, "tags": [], "at": 20_000})

    live.run(flow)

    found = {value.get("tag"): (value["n"], value["ids"]) for value in live.values(counts)}
    assert found == {"a": (3, 11), "b,c": (1, 1), None: (1, 1), "d": (1, 4)}
