"""Stream elements pass through Kafka between two flows; invalid elements become dead letters."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Producer

from flowcore import Flow, KafkaTopic, RichFunction, bounded_out_of_orderness
from flowcore.elements import Record, Watermark
from flowcore.errors import RunError
from flowcore.kafka.topics import ensure_topics
from flowcore.serializers import TaggedSerializer
from flowcore.serializers.formats import JsonFormat
from tests.sampling import sample

pytestmark = pytest.mark.kafka

Live = Any
SALE = "id BIGINT NOT NULL, at BIGINT, shop STRING"
TAGGED = TaggedSerializer(JsonFormat.of([("id", "BIGINT"), ("at", "BIGINT"), ("shop", "STRING")]))
LATEST, EARLIEST = 2**63 - 1, -(2**63)


def _sale(number: int, at: int | None, shop: str = "ü") -> dict[str, Any]:
    return {"id": number, "at": at, "shop": shop}


def _elements(live: Live, topic: KafkaTopic, most: int | None = None) -> dict[int, list[Any]]:
    """Elements of a topic of tagged elements, by partition."""
    found: dict[int, list[Any]] = {}
    for record in live.records(topic)[:most]:
        data = (record.headers["flowcore-element"] + (record.value or b"")) if topic.headers else record.value
        found.setdefault(record.partition, []).append(TAGGED.decode(data))
    return found


@pytest.mark.parametrize("headers", sample([False, True], False), ids=["in-front-of-the-value", "in-headers"])
def test_timestamps_and_watermarks_survive_two_flows(live: Live, headers: bool) -> None:
    """The first flow sets timestamps and watermarks, the second passes them on, and a reader finds both."""
    sales = live.topic(
        "sales", schema=SALE, event_time="at", watermark=bounded_out_of_orderness(timedelta(seconds=1))
    )
    middle = live.topic("middle", elements="tagged", headers=headers, partitions=2)
    read = KafkaTopic(middle.name, schema=SALE, elements="tagged", headers=headers)
    out = live.topic("out", elements="tagged", headers=headers, partitions=2)
    live.send(sales, *(_sale(number, 10_000 + 1_000 * number) for number in range(4)), partitions=2)
    live.send(sales, _sale(5, None), _sale(6, LATEST - 1), partitions=2)
    live.settings = replace(live.settings, max_ahead=timedelta(0))
    first, second = Flow("first"), Flow("second")
    first.read("sales", sales).write("middle", middle)
    second.read("middle", read).where("id < 100").write("out", out)

    live.run(first)
    between = _elements(live, middle)
    live.run(second)
    after = _elements(live, out)

    for found in (between, after):
        records = [
            element for partition in found.values() for element in partition if isinstance(element, Record)
        ]
        assert {(record.value["id"], record.timestamp_ms) for record in records} == {
            (0, 10_000), (1, 11_000), (2, 12_000), (3, 13_000), (5, None), (6, LATEST - 1),
        }  # fmt: skip
        for partition in found.values():
            # Partition 0 of the sales ends at 12 s, the minimum of all partitions.
            assert partition[-1] == Watermark(10_999)
    assert sorted(between) == sorted(after) == [0, 1]


@pytest.mark.parametrize("beside", ["a-function-of-batches", "a-join"])
def test_timestamps_pass_operators_whose_rows_have_none(live: Live, beside: str) -> None:
    """Branches share their rows; one of them needs the timestamps that another one has lost."""
    sales = live.topic(
        "sales", schema=SALE, event_time="at", watermark=bounded_out_of_orderness(timedelta(0))
    )
    prices = live.topic("prices", schema="id BIGINT, price BIGINT")
    out, other = live.topic("out", elements="tagged", partitions=1), live.topic("other", partitions=1)
    live.send(sales, _sale(1, 500), _sale(2, 700))
    live.send(prices, {"id": 1, "price": 5})
    flow = Flow("f")
    read = flow.read("sales", sales)
    read.write("out", out)
    if beside == "a-join":
        by_id = read.join(flow.read("prices", prices), on="id", ttl=timedelta(hours=1))
        by_id.write("other", other)
    else:
        read.map_batches(lambda batch: batch, schema=SALE).write("other", other)

    live.run(flow)

    (found,) = _elements(live, out).values()
    records = [element for element in found if isinstance(element, Record)]
    assert {(record.value["id"], record.timestamp_ms) for record in records} == {(1, 500), (2, 700)}


def test_watermarks_continue_after_a_restart(live: Live) -> None:
    """A second slice restores each partition's watermark from the first and emits it again."""
    sales = live.topic(
        "sales", schema=SALE, event_time="at", watermark=bounded_out_of_orderness(timedelta(0))
    )
    out = live.topic("out", elements="tagged", partitions=1)
    flow = Flow("f")
    flow.read("sales", sales).write("out", out)

    live.send(sales, _sale(1, 500), _sale(2, 700), partitions=2)
    live.run(flow)
    live.send(sales, _sale(3, 900), partitions=2)
    live.run(flow)

    watermarks = [element for element in _elements(live, out)[0] if isinstance(element, Watermark)]
    assert watermarks == [Watermark(499), Watermark(499), Watermark(699)] or watermarks == [
        Watermark(499),
        Watermark(699),
    ]


