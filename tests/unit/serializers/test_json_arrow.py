"""JSON by column is JSON value by value: the same payloads are values, with the same columns."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from flowcore.errors import SerializationError
from flowcore.serializers.formats.columns import ValueColumn
from flowcore.serializers.formats.json_arrow import JsonArrowFormat
from flowcore.serializers.formats.json_text import JsonFormat

COLUMNS = [
    ("t", "TINYINT"), ("i", "INT"), ("l", "BIGINT"), ("d", "DOUBLE"), ("b", "BOOLEAN"),
    ("s", "STRING"),
]  # fmt: skip
FORMAT = JsonFormat.of(COLUMNS)
REQUIRED = JsonFormat.of([ValueColumn(name, kind, nullable=name in "dbs") for name, kind in COLUMNS])
"""Whole numbers must be there."""
NUMBERS = st.sampled_from(
    [
        0, 1, -1, 127, 128, -128, -129, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64,
        10**400, 0.5, 1.0, 3.4028234663852886e38, 3.5e38, 1.7e308, 5e-324, 9007199254740993,
    ]
)  # fmt: skip
SCALARS = st.one_of(
    NUMBERS, st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none(),
    st.text(max_size=5), st.sampled_from(["NaN", "Infinity", "-Infinity", "INF", "5"]),
)  # fmt: skip
FIELDS = st.sampled_from(["t", "i", "l", "f", "d", "b", "s", "other"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(FIELDS, inner, max_size=2)
)
OBJECTS = st.dictionaries(FIELDS, VALUES, max_size=8)
ODD = st.sampled_from(
    [
        None, b"", b" ", b"null", b"[]", b"1", b'"x"', b"{", b"{}", b"{}{}", b"{} x", b' {"l": 1}\n',
        b'\xef\xbb\xbf{"l":1}',
        b'{"l":1}\x00', b'{"l":NaN}', b'{"d":Infinity}', b'{"d":1e999}', b'{"l":01}', b'{"l":1,}', b"{'l':1}",
        b'{"s":"\xff"}', b'{"s":"\n"}', b'{"l":1,"l":"x"}', b'{"l":"x","l":1}', b"/**/{}", b'{"l":-0,"d":-0}',
        b'{"t":1,"i":1,"l":1}', b'{"t":1,"i":1}', b'{"t":1,"i":1,"l":9223372036854775808}',
        b'{"l":9223372036854775808,"l":127}', b'{"t":200,"t":1,"i":1,"l":1}',
        b"[" * 5_000, b'{"z":' * 3_000 + b"1" + b"}" * 3_000, b'{"d":' + b"9" * 5_000 + b"}",
    ]
)  # fmt: skip
PAYLOADS = st.one_of(
    OBJECTS.map(lambda row: json.dumps(row).encode()),
    OBJECTS.map(lambda row: json.dumps(row, ensure_ascii=False).encode()),
    st.builds(
        lambda row, cut: json.dumps(row).encode()[:cut], OBJECTS, st.integers(min_value=0, max_value=40)
    ),
    ODD,
    st.binary(max_size=8),
)


def decode(value_format: JsonFormat, payload: bytes | None) -> dict[str, Any] | None:
    """The row of a format, null if the payload is none."""
    try:
        return None if payload is None else value_format.decode(payload)
    except SerializationError:
        return None


def same(mine: object, other: object) -> bool:
    """Equal, also if not a number, and of one type."""
    nan = isinstance(mine, float) and isinstance(other, float) and math.isnan(mine) and math.isnan(other)
    return nan or (type(mine) is type(other) and mine == other)


@given(st.lists(PAYLOADS, max_size=12), st.sampled_from([FORMAT, REQUIRED]))
def test_columns_are_those_of_the_values(payloads: list[bytes | None], value_format: JsonFormat) -> None:
    """A payload in a batch with any others is what it is alone."""
    columns, is_value = JsonArrowFormat(value_format).read(pa.array(payloads, pa.binary()))

    rows = [decode(value_format, payload) for payload in payloads]
    assert is_value.tolist() == [row is not None for row in rows]
    assert [*columns] == [name for name, _ in COLUMNS]
    for name, column in columns.items():
        expected = [None if row is None else row[name] for row in rows]
        found = column.to_pylist()
        assert all(map(same, found, expected)), (name, found, expected)


@given(st.lists(PAYLOADS, max_size=12), st.sampled_from([FORMAT, REQUIRED]), st.data())
def test_columns_that_nobody_reads_still_have_to_fit(
    payloads: list[bytes | None], value_format: JsonFormat, data: st.DataObject
) -> None:
    """Which payloads are values does not depend on the columns that are read; these are the same."""
    used = data.draw(st.sets(st.sampled_from([name for name, _ in COLUMNS])))
    given_ = pa.array(payloads, pa.binary())

    columns, is_value = JsonArrowFormat(value_format).read(given_)
    some, found = JsonArrowFormat(value_format).read(given_, used)

    assert found.tolist() == is_value.tolist()
    assert used <= some.keys()
    assert all(all(map(same, some[name].to_pylist(), columns[name].to_pylist())) for name in used)


def test_missing_field_of_a_required_column_is_no_value() -> None:
    """Null is no value of it either, and the other payloads are read."""
    required = JsonFormat.of([ValueColumn("l", "BIGINT", nullable=False)])

    columns, is_value = JsonArrowFormat(required).read(pa.array([b"{}", b'{"l":null}', b'{"l":1}']))

    assert is_value.tolist() == [False, False, True]
    assert columns["l"].to_pylist() == [None, None, 1]


def test_number_out_of_range_lets_no_null_into_a_required_column() -> None:
    """Another payload of the batch decides nothing about one without the field."""
    required = JsonFormat.of([ValueColumn("l", "BIGINT", nullable=False), ("t", "TINYINT")])
    payloads = [b'{"t":1}', b'{"l":9223372036854775808}', b'{"l":1,"t":128}', b'{"l":2,"t":127}']

    columns, is_value = JsonArrowFormat(required).read(pa.array(payloads))

    assert is_value.tolist() == [False, False, False, True]
    assert [column.to_pylist()[-1] for column in columns.values()] == [2, 127]


def test_names_with_any_characters_are_read() -> None:
    """Also those that the fast decoder cannot have."""
    odd = JsonArrowFormat(JsonFormat.of([('a"b', "BIGINT"), ("c\\d", "STRING"), ("e`f", "BOOLEAN")]))
    payload = json.dumps({'a"b': 1, "c\\d": "x", "e`f": True}).encode()

    columns, is_value = odd.read(pa.array([payload, b"{}", b"["]))

    assert is_value.tolist() == [True, True, False]
    assert [column.to_pylist() for column in columns.values()] == [
        [1, None, None],
        ["x", None, None],
        [True, None, None],
    ]


def test_bytes_that_are_no_text_in_another_field_are_no_value() -> None:
    """The fast decoder skips such fields; other payloads of the batch are read."""
    columns, is_value = JsonArrowFormat(JsonFormat.of([("l", "BIGINT")])).read(
        pa.array([b'{"l":1}', b'{"l":2,"other":"\xff"}', b'{"l":3,"other":"\xc5\xbc"}'])
    )

    assert is_value.tolist() == [True, False, True]
    assert next(iter(columns.values())).to_pylist() == [1, None, 3]


def test_half_a_pair_of_surrogates_becomes_a_question_mark() -> None:
    """As in Java, whose strings can hold one."""
    columns, is_value = JsonArrowFormat(JsonFormat.of([("s", "STRING")])).read(
        pa.array([b'{"s":"a\\ud800"}', b'{"s":"b"}'])
    )

    assert is_value.tolist() == [True, True]
    assert next(iter(columns.values())).to_pylist() == ["a?", "b"]
