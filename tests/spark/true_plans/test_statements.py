"""Each kind of statement of a plan holds in Spark's plan of the same query."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, KeyedProcessFunction, Parquet, Stream, Tumbling
from flowcore.watermarks import monotonous
from tests.spark.true_plans.conftest import Compile, Compiled

pytestmark = pytest.mark.spark

ROW = "shop STRING, price BIGINT, at BIGINT"
STATE, PYTHON = "TransformWithState", "MapInArrow"
Declare = Callable[[Stream, Stream], object]
Holds = Callable[[Compiled], object]


class Same(KeyedProcessFunction):
    """Emits its records."""

    def process(self, record: Mapping[str, Any], _context: Any) -> Iterator[Mapping[str, Any]]:
        yield record


def _same(record: Any) -> Any:
    return record


def _topic(name: str = "out", **settings: Any) -> KafkaTopic:
    return KafkaTopic(name, **settings)


def _find(compiled: Compile, declare: Declare, settings: dict[str, Any], **source: Any) -> Compiled:
    flow = Flow("f")
    bids = flow.read("bids", KafkaTopic("bids", schema=ROW, event_time="at", **source))
    shops = flow.read("shops", Parquet("shops", schema="shop STRING, city STRING"))
    declare(bids, shops)
    return next(each for each in compiled(flow, settings, "micro-batch") if each.query.sinks)


def _lines(found: Compiled, mark: str) -> list[int]:
    return [number for number, line in enumerate(found.physical.splitlines()) if mark in line]


def _says(found: Compiled, text: str) -> bool:
    """The plan has a line with this text, in which blanks are as wide as they like."""
    return re.sub(r"\s+", " ", text) in re.sub(r"\s+", " ", found.text)


def _exchanges(bids: Stream, _: Stream) -> None:
    first = bids.window(Tumbling(10), by="shop", name="first").aggregate(n="count(*)")
    first.window(Tumbling(10), by="shop", name="second").aggregate(most="max(n)").write("out", _topic())


def _functions(bids: Stream, _: Stream) -> None:
    made = bids.map(_same, schema=ROW, name="made").filter(_same, name="kept")
    made.write("out", _topic())


def _pushed(bids: Stream, _: Stream) -> None:
    made = bids.map(_same, schema=ROW, passes=["price"], name="made")
    made.where("price > 4711471147", name="some").write("out", _topic())


def _not_pushed(bids: Stream, _: Stream) -> None:
    bids.map(_same, schema=ROW, name="made").where("price > 4711471147", name="some").write("out", _topic())


def _process(bids: Stream, _: Stream) -> None:
    latest = bids.process(Same(), by="shop", uses=["shop", "price", "at"], schema=ROW, name="latest")
    latest.write("out", _topic())


def _process_parsed(bids: Stream, other: Stream) -> None:
    """Spark reads the messages and finds their key groups, since the filter is an expression."""
    _process(bids.where("abs(price) > 0"), other)


def _flushed(bids: Stream, _: Stream) -> None:
    def latest(record: Any) -> Any:
        return record

    latest.is_output_idempotent = True  # type: ignore[attr-defined]
    flushed = bids.map(latest, schema=ROW, key="shop", flush=timedelta(minutes=1), name="latest")
    flushed.write("out", _topic())


def _joined(bids: Stream, shops: Stream) -> None:
    bids.join(shops, on="shop", name="joined").select("shop", "city").write("out", _topic())


def _aggregate(bids: Stream, _: Stream) -> None:
    bids.aggregate(by="shop", most="max(price)", name="top").write("out", _topic())


def _plain(bids: Stream, _: Stream) -> None:
    bids.select("shop").write("out", _topic())


def _tagged(bids: Stream, _: Stream) -> None:
    bids.write("out", _topic(elements="tagged"))


STATEMENTS: dict[str, tuple[Declare, dict[str, Any], dict[str, Any], str, Holds]] = {
    "exchanges": (
        _exchanges, {}, {"watermark": monotonous()}, "it has two exchanges: first, then second",
        lambda found: len(_lines(found, STATE)) == 2,
    ),
    "no exchange": (_plain, {}, {}, "its branches keep no state", lambda found: not _lines(found, STATE)),
    "key groups": (
        _process_parsed, {"state.key-groups": 77}, {}, "state: 77 key groups",
        lambda found: re.search(r"pmod\(.*, 77\)", found.physical) is not None,
    ),
    "chain in one call": (
        _functions, {}, {}, "python chain made > kept: one call of a worker",
        lambda found: len(_lines(found, PYTHON)) == 1,
    ),
    "native": (_plain, {}, {}, "compiled: native", lambda found: not _lines(found, PYTHON)),
    "pushdown": (
        _pushed, {}, {}, "filter: before made",
        lambda found: min(_lines(found, "4711471147")) > max(_lines(found, PYTHON)),
    ),
    "no pushdown": (
        _not_pushed, {}, {}, "filter: where it stands",
        lambda found: max(_lines(found, "4711471147")) < min(_lines(found, PYTHON)),
    ),
    "flush by key group": (
        _flushed, {}, {}, "flush: every 1 min, by key group", lambda found: len(_lines(found, STATE)) == 1,
    ),
    "columns of an edge": (
        _joined, {}, {}, "copy: none because neither end is a Python function columns: shop shops -> joined",
        lambda found: "record#" in found.physical and ".price" not in _projected(found),
    ),
    "latency markers": (
        _plain, {"metrics.latency.interval": "1 s"}, {}, "latency: every 1 s",
        lambda found: "bids.events" in found.physical and "out.events" in found.physical,
    ),
    "no latency markers": (
        _plain, {}, {}, "latency: off", lambda found: "out.events" not in found.physical,
    ),
    "watermarks of a sink": (
        _tagged, {}, {"watermark": monotonous()}, "elements: tagged because its topic declares",
        lambda found: "flowcore-watermarks-bids" in found.physical,
    ),
    "failure of a function": (
        _functions, {}, {}, "failure: dead letter because the message goes to bids.dead-letter unchanged",
        lambda found: any("_failed" in found.physical.splitlines()[n] for n in _lines(found, PYTHON)),
    ),
    "failure that stops": (
        _functions, {}, {"on_error": "fail"}, "failure: stops the query because bids says on_error='fail'",
        lambda found: "_failed" not in found.physical and "bids.dead-letter" not in found.physical,
    ),
    "unbounded state": (
        _aggregate, {}, {}, "the state of top is unbounded because it keeps a group for each key",
        lambda found: _lines(found, "StateStoreSave") and not _lines(found, "EventTimeWatermark"),
    ),
    "bad records": (
        _plain, {}, {}, "bad records of bids -> bids.dead-letter",
        lambda found: "bids.dead-letter" in found.physical,
    ),
}  # fmt: skip
"""By name: the flow, its settings and its source's, the plan's text, and what holds in Spark's plan."""


