"""Values that Python cannot hold are converted, whatever they are in; the others are as Arrow gives them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from flowcore.serializers.formats.arrow import ValueArrowFormat
from flowcore.serializers.formats.fixed import FixedFormat
from flowcore.serializers.python_values import first_row, to_python

AT = dt.datetime(2026, 1, 1, 0, 0, 0, 7, tzinfo=dt.UTC)
TIMES = pa.array([10**18, AT, None], pa.timestamp("us", "UTC"))
TEXTS = pa.StringArray.from_buffers(
    3, pa.py_buffer(b"".join(end.to_bytes(4, "little") for end in (0, 2, 4, 4))), pa.py_buffer(b"a\xffok")
)
COLUMNS: dict[str, tuple[pa.Array[Any], list[Any]]] = {
    "times": (TIMES, [None, AT, None]),
    "times without zone": (
        TIMES.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).cast(pa.timestamp("us")),
        [None, AT.replace(tzinfo=None), None],
    ),
    "dates": (
        pa.array([2**31 - 1, 1, None], pa.int32()).cast(pa.date32()),
        [None, dt.date(1970, 1, 2), None],
    ),
    "texts": (TEXTS, ["a\ufffd", "ok", ""]),
    "structs": (
        pa.StructArray.from_arrays([TIMES, TEXTS], ["at", "text"]),
        [{"at": None, "text": "a\ufffd"}, {"at": AT, "text": "ok"}, {"at": None, "text": ""}],
    ),
    "lists": (pa.ListArray.from_arrays(pa.array([0, 2, 3]), TIMES), [[None, AT], [None]]),
    "maps": (
        pa.MapArray.from_arrays(pa.array([0, 1, 2]), TEXTS.slice(0, 2), TIMES.slice(0, 2)),
        [[("a\ufffd", None)], [("ok", AT)]],
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_values_that_python_cannot_hold_are_converted(name: str) -> None:
    column, expected = COLUMNS[name]
    plain: Any = column

    with pytest.raises((OverflowError, UnicodeDecodeError)):
        plain.to_pylist()

    assert to_python(column) == expected
    assert first_row(pa.record_batch([column], ["x"])) == {"x": expected[0]}


def test_maps_may_be_dicts() -> None:
    assert to_python(COLUMNS["maps"][0], "lossy") == [{"a\ufffd": None}, {"ok": AT}]


def test_row_that_python_cannot_hold_is_an_error_of_its_own() -> None:
    """A sink's format gets the rows of a batch; the others are encoded."""
    rows = pa.StructArray.from_arrays([TIMES.slice(0, 2)], ["at"])
    layout = FixedFormat.of([("at", "TIMESTAMP")])

    found = ValueArrowFormat(layout, rows.type).encode(rows).to_pylist()

    assert found[0] == {"value": None, "error": "OverflowError: date value out of range"}
    assert found[1] == {"value": layout.encode({"at": AT}), "error": None}
