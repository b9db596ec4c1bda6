"""Formats over arrays treat each value as the format of single values does."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.api_pb2 import Api
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.errors import FormatError, SerializationError
from flowcore.serializers.formats import FixedFormat, JsonFormat, ProtobufFormat, ValueFormat
from flowcore.serializers.formats.arrow import FixedArrowFormat, ValueArrowFormat, arrow_format
from flowcore.serializers.formats.protobuf import message_of, protobuf_types, row_of_message

ARROW = {
    "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64(),
    "FLOAT": pa.float32(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(), "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"), "STRING": pa.string(), "BINARY": pa.binary(),
}  # fmt: skip
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "TINYINT": st.integers(-(2**7), 2**7 - 1),
    "SMALLINT": st.integers(-(2**15), 2**15 - 1),
    "INT": st.integers(-(2**31), 2**31 - 1),
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "FLOAT": st.floats(width=32, allow_nan=False),
    "DOUBLE": st.floats(allow_nan=False),
    "BOOLEAN": st.booleans(),
    "DATE": st.dates(),
    "TIMESTAMP": st.datetimes(timezones=st.just(UTC)),
}
COLUMNS = [(kind.lower(), kind) for kind in VALUES]
FIXED = FixedFormat.of(COLUMNS)


def _rows(columns: list[tuple[str, str]]) -> pa.StructType:
    return pa.struct([pa.field(name, ARROW[kind]) for name, kind in columns])


BULK = FixedArrowFormat(FIXED, _rows(COLUMNS))


def _one(value_format: ValueFormat[Any], data: bytes | None) -> Any:
    try:
        return None if data is None else value_format.decode(data)
    except SerializationError:
        return None


row = st.fixed_dictionaries({kind.lower(): values for kind, values in VALUES.items()})


@settings(deadline=None)
@given(st.lists(row, max_size=20))
def test_fixed_arrow_format_writes_the_bytes_of_one_at_a_time(values: list[dict[str, Any]]) -> None:
    """It reads them back, too."""
    written = BULK.encode(pa.array(values, BULK.rows))

    assert written.field("value").to_pylist() == [FIXED.encode(value) for value in values]
    assert written.field("error").null_count == len(values)
    assert BULK.decode(written.field("value")).to_pylist() == values


payload = st.one_of(
    st.none(),
    st.binary(max_size=2 * FIXED.size_bytes),
    st.binary(min_size=FIXED.size_bytes, max_size=FIXED.size_bytes),
    row.map(FIXED.encode),
)


@settings(deadline=None)
@given(st.lists(payload, max_size=20), st.integers(0, 5), st.integers(0, 5))
def test_fixed_arrow_format_reads_what_one_at_a_time_reads(values: list[Any], skip: int, drop: int) -> None:
    """A bad value is null and does not affect others; the array may be a slice."""
    array = pa.array(values, pa.binary())[skip : len(values) - drop]

    found = BULK.decode(array).to_pylist()

    assert list(map(_text, found)) == [_text(_one(FIXED, data)) for data in array.to_pylist()]


def _text(values: Any) -> str:
    """NaN is not equal to itself, but its text is; and there are several objects that stand for UTC."""
    return str(values and values | {"timestamp": values["timestamp"].replace(tzinfo=None)})


@pytest.mark.parametrize("large", [pa.binary(), pa.large_binary()], ids=["binary", "large"])
def test_fixed_arrow_format_refuses_what_no_column_can_hold(large: pa.DataType) -> None:
    """Booleans of 2 and times outside of the years 1 to 9999 are refused; the limits are valid."""
    day, moment = date(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    layout = FixedFormat.of([("b", "BOOLEAN"), ("d", "DATE"), ("t", "TIMESTAMP")])
    form = FixedArrowFormat(layout, _rows([("b", "BOOLEAN"), ("d", "DATE"), ("t", "TIMESTAMP")]))
    good = layout.encode({"b": True, "d": day, "t": moment})
    before = (int.from_bytes(good[1:5], "big", signed=True) - 1).to_bytes(4, "big", signed=True)
    after = (int.from_bytes(good[5:], "big", signed=True) + 1).to_bytes(8, "big", signed=True)
    wrong = [b"\2" + good[1:], good[:1] + before + good[5:], good[:5] + after, good[:-1], good + b"\0", b""]

    found = form.decode(pa.array([good, *wrong, None, good], large)).to_pylist()

    row = {"b": True, "d": day, "t": moment}
    assert found == [row, *[None] * 7, row]


def test_fixed_arrow_format_names_the_column_that_is_null_or_out_of_range() -> None:
    """The other rows are written."""
    form = FixedArrowFormat(
        FixedFormat.of([("a", "INT"), ("d", "DATE")]), _rows([("a", "INT"), ("d", "DATE")])
    )
    days = pa.array([0, 0, 2**31 - 1], pa.int32()).cast(pa.date32())
    rows = pa.StructArray.from_arrays([pa.array([1, None, 2], pa.int32()), days], fields=list(form.rows))

    found = form.encode(rows)

    assert found.field("value").to_pylist() == [bytes.fromhex("0000000100000000"), None, None]
    assert found.field("error").to_pylist() == [
        None,
        "column 'a' is null, and the fixed format has no place for a null",
        "column 'd' is outside the years 1 to 9999",
    ]


@pytest.mark.parametrize("size", [0, 1])
def test_fixed_arrow_format_takes_small_arrays(size: int) -> None:
    """This includes arrays of bad values only."""
    rows = pa.array([{kind.lower(): None for kind in VALUES}] * size, BULK.rows)

    assert len(BULK.encode(rows)) == size
    assert BULK.decode(pa.array([b"x"] * size, pa.binary())).to_pylist() == [None] * size


JSON = JsonFormat.of([("id", "BIGINT"), ("name", "STRING")])
JSON_ROWS = _rows([("id", "BIGINT"), ("name", "STRING")])
json_payload = st.one_of(
    st.none(),
    st.binary(max_size=30),
    st.builds(lambda id_, name: JSON.encode({"id": id_, "name": name}), VALUES["BIGINT"], st.text()),
)


@settings(deadline=None)
@given(st.lists(json_payload, max_size=20))
def test_value_arrow_format_are_what_one_at_a_time_reads(values: list[Any]) -> None:
    """Bad values are null."""
    found = ValueArrowFormat(JSON, JSON_ROWS).decode(pa.array(values, pa.binary())).to_pylist()

    assert found == [_one(JSON, data) for data in values]


class Careless:
    """A format that raises any error and returns any value."""

    name = "careless"

    def encode(self, value: Any, /) -> Any:
        """By the length of the name."""
        return [value["name"].encode, lambda: "text", lambda: 1 / 0][value["id"]]()

    def decode(self, data: bytes, /) -> Any:
        """By the first byte."""
        return [
            lambda: {"id": 1, "name": "good", "more": 1},
            lambda: {"id": "no number", "name": "x"},
            lambda: {"id": 2**64, "name": "x"},
            lambda: [1, 2],
            lambda: 1 / 0,
            lambda: {"name": "no id"},
        ][data[0]]()


def test_value_arrow_format_isolates_errors_of_a_format() -> None:
    """An error of one record does not affect other records."""
    form = ValueArrowFormat(Careless(), JSON_ROWS)
    payloads = [bytes([n]) for n in range(6)] + [b"\0", b"", b"\x63", None]

    rows = form.decode(pa.array(payloads, pa.binary())).to_pylist()
    written = form.encode(pa.array([{"id": n, "name": "x"} for n in (0, 1, 2, 3, 0)], JSON_ROWS))

    good = {"id": 1, "name": "good"}
    assert rows == [good, None, None, None, None, {"id": None, "name": "no id"}, good, None, None, None]
    assert written.field("value").to_pylist() == [b"x", None, None, None, b"x"]
    assert written.field("error").to_pylist() == [
        None,
        "the format 'careless' gave str instead of bytes",
        "ZeroDivisionError: division by zero",
        "IndexError: list index out of range",
        None,
    ]


class Given:
    """A format whose value is a given one if the payload is not empty, else null."""

    name = "given"

    def __init__(self, value: Any) -> None:
        self._value = value

    def encode(self, _value: Any, /) -> bytes:
        """Empty."""
        return b""

    def decode(self, data: bytes, /) -> Any:
        """One column."""
        return {"c": self._value if data else None}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.map_(pa.string(), pa.int64()), [None]),
        (pa.list_(pa.map_(pa.string(), pa.int64())), [{"a": 1}, [("a",)]]),
        (pa.map_(pa.string(), pa.int64()), 5),
        (pa.int64(), 1.9),
        (pa.list_(pa.int64()), [1, 1.9]),
        (pa.date32(), datetime(2026, 3, 1, 12, 30, tzinfo=UTC)),
        (pa.date32(), 1.5),
        (pa.timestamp("us", "UTC"), 5),
    ],
    ids=str,
)
def test_value_that_arrow_would_change_or_end_with_is_bad(kind: pa.DataType, value: Any) -> None:
    """Others beside it are read."""
    form = ValueArrowFormat(Given(value), pa.struct([("c", kind)]))

    assert form.decode(pa.array([b"", b"x", b""])).to_pylist() == [{"c": None}, None, {"c": None}]


def test_arrow_format_is_vectorised_where_it_can_be() -> None:
    """The fixed layout is vectorised; other formats are called once per value."""
    assert isinstance(arrow_format(FIXED, BULK.rows), FixedArrowFormat)
    assert isinstance(arrow_format(JSON, JSON_ROWS), ValueArrowFormat)


def test_protobuf_types_are_those_of_the_fields() -> None:
    """Enums are text, a timestamp is one, nested messages are structs."""
    found = protobuf_types(Api)

    assert found["name"] == "STRING"
    assert found["source_context"] == "STRUCT<file_name: STRING>"
    assert found["syntax"] == "STRING"
    assert found["methods"].startswith(
        "ARRAY<STRUCT<name: STRING, request_type_url: STRING, request_streaming"
    )
    assert protobuf_types(Timestamp) == {"seconds": "BIGINT", "nanos": "INT"}
    with pytest.raises(FormatError, match=r"contains itself"):
        protobuf_types(Struct)


def test_protobuf_message_becomes_a_row_and_comes_back() -> None:
    """An absent field is null; a field with a default has its default."""
    api = Api(name="a", syntax="SYNTAX_PROTO3", version="1")
    api.source_context.file_name = "f"
    api.methods.add(name="m", request_streaming=True).options.add(name="o")
    names = list(protobuf_types(Api))

    found = row_of_message(api, names)

    assert (found["name"], found["syntax"], found["mixins"]) == ("a", "SYNTAX_PROTO3", [])
    assert found["source_context"] == {"file_name": "f"}
    assert message_of(Api, found) == api
    assert row_of_message(Api(), names)["source_context"] is None
    assert row_of_message(FieldDescriptorProto(), ["number", "label"]) == {"number": None, "label": None}


WRONG: dict[str, tuple[type[Any], dict[str, Any], str]] = {
    "null": (Timestamp, {"seconds": None, "nanos": 0}, "field 'seconds' is null.* read it as 0"),
    "null-list": (Api, {"methods": None}, "field 'methods' is null.* read it as empty"),
    "range": (Timestamp, {"seconds": 0, "nanos": 2**40}, "field 'nanos' does not take 1099511627776"),
    "enum": (FieldDescriptorProto, {"label": "LABEL_NONE"}, "field 'label' does not take 'LABEL_NONE'"),
    "oneof": (
        Value, {"string_value": "x", "number_value": 7.0},
        "fields 'string_value' and 'number_value' are not null, .* oneof 'kind'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_protobuf_refuses_a_row_that_its_message_does_not_hold(case: str) -> None:
    """The error names the field."""
    kind, values, message = WRONG[case]

    with pytest.raises(SerializationError, match=message):
        message_of(kind, values)


def test_one_field_of_a_oneof_is_written_and_any_number_of_optional_ones() -> None:
    """The compiler puts each `optional` field of proto3 into a oneof of its own."""
    file = FileDescriptorProto(name="flowcore_optional.proto", package="o", syntax="proto3")
    made = file.message_type.add(name="Made", oneof_decl=[{"name": "_a"}, {"name": "_b"}])
    for place, name in enumerate("ab"):
        made.field.add(
            name=name, number=place + 1, type="TYPE_INT64", label="LABEL_OPTIONAL",
            proto3_optional=True, oneof_index=place,
        )  # fmt: skip
    pool = DescriptorPool()
    pool.Add(file)
    kind: Any = GetMessageClass(pool.FindMessageTypeByName("o.Made"))

    assert row_of_message(message_of(kind, {"a": 1, "b": 0}), "ab") == {"a": 1, "b": 0}
    names = ["string_value", "number_value"]
    row = {"string_value": None, "number_value": 0.0}
    assert row_of_message(message_of(Value, row), names) == row


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=12)), max_size=10))
def test_protobuf_arrow_format_reads_what_its_format_reads(values: list[bytes | None]) -> None:
    """This holds for any bytes."""
    form = ValueArrowFormat(ProtobufFormat(Timestamp), _rows([("seconds", "BIGINT"), ("nanos", "INT")]))

    found = form.decode(pa.array(values, pa.binary())).to_pylist()

    messages = [_one(ProtobufFormat(Timestamp), data) for data in values]
    assert found == [
        m and {"seconds": m.seconds, "nanos": m.nanos} if m is not None else None for m in messages
    ]


def test_protobuf_timestamp_is_a_moment() -> None:
    """Microseconds are kept, smaller units are not; times before 1970 are valid."""
    from flowcore.serializers.formats import protobuf  # noqa: PLC0415 - its private half

    moments = [datetime(1, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC)]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)

    for moment in [*moments, epoch, datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)]:
        part = Timestamp()
        protobuf._fill(part, moment)
        assert epoch + timedelta(seconds=part.seconds, microseconds=part.nanos // 1000) == moment
        assert 0 <= part.nanos < 1_000_000_000


def test_fixed_arrow_format_finds_the_bytes_of_a_slice() -> None:
    """Arrow may pass a part of a larger buffer."""
    form = FixedArrowFormat(FixedFormat.of([("a", "TINYINT")]), _rows([("a", "TINYINT")]))
    values = pa.array([b"\1", b"\2", b"\3", b"\4"], pa.large_binary())

    assert form._table(values[1:3])["f0"].tolist() == [2, 3]