class _Latest(RichFunction):
    """Emits each sale unchanged; a shop's last sale replaces the earlier ones."""

    def is_output_idempotent(self) -> bool:
        return True

    def __call__(self, sale: dict[str, Any]) -> dict[str, Any]:
        return sale


@pytest.mark.thorough
def test_watermark_of_a_slice_follows_its_buffered_results(live: Live) -> None:
    """A slice emits buffered results after its last batch, followed by one watermark."""
    live = type(live)(live.servers, replace(live.settings, max_batch_records=4), live.spark)
    sales = live.topic(
        "sales", schema=SALE, event_time="at", watermark=bounded_out_of_orderness(timedelta(0))
    )
    out = live.topic("out", elements="tagged", partitions=1)
    live.send(sales, *(_sale(number, 1_000 * number, f"shop-{number % 3}") for number in range(12)))
    flow = Flow("f")
    latest = flow.read("sales", sales).map(_Latest(), schema=SALE, key="shop", flush=timedelta(hours=1))
    latest.write("out", out)

    live.run(flow)

    (found,) = _elements(live, out).values()
    assert found[3:] == [Watermark(10_999)]
    assert sorted(element.value["id"] for element in found[:3]) == [9, 10, 11]


def test_value_only_elements_are_the_plain_values(live: Live) -> None:
    """Value-only elements have neither tag nor timestamp: their bytes are those of a plain topic."""
    sales = live.topic("sales", schema=SALE)
    plain, values = live.topic("plain"), live.topic("values", elements="value-only")
    live.send(sales, _sale(1, 5), _sale(2, None, "\U0001f600"))
    flow = Flow("f")
    source = flow.read("sales", sales)
    source.write("plain", plain)
    source.write("values", values)

    live.run(flow)

    assert [r.value for r in live.records(values)] == [r.value for r in live.records(plain)]
    assert [set(r.headers) for r in live.records(values)] == [{"flowcore-id"}] * 2


