"""Records are read from Arrow and written back unchanged; copies share no mutable value."""

from __future__ import annotations

import copy
import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.chains.copiers import make_copier
from flowcore.chains.records import MisfitError, batch_writer, to_records
from flowcore.errors import FunctionError
from flowcore.keyed.copies import deep_copy
from flowcore.keyed.user_code import build_columns

UTC = dt.UTC
COLUMNS: list[Any] = [("a", pa.int64()), ("b", pa.string())]
TWO_COLUMNS = pa.schema(COLUMNS)
TYPES: dict[str, tuple[pa.DataType, Any]] = {
    "bool": (pa.bool_(), True),
    "int8": (pa.int8(), -128),
    "int64": (pa.int64(), 2**63 - 1),
    "float": (pa.float32(), 0.5),
    "double": (pa.float64(), 1e300),
    "decimal": (pa.decimal128(38, 18), Decimal("1.000000000000000001")),
    "string": (pa.string(), "ä\x00"),
    "binary": (pa.binary(), b"\xff"),
    "date": (pa.date32(), dt.date(1, 1, 1)),
    "timestamp": (pa.timestamp("us", tz="UTC"), dt.datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=UTC)),
    "timestamp_ntz": (pa.timestamp("us"), dt.datetime(2024, 2, 29, 1, 2, 3, 456789)),  # noqa: DTZ001 - it has none
    "duration": (pa.duration("us"), dt.timedelta(days=-1, microseconds=1)),
    "list": (pa.list_(pa.int32()), [1, None, 3]),
    "list_of_lists": (pa.list_(pa.list_(pa.string())), [["a"], None, []]),
    "struct": (
        pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.list_(pa.string()))]),
        {"a": None, "b": ["x"]},
    ),
    "list_of_structs": (pa.list_(pa.struct([("a", pa.int64())])), [{"a": 1}, None]),
    "map": (pa.map_(pa.string(), pa.int64()), {"a": 1, "b": None}),
    "map_in_struct": (
        pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.int64())))]), {"m": {"k": [1], "l": None}}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_value_round_trips(name: str) -> None:
    """A null next to the value is kept, too."""
    kind, value = TYPES[name]
    schema = pa.schema({"a": kind, "b": pa.int64()})
    records = [{"a": value, "b": 1}, {"a": None, "b": 2}]

    written = batch_writer(schema)(records)

    assert to_records(written) == records
    assert written.schema == schema


TEXTS = st.sampled_from(["", "a", "ä", "\x00", "two words"])


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "a": st.none() | st.integers(-(2**63), 2**63 - 1),
                "b": st.none()
                | st.lists(
                    st.none() | st.fixed_dictionaries({"c": TEXTS, "d": st.floats(allow_nan=False)}),
                    max_size=3,
                ),
                "e": st.none() | st.dictionaries(TEXTS, st.binary(max_size=2), max_size=2),
            }
        ),
        max_size=5,
    )
)
def test_records_round_trip(rows: list[dict[str, Any]]) -> None:
    """For any records, reading gives the same as Arrow's own conversion."""
    inner = pa.struct([("c", pa.string()), ("d", pa.float64())])
    schema = pa.schema(
        [
            pa.field("a", pa.int64()),
            pa.field("b", pa.list_(inner)),
            pa.field("e", pa.map_(pa.string(), pa.binary())),
        ]
    )

    written = batch_writer(schema)(rows)

    assert to_records(written) == rows
    assert written.to_pylist(maps_as_pydicts="strict") == rows


def test_slice_of_a_batch_is_read_from_its_begin() -> None:
    """The offset of a slice applies to nested values, too."""
    whole = pa.RecordBatch.from_pylist([{"a": [n], "b": {"c": n}} for n in range(5)])

    assert to_records(whole.slice(3, 1)) == [{"a": [3], "b": {"c": 3}}]


def test_empty_list_of_records_is_an_empty_batch() -> None:
    """The empty batch has the schema."""
    assert batch_writer(TWO_COLUMNS)([]).to_pydict() == {"a": [], "b": []}
    assert batch_writer(TWO_COLUMNS.remove(1))([]).to_pydict() == {"a": []}


def test_columns_outside_the_schema_are_dropped() -> None:
    """A function may return additional fields for the next function."""
    assert batch_writer(pa.schema({"a": pa.int64()}))([{"z": object(), "a": 1}]).to_pylist() == [{"a": 1}]


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"b": "x"}, "without the column 'a'"),
        ({"a": "1", "b": "x"}, "a='1', which is not int64"),
        ({"a": 2**63, "b": "x"}, "a=9223372036854775808, which is not int64"),
        ({"a": 1, "b": 1}, "b=1, which is not string"),
        ([1, "x"], "emits a list"),
        (None, "emits a NoneType"),
    ],
    ids=["missing", "text", "range", "number", "list", "none"],
)
def test_misfit_is_named_with_its_place(record: Any, says: str) -> None:
    """The error names the first record that does not fit."""
    write = batch_writer(TWO_COLUMNS)

    with pytest.raises(MisfitError, match=says) as caught:
        write([{"a": 1, "b": "x"}, record, {}])

    assert caught.value.misfit.position == 1


