"""JSON is written as Java writes it, and read as strictly as Spark reads it."""

from __future__ import annotations

import json
import math
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.api.schema import Schema
from flowcore.errors import SerializationError
from flowcore.serializers.formats import (
    JsonFormat,
)

SCALARS = "a BIGINT, b INT, c DOUBLE, d BOOLEAN, e STRING NOT NULL"

text = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON in UTF-8"),
        (b"{", "not JSON in UTF-8"),
        (b'{"a":1} x', "not JSON in UTF-8"),
        (b'{"a":\xff}', "not JSON in UTF-8"),
        ('{"a":1}'.encode("utf-16"), "not JSON in UTF-8"),
        (b"[" * 100_000, "more than 500 levels"),
        (b'{"a":' + b"9" * 5000 + b"}", "more than 1,000 digits"),
        (b"null", "the JSON is NoneType, not an object"),
        (b"[1]", "the JSON is list, not an object"),
        (b'{"a":"1"}', "column 'a' is BIGINT and holds '1'"),
        (b'{"a":1.0}', "column 'a' is BIGINT and holds 1.0"),
        (b'{"a":true}', "column 'a' is BIGINT and holds True"),
        (b'{"a":"1","a":1,"e":""}', "column 'a' is BIGINT and holds '1'"),
        (b'{"a":9223372036854775808}', "column 'a' is BIGINT and holds a number too large"),
        (b'{"c":true}', "column 'c' is DOUBLE and holds True"),
        (b'{"c":"1"}', "column 'c' is DOUBLE and holds '1'"),
        (b'{"c":NaN}', "column 'c' is DOUBLE and holds NaN"),
        (b'{"c":1e999}', "column 'c' is DOUBLE and holds a number too large"),
        (b'{"d":1}', "column 'd' is BOOLEAN and holds 1"),
        (b'{"e":1}', "column 'e' is STRING and holds 1"),
        (b'{"a":1}', "the object has no 'e', which is NOT NULL"),
        (b'{"e":null}', "the object has no 'e', which is NOT NULL"),
    ],
)
def test_json_errors(data: bytes, message: str) -> None:
    """Errors name the column and its value."""
    with pytest.raises(SerializationError, match=message):
        JsonFormat.of(Schema.parse(SCALARS).columns).decode(data)


def test_json_ignores_unknown_fields() -> None:
    """Other writers may send more fields."""
    assert JsonFormat.of([("a", "BIGINT")]).decode(b' {"z":[{}],"a":1} ') == {"a": 1}


@pytest.mark.parametrize(
    ("number", "written"),
    [
        (1.0, "1.0"), (100.0, "100.0"), (0.1, "0.1"), (1 / 3, "0.3333333333333333"), (0.001, "0.001"),
        (0.000999, "9.99E-4"), (9999999.0, "9999999.0"), (1e7, "1.0E7"), (12345678.9, "1.23456789E7"),
        (1e21, "1.0E21"), (2e23, "2.0E23"), (5e-324, "4.9E-324"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (0.0, "0.0"), (-0.0, "-0.0"), (-1.5, "-1.5"), (-2e-5, "-2.0E-5"),
        (math.nan, '"NaN"'), (math.inf, '"Infinity"'), (-math.inf, '"-Infinity"'),
    ],
    ids=str,
)  # fmt: skip
def test_json_doubles_are_written_as_java_does(number: float, written: str) -> None:
    """Cases are from Java's documentation of Double.toString and Jackson's of NaN and infinities."""
    doubles = JsonFormat.of([("x", "DOUBLE")])
    data = doubles.encode({"x": number})

    assert data.decode() == f'{{"x":{written}}}'
    assert struct.pack(">d", doubles.decode(data)["x"]) == struct.pack(">d", number)


@pytest.mark.parametrize(
    ("number", "written"),
    [(0.1, "0.1"), (16777216.0, "1.6777216E7"), (1.401298464324817e-45, "1.4E-45"),
     (3.4028234663852886e38, "3.4028235E38"),
     (1e-50, "0.0"), (1 / 3, "0.33333334")],
    ids=str,
)  # fmt: skip
def test_json_floats_have_the_digits_of_single_precision(number: float, written: str) -> None:
    """A float is not shown with the digits of a double."""
    assert JsonFormat.of([("x", "FLOAT")]).encode({"x": number}).decode() == f'{{"x":{written}}}'


def test_json_refuses_a_float_that_single_precision_cannot_hold() -> None:
    """It would become infinite."""
    with pytest.raises(SerializationError, match="number too large"):
        JsonFormat.of([("x", "FLOAT")]).encode({"x": 1e39})


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_json_doubles_read_back_as_they_were(number: float) -> None:
    """Any JSON reader gets the same bits."""
    data = JsonFormat.of([("x", "DOUBLE")]).encode({"x": number})

    assert struct.pack(">d", json.loads(data)["x"]) == struct.pack(">d", number)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_json_floats_read_back_as_they_were(number: float) -> None:
    """All bits of single precision are kept."""
    floats = JsonFormat.of([("x", "FLOAT")])

    assert struct.pack(">f", floats.decode(floats.encode({"x": number}))["x"]) == struct.pack(">f", number)


@given(text)
def test_json_text_is_written_for_any_reader(string: str) -> None:
    """Escapes have upper-case digits, and only necessary characters are escaped."""
    data = JsonFormat.of([(string, "STRING")]).encode({string: string})

    assert json.loads(data) == {string: string}
    assert not re.search(rb"(?<!\\)(?:\\\\)*\\u00[01][a-f]", data)