def test_bytes_that_are_not_an_element_are_a_dead_letter(live: Live) -> None:
    """Unknown tags, missing or extra bytes and bad values are dead letters; valid elements are delivered."""
    good = [
        TAGGED.encode(Record(_sale(1, 1), EARLIEST)), TAGGED.encode(Record(_sale(2, 1))),
        TAGGED.encode(Record(_sale(3, 1), LATEST)),
    ]  # fmt: skip
    bad = [
        b"", None, b"\x00", good[0][:8], b"\x07" + good[0][1:], b"\xff", b"\x02" + bytes(7),
        b"\x02" + bytes(9), b"\x03" + bytes(20), b"\x04", b"\x04\x02", b"\x05\x00\x00", b"\x06\x00",
        good[0][:-1], b"\x01", b'{"id":1}', b"\x01" + b"x" * (1 << 20 >> 1),
    ]  # fmt: skip
    control = [TAGGED.encode(Watermark(7)), b"\x04\x01", b"\x05\x01"]
    ends = [b"\x06", TAGGED.encode(Watermark(LATEST))]  # of a channel that the source does not declare
    bad.append(TAGGED.encode(Watermark(LATEST - 1)))
    source = live.topic("source", schema=SALE, elements="tagged")
    out = live.topic("out", elements="tagged")
    live.send(source, *bad[:8], good[0], *control, *ends, good[1], *bad[8:], good[2])
    flow = Flow("f")
    flow.read("source", source).write("out", out)

    live.run(flow)

    (found,) = _elements(live, out).values()
    assert [(e.value["id"], e.timestamp_ms) for e in found if isinstance(e, Record)] == [
        (1, EARLIEST), (2, None), (3, LATEST),
    ]  # fmt: skip
    dead_letters = live.records(source.dead_letter)
    assert [record.value for record in dead_letters] == [*bad[:8], *ends, *bad[8:]]
    for record in dead_letters:
        assert record.headers["flowcore-topic"] == source.name.encode()
        assert record.headers["flowcore-stage"] == b"read"
        assert int(record.headers["flowcore-timestamp"]) > 0
    reasons = [record.headers["flowcore-reason"].decode().split(":")[0] for record in dead_letters]
    assert reasons.count("is not a tagged element") == len(bad) - 4  # the others have a bad value
    offsets = [int(record.headers["flowcore-offset"]) for record in dead_letters]
    assert offsets == [*range(8), 12, 13, *range(15, 15 + len(bad) - 8)]


def test_malformed_element_header_is_a_dead_letter(live: Live) -> None:
    """A header with extra bytes and a control element with a value are dead letters."""
    value = b'{"id":1}'
    timed = b"\x00" + (5).to_bytes(8, "big")
    good = [(timed, value), (b"\x01", value), (TAGGED.encode(Watermark(7)), None)]
    bad = [
        (timed + b"x", value), (timed[:-1], value), (b"\x01x", value), (b"", value), (None, value),
        (TAGGED.encode(Watermark(7)), value), (b"\x06", b""), (b"\x06", None), (timed, None),
        (timed, b"{"),
    ]  # fmt: skip
    source = live.topic("source", schema=SALE, elements="tagged", headers=True)
    ensure_topics(live.servers, {source.name: 1})
    producer = Producer({"bootstrap.servers": live.servers, "log_level": 0})
    for head, content in (*good, *bad):
        headers = [] if head is None else [("flowcore-element", head)]
        producer.produce(source.name, content, headers=headers)
    assert producer.flush(20) == 0
    out = live.topic("out", elements="tagged")
    flow = Flow("f")
    flow.read("source", source).write("out", out)

    live.run(flow)

    (found,) = _elements(live, out).values()
    assert [element.timestamp_ms for element in found if isinstance(element, Record)] == [5, None]
    dead_letters = live.records(source.dead_letter)
    assert [record.value for record in dead_letters] == [content for _, content in bad]
    offsets = [int(record.headers["flowcore-offset"]) for record in dead_letters]
    assert offsets == [*range(len(good), len(good) + len(bad))]


@pytest.mark.parametrize("headers", sample([False, True], False), ids=["in-front-of-the-value", "in-headers"])
def test_topic_of_elements_is_read_and_written_as_a_table(live: Live, headers: bool) -> None:
    """Rows have no timestamp, watermarks are not rows, and an invalid element is a dead letter."""
    sales = live.topic(
        "sales", schema=SALE, event_time="at", watermark=bounded_out_of_orderness(timedelta(seconds=1))
    )
    middle = live.topic("middle", schema=SALE, elements="tagged", headers=headers)
    live.send(sales, *(_sale(number, 1_000 * number) for number in range(3)))
    first, second = Flow("first"), Flow("second")
    first.read("sales", sales).write("middle", middle)
    live.run(first)
    live.send(middle, b"\xff")
    assert any(isinstance(element, Watermark) for element in _elements(live, middle, -1)[0])
    out = live.topic("out", elements="tagged", headers=headers)
    second.read("middle", replace(middle, until="latest")).write("out", out)

    live.run(second)

    (found,) = _elements(live, out).values()
    assert sorted(found, key=lambda element: element.value["id"]) == [
        Record(_sale(number, 1_000 * number)) for number in range(3)
    ]
    (record,) = live.records(middle.dead_letter)
    assert (record.value, b"not a tagged element" in record.headers["flowcore-reason"]) == (b"\xff", True)