@pytest.mark.parametrize(
    ("kind", "fits", "value"),
    [
        (pa.int64(), 2.0, 1.5),
        (pa.int32(), 2, np.float32(1.5)),
        (pa.int64(), Decimal(2), Decimal("1.5")),
        (pa.date32(), dt.date(2026, 1, 1), 5),
        (pa.timestamp("us", tz="UTC"), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), 5),
        (pa.timestamp("us"), dt.datetime(2026, 1, 1), 1.5),  # noqa: DTZ001 - it has none
    ],
)
def test_value_that_arrow_would_change_is_a_misfit(kind: pa.DataType, fits: Any, value: Any) -> None:
    """Arrow cuts off fractions, and takes a number for a time since 1970."""
    schema = pa.schema({"a": kind})

    assert batch_writer(schema)([{"a": fits}, {"a": None}]).column("a").to_pylist() == [fits, None]
    with pytest.raises(MisfitError, match=r"emits a=.*, which is not") as caught:
        batch_writer(schema)([{"a": fits}, {"a": value}])
    assert caught.value.misfit.position == 1
    with pytest.raises(FunctionError, match=r"its function emitted \{'a': .*, which is not a record of"):
        build_columns([{"a": fits}, {"a": value}], schema, "f")


INTS, STRUCT = pa.list_(pa.int32()), pa.struct([("a", pa.int64()), ("b", pa.string())])
MAP = pa.map_(pa.date32(), pa.int64())
DAY, NOON = dt.date(2026, 1, 1), dt.datetime(2026, 1, 1, 12)  # noqa: DTZ001 - it has none
FRACTION, TIME = "a fraction would be cut off", "a time of day would be lost"


@pytest.mark.parametrize(
    ("kind", "fits", "value", "why"),
    [
        (INTS, [1, 2.0, None], [1, 1.5], FRACTION),
        (INTS, (1, 2), np.array([1.5]), FRACTION),
        (INTS, np.array([1, 2]), np.array([1, 0.5], np.float32), FRACTION),
        (pa.large_list(pa.int64()), [1], [Decimal("1.5")], FRACTION),
        (pa.list_(pa.int64(), 2), [1, 2], [1, 2.5], FRACTION),
        (pa.list_(INTS), [[1], None, []], [[1], [1.5]], FRACTION),
        (STRUCT, {"a": 1}, {"a": 1.5, "b": "x"}, FRACTION),
        (STRUCT, {"b": "x", "c": 1.5}, {"a": 0.5}, FRACTION),
        (STRUCT, (1, "x"), (1.5, "x"), FRACTION),
        (STRUCT, [("a", 2.0)], [("a", 1.5), ("b", "x")], FRACTION),
        (pa.list_(STRUCT), [{"a": 1}, None], [None, {"a": 1.5}], FRACTION),
        (MAP, {DAY: 1}, {DAY: 1.5}, FRACTION),
        (MAP, {}, [(DAY, 1), (DAY, 1.5)], FRACTION),
        (MAP, {DAY: None}, {NOON: 1}, TIME),
        (MAP, {DAY: 1}, [(5, 1)], "a number would become a date or time"),
        (pa.map_(pa.string(), INTS), {"a": None}, {"a": [1], "b": [1.5]}, FRACTION),
        (pa.date32(), dt.datetime(2026, 1, 1), NOON, TIME),  # noqa: DTZ001 - it has none
        (pa.date32(), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), NOON.replace(tzinfo=dt.UTC), TIME),
        (pa.list_(pa.date32()), [DAY, dt.datetime(2026, 1, 1)], [NOON], TIME),  # noqa: DTZ001 - it has none
    ],
)
def test_value_within_a_value_that_arrow_would_change_is_a_misfit(
    kind: pa.DataType, fits: Any, value: Any, why: str
) -> None:
    """Midnight is a date. What a function emits may have any of the forms that Arrow takes."""
    schema = pa.schema({"a": kind})
    kept = pa.array([fits, None], kind)

    assert batch_writer(schema)([{"a": fits}, {"a": None}]).column("a").equals(kept)
    assert build_columns([{"a": fits}, {"a": None}], schema, "f")[0].equals(kept)
    with pytest.raises(MisfitError, match=rf"emits a=.*, which is not .*: {why}") as caught:
        batch_writer(schema)([{"a": fits}, {"a": value}])
    assert caught.value.misfit.position == 1
    with pytest.raises(FunctionError, match=rf"its function emitted \{{'a': .*not a record of .*{why}"):
        build_columns([{"a": fits}, {"a": value}], schema, "f")


