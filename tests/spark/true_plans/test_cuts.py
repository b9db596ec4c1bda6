"""Records that have crossed a cut keep the id that they were written with, whatever operators follow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, KeyedProcessFunction, Stream, Tumbling, monotonous
from tests.spark.true_plans.conftest import Compile

pytestmark = pytest.mark.spark

ROW = "shop STRING, price BIGINT, at BIGINT"


class Same(KeyedProcessFunction):
    """Emits its records."""

    def process(self, record: Mapping[str, Any], _context: Any) -> Iterator[Mapping[str, Any]]:
        yield record


class Latest:
    """A later record of a shop replaces the earlier one."""

    is_output_idempotent = True

    def __call__(self, record: Any) -> Any:
        return record


def _process(stream: Stream) -> Stream:
    return stream.process(Same(), by="shop", schema=ROW, uses=["shop", "price", "at"])


def _late(stream: Stream) -> Stream:
    return stream.window(Tumbling(1), by="shop", late="side-output").aggregate(n="count(*)").late


def _buffered(stream: Stream) -> Stream:
    return stream.map(Latest(), schema=ROW, key="shop", flush=timedelta(minutes=1))


OPERATORS: dict[str, Callable[[Stream, Stream], Stream]] = {
    "function": lambda cut, _: cut.map(dict, schema=ROW),
    "process of two": lambda cut, other: _process(cut.union(other)),
    "process of results": lambda cut, other: _process(_process(other).union(cut)),
    "late records": lambda cut, _: _late(cut),
    "buffer": lambda cut, _: _buffered(cut),
    "buffer of results": lambda cut, other: _buffered(_process(other).union(cut)),
    "process of a buffer": lambda cut, _: _process(_buffered(cut)),
    "union": lambda cut, other: cut.union(other),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_the_id_of_a_record_crosses_a_cut(compiled: Compile, name: str) -> None:
    """The header of the topic is part of the ids that the next query writes."""
    flow = Flow("f")
    source = KafkaTopic("bids", schema=ROW, event_time="at", watermark=monotonous())
    other = flow.read("other", KafkaTopic("other", schema=ROW, event_time="at", watermark=monotonous()))
    cut = flow.read("bids", source).through("cut")
    OPERATORS[name](cut, other).write("out", KafkaTopic("out"))
    (found,) = (each for each in compiled(flow) if any(sink.name == "out" for sink in each.query.sinks))

    assert found.query.follows
    assert set(re.findall(r"concat\(f/out:[^,]*, (\w+)#\d+", found.analyzed)) == {"_record_id"}
    assert re.search(r"instr\(.*flowcore-id.* AS _record_id#", found.analyzed)
    keyed = re.search(r"_source#\d+ (=|IN) .* THEN _record_id#\d+", found.analyzed) is not None
    assert keyed == found.query.keeps_key_groups
