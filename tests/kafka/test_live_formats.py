"""A topic's values are read, written and dead-lettered in its declared format."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from flowcore import Flow, KafkaTopic
from flowcore.api.value_formats import format_of
from flowcore.errors import PlanError, RunError
from flowcore.planner import plan_flow
from tests.sampling import sample

pytestmark = pytest.mark.kafka

Live = Any
BID = "id BIGINT NOT NULL, price DOUBLE NOT NULL"
FORMATS: dict[str, dict[str, Any]] = {
    "json": {"schema": BID},
    "avro": {"schema": BID, "format": "avro"},
    "avro-confluent": {"schema": BID, "format": "avro-confluent", "format_options": {"schema_id": 7}},
    "fixed": {"schema": BID, "format": "fixed"},
}
_BIDS = [{"id": 2**63 - 1, "price": -0.5}, {"id": -1, "price": 1e300}, {"id": 0, "price": 0.0}]


def _copy(source: KafkaTopic, *sinks: KafkaTopic, select: tuple[str, ...] = ("*",)) -> Flow:
    flow = Flow("f")
    read = flow.read("bids", source)
    for number, sink in enumerate(sinks):
        read.select(*select).write(f"out{number}", sink)
    return flow


def _bytes(live: Live, topic: KafkaTopic | str) -> list[bytes]:
    return [record.value for record in live.records(topic)]


def _until(condition: Callable[[], bool]) -> Callable[[Any], None]:
    def wait(run: Any) -> None:
        deadline = time.monotonic() + 300
        while not condition():
            assert not run.wait(0.05), "the queries have ended"
            assert time.monotonic() < deadline, "the condition did not come about in time"

    return wait


def test_json_sink_writes_the_columns_of_its_schema(live: Live) -> None:
    """A column of the key may be missing in it, and is then not in the value."""
    bids = live.topic("bids", schema=BID)
    out = live.topic("out", schema="price DOUBLE", key="id")
    live.send(bids, {"id": 7, "price": 2.5})

    live.run(_copy(bids, out), "slice")

    assert [(record.key, record.value) for record in live.records(out)] == [(b"7", b'{"price":2.5}')]


def test_live_avro_passes_in_real_time(live: Live) -> None:
    """Avro is copied to Avro with a header, to JSON and to raw bytes; invalid Avro keeps its bytes."""
    bids = live.topic("bids", **FORMATS["avro"])
    confluent, plain = live.topic("confluent", **FORMATS["avro-confluent"]), live.topic("json")
    raw = live.topic("raw", schema="text STRING", format="raw")
    flow = _copy(bids, confluent, plain)
    flow.read("again", live.topic("again", **FORMATS["avro-confluent"])).select(
        "CAST(id AS STRING) AS text"
    ).write("raw", raw)
    stage = plan_flow(flow).live
    assert stage
    assert {query.mode.value for query in stage.queries} == {"realtime"}
    bad = [b"", b"\xff\x00", format_of(bids).encode(_BIDS[0])[:-1], None]
    live.send(bids, *(format_of(bids).encode(bid) for bid in _BIDS), *bad)
    again = [format_of(confluent).encode(bid) for bid in _BIDS]
    live.send(live.topic("again"), *again)

    live.run(
        flow,
        None,
        _until(
            lambda: (
                len(_bytes(live, confluent)) == len(_bytes(live, plain)) == len(_bytes(live, raw)) == 3
                and len(_bytes(live, bids.dead_letter)) == 4
            )
        ),
    )

    assert _bytes(live, confluent) == again
    assert live.values(plain) == _BIDS
    assert _bytes(live, raw) == [str(bid["id"]).encode() for bid in _BIDS]
    assert _bytes(live, bids.dead_letter) == bad


@pytest.mark.parametrize("mode", sample(["slice", "micro-batch"], "micro-batch"))
def test_live_fixed_layout_passes_in_batches(mode: str, live: Live) -> None:
    """The fixed layout is copied to Avro and back, with the bytes of the Python format."""
    fixed, avro, back = (
        live.topic(name, **FORMATS[kind])
        for name, kind in (("bids", "fixed"), ("avro", "avro"), ("back", "fixed"))
    )
    good = [format_of(fixed).encode(bid) for bid in _BIDS]
    bad = [b"", good[0][:-1], good[0] + b"\0", None]
    live.send(fixed, *good, *bad, partitions=2)
    done = _until(lambda: len(_bytes(live, back)) == 3 and len(_bytes(live, fixed.dead_letter)) == 4)

    live.run(_copy(fixed, avro, back), mode, done if mode == "micro-batch" else None)

    assert sorted(_bytes(live, avro)) == sorted(format_of(avro).encode(bid) for bid in _BIDS)
    assert sorted(_bytes(live, back)) == sorted(good)
    dead_letters = live.records(fixed.dead_letter)
    assert sorted(str(record.value) for record in dead_letters) == sorted(map(str, bad))
    assert all(b"fixed" in record.headers["flowcore-reason"] for record in dead_letters)
    with pytest.raises(PlanError, match="format 'fixed' of bids runs in Python"):
        plan_flow(_copy(fixed, avro), "realtime")


def test_live_protobuf_passes_in_batches(live: Live) -> None:
    """A complete message is a row, and a row is a message."""
    settings: dict[str, Any] = {
        "schema": "seconds BIGINT NOT NULL, nanos INT NOT NULL",
        "format": "protobuf",
        "format_options": {"message": Timestamp},
    }
    source, sink = live.topic("in", **settings), live.topic("out", **settings)
    messages = [Timestamp(seconds=n, nanos=n).SerializeToString() for n in (-1, 0, 2**31 - 1)]
    live.send(source, *messages, b"\xff", None)

    live.run(_copy(source, sink))

    assert _bytes(live, sink) == messages
    assert _bytes(live, source.dead_letter) == [b"\xff", None]


def _fuzz(good: bytes) -> list[bytes | None]:
    chance = random.Random(3)  # noqa: S311 - bytes for a test
    return [
        None,
        b"",
        *(good[:end] for end in range(len(good))),
        *(good + bytes([n]) for n in (1, 128, 255)),
        *(chance.randbytes(chance.randrange(40)) for _ in range(200)),
        *(b"\0" + chance.randbytes(15) for _ in range(50)),
        bytes.fromhex("80e0c0cb0b"),
        chance.randbytes(900_000),
    ]


@pytest.mark.parametrize("kind", sample(FORMATS, "avro", "fixed"))
def test_live_bad_bytes_never_stop_a_query(kind: str, live: Live) -> None:
    """Each record is either read or a dead letter with its original bytes; none is lost."""
    source, sink = live.topic("in", **FORMATS[kind]), live.topic("out", **FORMATS[kind])
    one = format_of(source)
    good = [one.encode(bid) for bid in _BIDS]
    fuzz = _fuzz(good[0])
    live.send(source, *fuzz[:100], *good, *fuzz[100:], partitions=2)

    live.run(_copy(source, sink))

    dead_letters, passed = _bytes(live, source.dead_letter), _bytes(live, sink)
    assert len(dead_letters) + len(passed) == len(fuzz) + len(good)
    assert {*map(str, dead_letters)} <= {*map(str, fuzz)}
    assert {*good} <= {*passed}
    assert [one.encode(one.decode(data)) for data in passed] == passed


@pytest.mark.parametrize(
    ("kind", "until"),
    sample(itertools.product(FORMATS, (None, "latest")), ("avro", None), ("fixed", "latest")),
)
def test_bad_bytes_stop_the_query_with_on_error_fail(kind: str, until: Any, live: Live) -> None:
    """The error is one line that names the record."""
    source = live.topic("in", **FORMATS[kind], on_error="fail", until=until)
    sink = live.topic("out", **FORMATS[kind])
    live.send(source, *(format_of(source).encode(bid) for bid in _BIDS), b"\xff\n")

    with pytest.raises(RunError, match=rf"{source.name}\[0\]@3 does not fit the schema .*FF0A") as error:
        live.run(_copy(source, sink))

    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", sample(FORMATS, "fixed"))
def test_bounded_topic_is_read_and_written_in_its_format(kind: str, live: Live) -> None:
    """A bounded topic is read and written as a live topic is."""
    source = live.topic("in", **FORMATS[kind], until="latest")
    sink = live.topic("out", **FORMATS[kind], key="id")
    good = [format_of(source).encode(bid) for bid in _BIDS]
    live.send(source, *good, b"\xff", None, partitions=1)

    live.run(_copy(source, sink))

    assert sorted(_bytes(live, sink)) == sorted(good)
    assert {record.key for record in live.records(sink)} == {str(bid["id"]).encode() for bid in _BIDS}
    assert _bytes(live, source.dead_letter) == [b"\xff", None]


def test_live_row_that_its_format_cannot_encode_is_a_dead_letter(live: Live) -> None:
    """The dead letter has the row as JSON, the coordinates and the column; the rows after it are written."""
    source = live.topic("in", schema="id BIGINT NOT NULL, price DOUBLE")
    sink = live.topic("out", **FORMATS["fixed"])
    live.send(source, b"bad", {"id": 1, "price": 2.0}, {"id": 2}, {"id": 3, "price": 4.0})

    live.run(_copy(source, sink))

    assert _bytes(live, sink) == [
        format_of(sink).encode({"id": number, "price": price}) for number, price in ((1, 2.0), (3, 4.0))
    ]
    letters = {record.value: record.headers for record in live.records(source.dead_letter)}
    assert set(letters) == {b"bad", b'{"id":2}'}
    headers = letters[b'{"id":2}']
    assert headers["flowcore-stage"] == b"sink"
    assert headers["flowcore-offset"] == b"2"
    reason = b"cannot be written as fixed: column 'price' is NOT NULL and holds a null"
    assert headers["flowcore-reason"] == reason


@pytest.mark.parametrize(
    ("kind", "headers"),
    sample(itertools.product(FORMATS, (False, True)), ("avro-confluent", False), ("json", True)),
)
def test_tagged_elements_hold_values_of_each_format(kind: str, headers: bool, live: Live) -> None:
    """Tag and timestamp are stored before the value or in headers, and another flow reads them."""
    source, out = live.topic("in", schema=BID), live.topic("out")
    between = live.topic("between", **FORMATS[kind], elements="tagged", headers=headers)
    live.send(source, *_BIDS)

    live.run(_copy(source, between))
    live.send(between, b"\xff\xff")
    again = Flow("again")
    again.read("bids", between).write("out", out)
    live.run(again)

    assert live.values(out) == _BIDS
    assert _bytes(live, between.dead_letter) == [b"\xff\xff"]
    values = [format_of(between).encode(bid) for bid in _BIDS]
    assert [data[0 if headers else 9 :] for data in _bytes(live, between)[:3]] == values


def test_dead_letter_of_a_tagged_sink_is_json_without_a_tag(live: Live) -> None:
    """The row that Avro's enum, or a JSON schema, cannot hold; the rows beside it are tagged."""
    kind = {"type": "enum", "name": "K", "symbols": ["A", "B"]}
    schema = {"type": "record", "name": "R", "fields": [{"name": "kind", "type": ["null", kind]}]}
    source = live.topic("in", schema="kind STRING")
    avro = live.topic("avro", format="avro", format_options={"schema": schema}, elements="tagged")
    plain = live.topic("json", schema="Kind STRING NOT NULL", elements="tagged")
    live.send(source, {"kind": "A"}, {"kind": "C"}, {"kind": None})

    live.run(_copy(source, avro, plain))

    assert [data[9:] for data in _bytes(live, avro)] == [b"\2\0", b"\0"]
    assert [data[9:] for data in _bytes(live, plain)] == [b'{"Kind":"A"}', b'{"Kind":"C"}']
    letters = {record.value: record.headers for record in live.records(source.dead_letter)}
    assert {value: headers["flowcore-operator"] for value, headers in letters.items()} == {
        b'{"kind":"C"}': b"out0",
        b"{}": b"out1",
    }
    assert (
        b"column 'kind' holds a value that is not of its Avro type"
        in letters[b'{"kind":"C"}']["flowcore-reason"]
    )
    assert b"column 'Kind' is NOT NULL and holds a null" in letters[b"{}"]["flowcore-reason"]
