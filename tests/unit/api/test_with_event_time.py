"""Event time in the middle of a flow: what is refused, and what the plan says and carries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, OperatorAttributesBuilder, Parquet, Stream, Tumbling
from flowcore.errors import PlanError
from flowcore.planner import Plan, plan_flow
from flowcore.planner.ways import find_origins
from flowcore.settings import Settings
from flowcore.watermarks import monotonous, no_watermarks, periodic, punctuated
from flowcore.watermarks.strategies import WatermarkStrategy

SCHEMA = "id BIGINT, at TIMESTAMP, text STRING"


def read(flow: Flow, name: str = "bids", **topic: Any) -> Stream:
    return flow.read(name, KafkaTopic(name, SCHEMA, **topic))


def same(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return record


def same_batches(batch: Any) -> Iterable[Any]:
    yield batch


def timed(stream: Stream, watermark: WatermarkStrategy | None = None, **others: Any) -> Stream:
    return stream.with_event_time("at", watermark=watermark or monotonous(), **others)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda f: read(f).with_event_time("att", watermark=monotonous()), "did you mean 'at'"),
        (lambda f: read(f).with_event_time("text", watermark=monotonous()), "'text' is STRING: neither"),
        (
            lambda f: read(f).with_event_time("cast(id as INT)", watermark=monotonous()),
            "is INT: neither BIGINT",
        ),
        (lambda f: read(f).with_event_time("max(id)", watermark=monotonous()), "aggregates over several"),
        (lambda f: timed(read(f), punctuated("text")), "watermark 'text' is STRING: not a condition"),
        (lambda f: timed(read(f), periodic("at")), "watermark 'at' is TIMESTAMP: not BIGINT"),
        (lambda f: timed(read(f), periodic("a")), "did you mean 'at'"),
        (lambda f: timed(read(f), "monotonous"), "watermark='monotonous' is not a strategy"),
        (lambda f: timed(read(f), monotonous().with_alignment(timedelta(1))), "leave out with_alignment"),
        (lambda f: timed(f.read("old", Parquet("old", schema=SCHEMA))), "pass timestamp= to window"),
        (
            lambda f: timed(read(f).deduplicate(by="id", within=None, name="once")),
            "downstream of 'once', which keeps state.*assign event time upstream of 'once', or cut the flow",
        ),
        (
            lambda f: timed(read(f).aggregate(by="id", at="max(at)", name="n")),
            "downstream of 'n', which keeps state",
        ),
        (
            lambda f: timed(read(f).map_batches(same_batches, schema=SCHEMA, name="batches")),
            "downstream of 'batches', which gets batches",
        ),
        (
            lambda f: timed(read(f).apply(lambda frame: frame, schema=SCHEMA, name="any")),
            "downstream of 'any', which is a DataFrame function",
        ),
        (lambda f: timed(timed(read(f), name="first")), "'first', which assigns it too"),
        (
            lambda f: timed(read(f, partitions=2, updating_by="id")),
            "where is_deleted is true, a row of 'bids' deletes its key.*topic of the source watermark=",
        ),
        (
            lambda f: timed(read(f, deduplicate=True)),
            "keeps state.*no watermark could be made; give the topic of 'bids' event_time= and watermark=",
        ),
        (
            lambda f: timed(
                f.read("old", Parquet("old", schema=SCHEMA)).then(read(f, start={0: 0}), name="both")
            ),
            "downstream of 'both', whose history is in no order of time.*give the topic event_time=",
        ),
        (
            lambda f: timed(read(f).union(read(f, "asks"))),
            "several sources, bids and asks.*assign it to each of them, upstream of the union",
        ),
    ],
)  # fmt: skip
def test_event_time_that_cannot_be_assigned_is_refused(
    declare: Callable[[Flow], object], message: str
) -> None:
    """The error names the operator that is in the way, and what to do instead."""
    with pytest.raises(PlanError, match=message):
        declare(Flow("f"))


def test_windows_need_watermarks_where_event_time_is_assigned() -> None:
    """The watermarks of the source end there; the source needs none."""
    untimed = timed(read(Flow("f"), watermark=monotonous()), no_watermarks(), name="untimed")
    with pytest.raises(PlanError, match="'untimed' makes no watermarks"):
        untimed.window(Tumbling(10), by="id")
    timed(read(Flow("f"))).window(Tumbling(10), by="id").aggregate(n="count(*)")
    with pytest.raises(PlanError, match=r"sets no watermarks.*or use with_event_time"):
        read(Flow("f")).window(Tumbling(10), by="id")


def plan(stream: Stream, settings: Mapping[str, Any] | None = None, **topic: Any) -> Plan:
    stream.write("out", KafkaTopic("out", **topic))
    return plan_flow(stream.graph, settings=Settings.of(settings or {}, environment={}))  # type: ignore[arg-type]


def elements(found: Plan) -> dict[str, str]:
    return {str(edge): edge.elements.value for query in found.live_queries for edge in query.edges}


def test_no_timestamps_travel_upstream_of_the_operator() -> None:
    """Unless another branch reads those of the source."""
    flow = Flow("f")
    parsed = read(flow, watermark=monotonous()).map(same, schema=SCHEMA, name="parsed")
    counts = timed(parsed, name="timed").window(Tumbling(10), by="id", name="counts").aggregate(n="count(*)")
    found = elements(plan(counts))
    assert found["bids -> parsed"] == found["parsed -> timed"] == "value-only"
    assert found["timed -> counts"] == "tagged"
    (query,) = plan_flow(flow).live_queries
    assert [each.name for each in query.find_senders(counts.operator)] == ["timed"]

    parsed.window(Tumbling(10), name="all").aggregate(n="count(*)").write("all_out", KafkaTopic("all"))
    found = elements(plan_flow(flow))
    assert found["bids -> parsed"] == found["parsed -> timed"] == "tagged"


def test_a_query_has_the_watermarks_of_the_operator_only() -> None:
    """The watermarks of the source do not reach a tagged sink."""
    found = plan(timed(read(Flow("f"), watermark=monotonous()), name="timed"), elements="tagged")
    (query,) = found.live_queries
    assert [each.name for each in find_origins(query.tagged_sinks)] == ["timed"]
    assert query.mode.value == "micro-batch"
    assert "timed makes watermarks" in found.explain()
    assert "timed <- bids: event time at, monotonous" in found.explain()
    assert "failure: dead letter because the message goes to bids.dead-letter unchanged" in found.explain(
        verbose=True
    )


def test_dead_letters_leave_through_the_query_that_assigns_event_time() -> None:
    """Also if another query of the source has no other reason to run in micro-batches."""
    flow = Flow("f")
    bids = read(flow)
    bids.write("copy", KafkaTopic("copy"))
    found = plan(timed(bids, name="timed").window(Tumbling(10)).aggregate(n="count(*)"))
    assert {query.name: [each.name for each in query.dead_letters] for query in found.live_queries} == {
        "bids": [], "bids-batches": ["bids"],
    }  # fmt: skip


def test_periodic_watermarks_need_an_interval() -> None:
    """The periodic watermarks of a source need one, too."""
    settings = {"pipeline.auto-watermark-interval": "0 s"}
    late = timed(read(Flow("f")), name="timed").window(Tumbling(10), name="late").aggregate(n="count(*)")
    with pytest.raises(PlanError, match="the event time 'timed' of 'late' has periodic watermarks"):
        plan(late, settings)
    marked = timed(read(Flow("g")), punctuated("id = 0"))
    assert plan(marked.window(Tumbling(10)).aggregate(n="count(*)"), settings).live_queries


def test_a_function_upstream_gets_no_buffer() -> None:
    """What a buffer emits has no partition; downstream of the operator a function gets one."""
    latest = OperatorAttributesBuilder().set_output_idempotent(True)
    settings = {"execution.flush.max-interval": "1 s"}

    def held(stream: Stream, name: str) -> Stream:
        return stream.map(same, schema=SCHEMA, key="id", name=name, attributes=latest)

    found = plan(held(timed(held(read(Flow("f")), "before")), "after"), settings)
    (query,) = found.live_queries
    assert [node.name for node in query.function_buffers] == ["after"]
    assert "with_event_time_1 downstream makes watermarks of partitions" in found.explain(verbose=True)


def test_records_need_no_time_of_the_source() -> None:
    """A branch that reads the source's own time does not drop those without it from another branch."""
    flow = Flow("f")
    bids = read(flow, event_time="at", watermark=monotonous())
    bids.window(Tumbling(10), name="own").aggregate(n="count(*)").write("own_out", KafkaTopic("own"))
    anew = bids.with_event_time("id", watermark=monotonous(), name="anew")
    found = plan(anew.window(Tumbling(10), name="other").aggregate(n="count(*)"))
    (query,) = found.live_queries
    assert [each.name for each in query.untimed_sources] == ["bids"]
