"""The fixed layout has the same number of bytes for every value."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.api.schema import Schema
from flowcore.errors import FormatError, SerializationError
from flowcore.serializers.formats import (
    FixedFormat,
)

bigints = st.integers(-(2**63), 2**63 - 1)

ints = st.integers(-(2**31), 2**31 - 1)

FIXED = FixedFormat.of(
    Schema.parse(
        "a TINYINT NOT NULL, b SMALLINT NOT NULL, c INT NOT NULL, d BIGINT NOT NULL, e DOUBLE NOT NULL, "
        "f BOOLEAN NOT NULL, g DATE NOT NULL, h TIMESTAMP NOT NULL"
    ).columns
)


@given(
    st.fixed_dictionaries(
        {
            "a": st.integers(-128, 127), "b": st.integers(-(2**15), 2**15 - 1), "c": ints, "d": bigints,
            "e": st.floats(allow_nan=False), "f": st.booleans(), "g": st.dates(),
            "h": st.datetimes(timezones=st.just(UTC)),
        }
    )
)  # fmt: skip
def test_fixed_round_trips(value: dict[str, Any]) -> None:
    """Each value has 36 bytes."""
    data = FIXED.encode(value)

    assert len(data) == FIXED.size_bytes == 36
    assert FIXED.decode(data) == value


def test_fixed_reads_times_of_every_zone_as_utc() -> None:
    """The same moment in another zone has the same bytes."""
    times = FixedFormat.of([("t", "TIMESTAMP")])
    noon = datetime(2024, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))

    assert times.decode(times.encode({"t": noon})) == {"t": datetime(2024, 1, 1, 10, tzinfo=UTC)}


@pytest.mark.parametrize(
    ("type_", "field"),
    [
        ("TINYINT", 128), ("TINYINT", True), ("BIGINT", 2**63), ("BIGINT", 1.0), ("INT", "1"),
        ("FLOAT", 1e39),
        ("DOUBLE", 1), ("BOOLEAN", 1), ("DATE", datetime(2024, 1, 1, tzinfo=UTC)),
        ("TIMESTAMP", date(2024, 1, 1)),
        ("TIMESTAMP", datetime(2024, 1, 1)), ("INT", None),  # noqa: DTZ001 - without a zone on purpose
    ],
    ids=repr,
)  # fmt: skip
def test_fixed_refuses_what_does_not_fit(type_: str, field: Any) -> None:
    """Values are neither converted nor cut."""
    with pytest.raises(SerializationError):
        FixedFormat.of([("x", type_)]).encode({"x": field})


@pytest.mark.parametrize(
    ("type_", "data", "message"),
    [
        ("INT", "000000", "3 bytes where the fixed layout has 4"),
        ("INT", "0000000000", "5 bytes where the fixed layout has 4"),
        ("INT", "", "0 bytes where the fixed layout has 4"),
        ("BOOLEAN", "02", "column 'x' is BOOLEAN and holds 2"),
        ("DATE", "7fffffff", "outside the years 1 to 9999"),
        ("TIMESTAMP", "8000000000000000", "outside the years 1 to 9999"),
    ],
)
def test_fixed_errors(type_: str, data: str, message: str) -> None:
    """Errors name the column or the size."""
    with pytest.raises(SerializationError, match=message):
        FixedFormat.of([("x", type_)]).decode(bytes.fromhex(data))


def test_fixed_has_no_place_for_nulls() -> None:
    """A nullable column is refused before the first write."""
    with pytest.raises(FormatError, match=r"column 'id INT' may be null.*declare it NOT NULL"):
        FixedFormat.of(Schema.parse("id INT").columns)
