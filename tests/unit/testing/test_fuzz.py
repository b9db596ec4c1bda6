"""Fuzzed messages are bad, and the same for the same seed."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.api.schema import Schema
from flowcore.elements import LatencyMarkerEvent
from flowcore.serializers import LatencyMarkerEventSerializer
from tests.benchmarks._fuzzed_messages import (
    FAULTS,
    VALUE_FAULTS,
    Fuzzer,
    is_marker_event,
    is_tagged,
    is_value,
)

SCHEMA = Schema.parse("id BIGINT NOT NULL, shop STRING, price DOUBLE, open BOOLEAN")
GOOD = '{"id":1,"shop":"ü","price":2,"open":true,"more":[{}]}'.encode()
EVENT = LatencyMarkerEventSerializer().encode(LatencyMarkerEvent(7, "flow/ü", 1))


def _fuzzer(seed: int) -> Fuzzer:
    return Fuzzer(SCHEMA, Random(seed))  # noqa: S311 - to be repeated, not to be secret


@pytest.mark.parametrize(
    "value",
    [
        GOOD, b'{"id":1}', b' {"id": -9223372036854775808, "shop": null}\r\n', b'{"id":9223372036854775807}',
        b'{"id":1,"price":1e3}', b'{"id":1,"price":"NaN"}', b'{"id":1,"price":"-Infinity"}',
    ],
)  # fmt: skip
def test_values_that_fit_are_good(value: bytes) -> None:
    """Missing and null fields where the schema allows them, additional fields, any notation of numbers."""
    assert is_value(SCHEMA, value)


@pytest.mark.parametrize(
    "value",
    [
        None, b"", b"{}", b"null", b"1", b"[]", b'{"id":null}', b'{"id":1.0}', b'{"id":"1"}', b'{"id":true}',
        b'{"id":9223372036854775808}', b'{"id":-9223372036854775809}', b'{"id":1,"shop":5}',
        b'{"id":1,"price":"2"}', b'{"id":1,"price":false}', b'{"id":1,"open":1}', b'{"id":1}{', b'{"id":1',
        b'{"id":1,"shop":"\xff"}', b'{"ID":1}', b'{"id":1} {"id":2}', b"[" * 100_000,
        b"{'id':1}", b'{"id":1,"price":NaN}', b'{"id":1,"price":-Infinity}', b'{"id":1,"price":1e999}',
        b'{"id":1,"price":"INF"}', b'{"id":1,"shop":[]}', b'{"id":1}}',
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_bad(value: bytes | None) -> None:
    """Each case has one reason."""
    assert not is_value(SCHEMA, value)


@given(st.integers(), st.integers(-(2**63), 2**63 - 1))
def test_fuzzed_messages_are_bad(seed: int, time_ms: int) -> None:
    """The original messages are good."""
    fuzzer = _fuzzer(seed)
    timed, plain = b"\x00" + time_ms.to_bytes(8, "big", signed=True) + GOOD, b"\x01" + GOOD

    assert is_value(SCHEMA, GOOD)
    assert is_tagged(SCHEMA, timed)
    assert is_tagged(SCHEMA, plain)
    assert is_marker_event(EVENT)
    assert not is_value(SCHEMA, fuzzer.value(GOOD)[1])
    assert not is_tagged(SCHEMA, fuzzer.element(timed)[1])
    assert not is_tagged(SCHEMA, fuzzer.element(plain)[1])
    assert not is_marker_event(fuzzer.event(EVENT)[1])


def test_all_kinds_are_made_and_the_same_seed_makes_the_same() -> None:
    """Each fault occurs."""

    def made(seed: int) -> list[tuple[str, bytes | None]]:
        fuzzer = _fuzzer(seed)
        calls = [(fuzzer.value, GOOD), (fuzzer.element, b"\x01" + GOOD), (fuzzer.event, EVENT)]
        return [make(good) for _ in range(2_000) for make, good in calls]

    assert made(1) == made(1) != made(2)
    assert {kind for kind, _ in made(1)} == set(FAULTS)
    assert len(VALUE_FAULTS) >= 20


@pytest.mark.parametrize("size_bytes", [100, 101, 1 << 20])
def test_oversize_values_have_the_size_and_are_bad(size_bytes: int) -> None:
    value = _fuzzer(1).oversize(size_bytes)

    assert len(value) == size_bytes
    assert not is_value(SCHEMA, value)