@pytest.mark.parametrize("until", [None, "latest"], ids=["live", "bounded"])
def test_invalid_element_stops_the_query_with_on_error_fail(live: Live, until: Any) -> None:
    """The error is one line with the record's coordinates."""
    source = live.topic("source", schema=SALE, elements="tagged", on_error="fail", until=until)
    live.send(source, TAGGED.encode(Record(_sale(1, 1), 5)), b"\x09")
    flow = Flow("f")
    flow.read("source", source).write("out", live.topic("out"))

    with pytest.raises(RunError, match=rf"{source.name}\[0\]@1 is not a tagged element") as caught:
        live.run(flow)

    assert "\n" not in str(caught.value)


def test_aggregate_has_the_timestamp_of_its_newest_record(live: Live) -> None:
    """The timestamp of a group is kept through the shuffle and in the state."""
    sales = live.topic("sales", schema=SALE, event_time="at")
    out = live.topic("out", elements="tagged")
    flow = Flow("f")
    counted = flow.read("sales", sales).aggregate(by="shop", id="count(*)", at="max(at)", name="counted")
    counted.write("out", out)

    live.send(sales, _sale(1, 50, "a"), _sale(2, 30, "a"), _sale(3, None, "b"))
    live.run(flow)
    live.send(sales, _sale(4, 40, "a"))
    live.run(flow)

    (found,) = _elements(live, out).values()
    assert [(e.value["shop"], e.value["id"], e.timestamp_ms) for e in found] == [
        ("a", 2, 50), ("b", 1, None), ("a", 3, 50),
    ] or [(e.value["shop"], e.value["id"], e.timestamp_ms) for e in found] == [
        ("b", 1, None), ("a", 2, 50), ("a", 3, 50),
    ]  # fmt: skip


@pytest.mark.thorough
def test_value_only_drops_the_timestamp_from_plan_and_shuffle(live: Live) -> None:
    """The shuffle of a flow carries timestamps with tagged elements but not with value-only elements."""
    sales = live.topic("sales", schema=SALE)
    live.send(sales, *(_sale(number, number, f"shop {number}") for number in range(2_000)))
    plans, bytes_ = {}, {}
    for element_format, force in (("tagged", True), ("value-only", False)):
        live.settings = replace(
            live.settings, force_timestamp_support=force, auto_watermark_interval=timedelta(0)
        )
        flow, out = Flow(f"f-{element_format}"), live.topic(f"out-{element_format}", elements="auto")
        flow.read("sales", sales).aggregate(by="shop", n="count(*)", name="counted").write("out", out)
        before = _stages(live)

        def keep_plan(run: Any, element_format: str = element_format) -> None:
            assert run.wait(60)
            plans[element_format] = run.running["out"]._jsq.explainInternal(False)

        live.run(flow, "slice", keep_plan)

        bytes_[element_format] = sum(
            stage.shuffleWriteBytes() for number, stage in _stages(live).items() if number not in before
        )
        tags = {record.value[0] for record in live.records(out)}
        assert tags == ({0} if element_format == "tagged" else {ord("{")})

    assert "timestamp_ms" in _exchange(plans["tagged"])
    assert "timestamp_ms" not in plans["value-only"]
    assert 0 < bytes_["value-only"] < bytes_["tagged"]


def _exchange(plan: str) -> str:
    """The part of a plan from its shuffle downwards."""
    return plan[plan.index("Exchange hashpartitioning") :]


def _stages(live: Live) -> dict[int, Any]:
    """All stages in Spark's status store, by id."""
    context = live.spark.sparkContext
    none = context._gateway.new_array(context._jvm.double, 0)
    store = context._jsc.sc().statusStore()
    stages = store.stageList(None, False, False, none, context._jvm.java.util.ArrayList())
    return {stages.apply(number).stageId(): stages.apply(number) for number in range(stages.size())}
