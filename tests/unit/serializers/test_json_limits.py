"""JSON beyond the limits of all readers is no value, wherever in the payload it is."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from flowcore.errors import SerializationError
from flowcore.serializers.formats.json_arrow import JsonArrowFormat
from flowcore.serializers.formats.json_limits import exceeds_limits
from flowcore.serializers.formats.json_text import JsonFormat

FORMAT = JsonFormat.of([("id", "BIGINT"), ("s", "STRING")])
NINES = "9" * 1_000
GOOD = {
    "digits": f'{{"id":1,"z":{NINES}}}',
    "negative": f'{{"id":1,"z":-{NINES}}}',
    "numbers": f'{{"id":1,"z":[{NINES},{NINES}, -{NINES}]}}',
    "fraction": f'{{"id":1,"z":{"9" * 500}.{"9" * 498}e-10}}',
    "text": f'{{"id":1,"s":"{NINES}99","z":"\\"{NINES}9"}}',
    "levels": f'{{"id":1,"z":{"[" * 499}{"]" * 499}}}',
    "objects": f'{{"id":1,"z":{"[" * 498}{{}},{{}}{"]" * 498}}}',
    "brackets": f'{{"id":1,"z":[{",".join(["[{}]"] * 600)}],"s":"{"[{" * 600}"}}',
}
BAD = {
    "digits": f'{{"id":1,"z":{NINES}9}}',
    "fraction": f'{{"id":1,"z":{"9" * 500}.{"9" * 499}E-10}}',
    "within": f'{{"id":1,"z":["",{{"a":-{NINES}9}}]}}',
    "levels": f'{{"id":1,"z":{"[" * 500}{"]" * 500}}}',
    "objects": f'{{"id":1,"z":{"[" * 498}{{"a":{{}}}}{"]" * 498}}}',
    "open": "[" * 5_000,
    "quote": f'{{"id":1,"z":{NINES}9,"s":"\\',
}


@pytest.mark.parametrize("case", GOOD)
def test_payload_at_the_limits_is_a_value(case: str) -> None:
    """What is text does not count."""
    data = GOOD[case].encode()

    assert not exceeds_limits(data)
    assert FORMAT.decode(data)["id"] == 1
    columns, is_value = JsonArrowFormat(FORMAT).read(pa.array([data]))
    assert (columns["id"].to_pylist(), is_value.tolist()) == ([1], [True])


@pytest.mark.parametrize("case", BAD)
def test_payload_beyond_a_limit_is_no_value(case: str) -> None:
    """Also in a field that is no column, and beside other payloads."""
    data = BAD[case].encode()

    assert exceeds_limits(data)
    with pytest.raises(SerializationError, match="more than 1,000 digits, or more than 500 levels"):
        FORMAT.decode(data)
    _, is_value = JsonArrowFormat(FORMAT).read(pa.array([b'{"id":1}', data, None, b'{"id":2}']))
    assert is_value.tolist() == [True, False, False, True]


def test_stack_decides_nothing() -> None:
    """The deepest value is read where Python has a good part of its stack in use."""
    found: list[object] = []

    def descend(levels: int) -> None:
        if levels:
            return descend(levels - 1)
        data = GOOD["levels"].encode()
        found.extend([FORMAT.decode(data)["id"], JsonArrowFormat(FORMAT).read(pa.array([data]))[1].tolist()])
        return None

    thread = threading.Thread(target=descend, args=(300,))
    thread.start()
    thread.join()

    assert found == [1, [True]]


def test_hostile_text_is_searched_once() -> None:
    """A megabyte of marks that open a text and never close it takes no minutes."""
    for hostile, is_beyond in (
        (b'"' + b'\\"' * 500_000, False),
        (b'"\\"' * 300_000, False),
        ((NINES.encode() + b" ") * 1_000, True),
    ):
        assert exceeds_limits(hostile + b"[" * 501) == is_beyond


@pytest.mark.parametrize("start", range(40))
def test_number_is_found_wherever_it_begins(start: int) -> None:
    """Only some bytes are looked at first."""
    text = b" " * start + b'{"z":'

    assert exceeds_limits(text + NINES.encode() + b"9}")
    assert exceeds_limits(text + b"-" + b"9" * 600 + b"." + b"9" * 390 + b"e-" + b"9" * 11 + b"}")
    assert not exceeds_limits(text + NINES.encode() + b"}" + b" " * 100)