def _projected(found: Compiled) -> str:
    """The lines downstream of the parser, which reads every column to check the record."""
    lines = found.physical.splitlines()
    return "\n".join(lines[: min(number for number, line in enumerate(lines) if "_flowcore_corrupt" in line)])


@pytest.mark.parametrize("name", STATEMENTS)
def test_statement_of_the_plan_holds_in_the_query(compiled: Compile, name: str) -> None:
    """The text is there, and Spark's plan has what it says."""
    declare, settings, source, text, holds = STATEMENTS[name]

    found = _find(compiled, declare, settings, **source)

    assert _says(found, text), found.text
    assert holds(found), found.physical


def test_records_of_both_sides_of_a_join_have_an_id(compiled: Compile) -> None:
    """Those that passed a deduplication have the place of a message, which identifies them beside results."""

    def declare(bids: Stream, _: Stream) -> None:
        once = bids.deduplicate(by=["shop", "price"], within=None, name="once")
        counts = bids.window(Tumbling(10), by="shop", name="counts").aggregate(n="count(*)")
        found = once.join(counts.select("shop", "n"), on="shop", how="full", ttl=None, name="joined")
        found.write("out", _topic())

    found = _find(compiled, declare, {}, watermark=monotonous())
    ids = re.findall(
        r"CASE WHEN \(_branch#\d+ = \d+\) THEN (concat\(.{0,300}?) ELSE _record_id#\d+ END AS _record_id#",
        found.analyzed,
    )
    assert any("offset#" in text for text in ids)
