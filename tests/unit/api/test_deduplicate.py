"""Deduplication as it is declared: its key, its time, its state, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowcore import Flow, KafkaTopic, Parquet, Stream, Tumbling, monotonous
from flowcore.api.operators import Deduplicate
from flowcore.errors import ConfigurationError, PlanError
from flowcore.planner import plan_flow

SALE = "id BIGINT, shop STRING, at TIMESTAMP"
HOUR = timedelta(hours=1)


def sales(**settings: Any) -> Stream:
    return Flow("f").read("sales", KafkaTopic("sales", schema=SALE, **settings))


def declared(stream: Stream) -> Deduplicate:
    assert isinstance(stream.operator, Deduplicate)
    return stream.operator


@pytest.mark.parametrize(
    ("settings", "time"),
    [({}, "processing"), ({"watermark": monotonous()}, "event"), ({"elements": "tagged"}, "event")],
    ids=["no watermarks", "watermarks", "tagged"],
)
def test_time_is_event_time_where_watermarks_advance(settings: Any, time: str) -> None:
    """Without limit there is no time. The plan says which time, and for how long keys are kept."""
    stream = sales(**settings).deduplicate(by="id", within=HOUR, name="once")
    stream.write("out", KafkaTopic("out"))

    assert declared(stream).time == time
    assert declared(sales(**settings).deduplicate(by="id", within=None)).time == "processing"
    assert stream.columns == ("id", "shop", "at")
    text = plan_flow(stream.graph).explain()
    assert f"deduplicate by id, the first within 1 h of {time} time" in text
    kept = "the watermark has" if time == "event" else "processing time has"
    assert f"it keeps each key until {kept} advanced by 1 h to 2 h" in text


def test_union_with_a_source_without_watermarks_uses_processing_time() -> None:
    flow = Flow("f")
    timed = flow.read("timed", KafkaTopic("timed", schema=SALE, watermark=monotonous()))
    united = timed.union(flow.read("plain", KafkaTopic("plain", schema=SALE)))

    assert declared(united.deduplicate(by="id", within=HOUR)).time == "processing"


def test_topic_is_deduplicated_by_its_record_ids() -> None:
    """The header is no column of the stream. Ids are kept for an hour, if nothing else is said."""
    stream = sales(deduplicate=True)
    node = declared(stream)

    assert (node.name, node.by, node.within_ms) == ("sales.deduplicated", ("flowcore-id",), 3_600_000)
    assert node.pass_null_keys
    assert stream.columns == ("id", "shop", "at")
    assert declared(sales(deduplicate=True, deduplicate_within=None)).unbounded_state()
    assert (
        declared(sales(deduplicate=True, deduplicate_within=None, until="latest")).compiled().value
        == "native"
    )
    assert declared(sales(deduplicate=True, until="latest")).within_ms is None


def test_cut_is_deduplicated_by_its_record_ids() -> None:
    """Updates of a result have ids of their own, so they pass."""
    sums = sales().aggregate(by="shop", n="count(*)")
    cut = sums.through(KafkaTopic("sums", deduplicate=True), schema="shop STRING, n BIGINT")

    assert declared(cut).by == ("flowcore-id",)
    assert (cut.columns, cut.operator.key, cut.operator.updating) == (("shop", "n"), ("shop",), True)


def fired_again() -> Stream:
    """Windows that late records fire once more."""
    timed = sales(event_time="at", watermark=monotonous())
    windows = timed.window(Tumbling(10), by="shop", allowed_lateness=60, name="counts")
    return windows.aggregate(n="count(*)")


REFUSED: dict[str, tuple[Callable[[Stream], Any], str]] = {
    "unknown key": (lambda s: s.deduplicate(by="nothing", within=HOUR), "nothing"),
    "last": (lambda s: s.deduplicate(by="id", within=HOUR, keep="last"), r"keep='last'.*latest\(by="),
    "nothing": (lambda s: s.deduplicate(by="id", within=timedelta(0)), "within=.*above 0.*None to keep"),
    "number": (lambda s: s.deduplicate(by="id", within=5), r"within=5 \(a number: pass timedelta"),
    "updating": (
        lambda s: s.aggregate(by="id", n="count(*)").deduplicate(by="id", within=HOUR),
        "replace earlier ones",
    ),
    "firing again": (
        lambda _: fired_again().deduplicate(by="shop", within=HOUR),
        "replace earlier ones.*what it is made from, or leave allowed_lateness and trigger of 'counts' out",
    ),
    "time of a stream": (
        lambda s: s.deduplicate(by="id", within=HOUR, timestamp="at"), "timestamp='at' over the unbounded",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_declaration_is_refused(name: str) -> None:
    """The message names the operator and what to pass."""
    declare, message = REFUSED[name]
    with pytest.raises(PlanError, match=message):
        declare(sales())


def test_bounded_rows_need_a_time_for_a_limit() -> None:
    """Without limit, Spark itself finds the first row of each key."""
    table = Flow("f").read("sales", Parquet("sales", schema=SALE))

    assert declared(table.deduplicate(by="id", within=None)).compiled().value == "native"
    timed = table.deduplicate(by="id", within=HOUR, timestamp="at")
    assert (declared(timed).compiled().value, declared(timed).time) == ("key-group", "event")
    with pytest.raises(PlanError, match="pass timestamp="):
        table.deduplicate(by="id", within=HOUR)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"deduplicate": True, "deduplicate_within": timedelta(0)}, "not a time above 0"),
        ({"deduplicate_within": HOUR * 2}, "without deduplicate=True"),
    ],
    ids=["zero", "not asked for"],
)
def test_wrong_settings_of_a_topic_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        KafkaTopic("sales", schema=SALE, **settings)


def test_functions_downstream_of_deduplication_write_dead_letters() -> None:
    """A record that passes still has the bytes of its message."""
    stream = sales(deduplicate=True).map(dict, schema=SALE, name="copy")
    stream.write("out", KafkaTopic("out"))
    plan = plan_flow(stream.graph).explain(verbose=True)

    assert "failure: dead letter" in plan