PAIRS = pa.map_(pa.string(), pa.int64())


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (PAIRS, [("a", 1), None]),
        (pa.list_(PAIRS), [{"a": 1}, [None]]),
        (pa.struct([("m", PAIRS)]), {"m": [None]}),
        (pa.map_(pa.string(), PAIRS), {"b": [None]}),
        (pa.map_(pa.string(), PAIRS), [("b", [("a", 1), None])]),
    ],
    ids=["map", "list", "struct", "map of maps", "pairs of maps"],
)
def test_map_without_a_pair_is_a_misfit(kind: pa.DataType, value: Any) -> None:
    """Arrow ends the process at it: each start of a query would lose its worker at the same record."""
    schema = pa.schema({"a": kind})

    with pytest.raises(MisfitError, match=r"emits a=.*None.*, which is not "):
        batch_writer(schema)([{"a": None}, {"a": value}])
    with pytest.raises(FunctionError, match="a map has None in place of a pair of key and value"):
        build_columns([{"a": None}, {"a": value}], schema, "f")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.map_(pa.string(), PAIRS), [("a",)]),
        (pa.struct([("m", PAIRS), ("b", pa.int64())]), ()),
        (pa.struct([("b", pa.int64()), ("m", pa.int64())]), (1,)),
    ],
    ids=["pair", "struct with a map", "struct"],
)
def test_tuple_that_is_too_short_is_a_misfit(kind: pa.DataType, value: Any) -> None:
    """What looks into a value before or after Arrow finds fewer parts than it has."""
    schema = pa.schema({"a": kind})

    with pytest.raises(MisfitError, match=r"emits a=.*, which is not "):
        batch_writer(schema)([{"a": None}, {"a": value}])
    with pytest.raises(FunctionError, match="its function emitted"):
        build_columns([{"a": None}, {"a": value}], schema, "f")


ATOMS = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.dates()
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)
NESTED = pa.schema(
    [
        pa.field("a", pa.int64()),
        pa.field("b", pa.list_(pa.struct([("a", pa.string())]))),
        pa.field("c", pa.struct([("a", pa.list_(pa.int64()))])),
    ]
)


def _mutable(value: Any) -> dict[int, Any]:
    """Every mutable object within a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    found = {} if isinstance(value, tuple) else {id(value): value} if isinstance(value, (dict, list)) else {}
    return found | {key: each for part in inner for key, each in _mutable(part).items()}


@given(record=st.dictionaries(st.sampled_from("abcd"), VALUES))
def test_deep_copy_is_equal_and_shares_nothing(record: dict[str, Any]) -> None:
    """This holds for records of the copier's schema and for other records."""
    for copied in (deep_copy(record), make_copier(NESTED)(record)):
        assert repr(copied) == repr(record)
        assert _mutable(copied).keys().isdisjoint(_mutable(record).keys())


def test_copier_of_a_schema_copies_nested_values() -> None:
    """Lists, structs and lists of structs are copied."""
    record = {"a": 1, "b": [{"a": "x"}, None], "c": {"a": [1]}}

    copied = make_copier(NESTED)(record)

    assert copied == record == copy.deepcopy(record)
    assert _mutable(copied).keys().isdisjoint(_mutable(record).keys())
    assert make_copier(NESTED)({"a": 1, "b": None, "c": None}) == {"a": 1, "b": None, "c": None}


def test_deep_copy_of_other_objects_is_pythons() -> None:
    """Objects, sets and byte arrays are copied by `copy.deepcopy`."""

    class Thing:
        def __init__(self) -> None:
            self.inner = [1]

    thing = Thing()
    value = {"a": {1, 2}, "b": bytearray(b"x"), "c": thing, "d": math.inf}

    copied = deep_copy(value)

    assert copied["a"] == {1, 2} and copied["a"] is not value["a"]  # noqa: PT018 - one fact
    assert copied["b"] is not value["b"]
    assert copied["c"].inner == [1] and copied["c"].inner is not thing.inner  # noqa: PT018 - one fact


def test_map_whose_keys_are_structs_is_a_list_of_pairs() -> None:
    """A dict cannot be the key of a dict; maps in other columns are dicts."""
    nested = pa.map_(pa.struct([("a", pa.int64())]), pa.string())
    plain = pa.map_(pa.string(), pa.int64())
    columns: list[Any] = [pa.array([[({"a": 1}, "x")]], nested), pa.array([[("q", 1)]], plain)]

    found = to_records(pa.record_batch(columns, ["nested", "plain"]))

    assert found == [{"nested": [({"a": 1}, "x")], "plain": {"q": 1}}]
