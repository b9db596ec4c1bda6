"""Value formats bring values back, refuse in words what they cannot hold, and say who they are."""

from __future__ import annotations

import json
import math
import pickle
import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.struct_pb2 import ListValue, Struct
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.wrappers_pb2 import BytesValue, StringValue
from hypothesis import given, settings
from hypothesis import strategies as st

from flowcore.errors import FormatError, SerializationError
from flowcore.graph.schema import Schema
from flowcore.serializers.formats import (
    AvroFormat,
    ConfluentAvroFormat,
    FixedFormat,
    JsonFormat,
    ProtobufFormat,
    RawFormat,
    ValueFormat,
    build_format,
    check_readable,
    format_names,
    identity,
    register,
    registry,
)

laws = settings(deadline=None)  # how long an example takes says more of the machine
SCALARS = "a BIGINT, b INT, c DOUBLE, d BOOLEAN, e STRING NOT NULL"
MIB = 1 << 20

bigints = st.integers(-(2**63), 2**63 - 1)
ints = st.integers(-(2**31), 2**31 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.fixed_dictionaries(
    {
        "a": st.none() | bigints,
        "b": st.none() | ints,
        "c": st.none() | st.floats(allow_nan=False),
        "d": st.none() | st.booleans(),
        "e": text,
    }
)


@pytest.fixture(params=[JsonFormat, AvroFormat], ids=["json", "avro"])
def of_scalars(request: pytest.FixtureRequest) -> ValueFormat[Any]:
    """A format that holds text and nulls."""
    made: ValueFormat[Any] = request.param.of(Schema.parse(SCALARS).columns)
    return made


@laws
@given(value=scalars)
@pytest.mark.parametrize("kind", [JsonFormat, AvroFormat], ids=["json", "avro"])
def test_scalars_round_trip(kind: Any, value: dict[str, Any]) -> None:
    """With every limit, null and character."""
    value_format = kind.of(Schema.parse(SCALARS).columns)

    assert value_format.decode(value_format.encode(value)) == value


def test_text_of_a_mebibyte_round_trips(of_scalars: ValueFormat[Any]) -> None:
    """Nothing is cut."""
    value = {"a": None, "b": None, "c": None, "d": None, "e": "ż" * (MIB // 2)}

    assert of_scalars.decode(of_scalars.encode(value)) == value


def test_nullable_columns_may_be_left_out(of_scalars: ValueFormat[Any]) -> None:
    """They are null."""
    assert of_scalars.encode({"e": "x"}) == of_scalars.encode(
        {"a": None, "b": None, "c": None, "d": None, "e": "x"}
    )


@pytest.mark.parametrize(
    "value",
    [
        {"e": None}, {}, {"e": 5}, {"e": "x", "a": "1"}, {"e": "x", "a": True}, {"e": "x", "a": 1.5},
        {"e": "x", "a": 2**63}, {"e": "x", "b": 2**31}, {"e": "x", "c": "1"}, {"e": "x", "d": 1},
        {"e": "x", "z": 1}, {"e": "\ud800"}, None, 3, ["x"],
    ],
    ids=repr,
)  # fmt: skip
def test_values_that_do_not_fit_are_refused(of_scalars: ValueFormat[Any], value: Any) -> None:
    """Nothing is converted in silence."""
    with pytest.raises(SerializationError):
        of_scalars.encode(value)


def test_truncated_at_every_byte_is_refused(of_scalars: ValueFormat[Any]) -> None:
    """No part of a value is a value."""
    data = of_scalars.encode({"a": 300, "b": -1, "c": 1.5, "d": True, "e": "zażółć"})

    for size in range(len(data)):
        with pytest.raises(SerializationError):
            of_scalars.decode(data[:size])


def test_bytes_left_over_are_refused(of_scalars: ValueFormat[Any]) -> None:
    """A second value is not passed over."""
    data = of_scalars.encode({"e": "x"})

    with pytest.raises(SerializationError):
        of_scalars.decode(data + data)


@laws
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """No format raises anything but its own error."""
    for value_format in (
        JsonFormat.of([("a", "BIGINT")]),
        AvroFormat.of(Schema.parse(SCALARS).columns),
        AvroFormat.of([("d", "DATE"), ("t", "TIMESTAMP"), ("n", "TIMESTAMP_NTZ"), ("x", "BINARY")]),
        ConfluentAvroFormat('"string"', 0),
        FixedFormat.of([("d", "DATE"), ("t", "TIMESTAMP"), ("o", "BOOLEAN")]),
        ProtobufFormat(Struct),
    ):
        for given_ in (data, b"\0" * 5 + data):
            try:
                value_format.decode(given_)
            except SerializationError:
                continue


# JSON


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no JSON in UTF-8"),
        (b"{", "no JSON in UTF-8"),
        (b'{"a":1} x', "no JSON in UTF-8"),
        (b'{"a":\xff}', "no JSON in UTF-8"),
        ('{"a":1}'.encode("utf-16"), "no JSON in UTF-8"),
        (b"[" * 100_000, "no JSON in UTF-8"),
        (b'{"a":' + b"9" * 5000 + b"}", "no JSON in UTF-8"),
        (b"null", "the JSON is NoneType, not an object"),
        (b"[1]", "the JSON is list, not an object"),
        (b'{"a":"1"}', "column 'a' is BIGINT and holds '1'"),
        (b'{"a":1.0}', "column 'a' is BIGINT and holds 1.0"),
        (b'{"a":true}', "column 'a' is BIGINT and holds True"),
        (b'{"a":9223372036854775808}', "column 'a' is BIGINT and holds a number too large"),
        (b'{"c":true}', "column 'c' is DOUBLE and holds True"),
        (b'{"c":"1"}', "column 'c' is DOUBLE and holds '1'"),
        (b'{"c":NaN}', "NaN is no number of JSON"),
        (b'{"c":1e999}', "column 'c' is DOUBLE and holds a number too large"),
        (b'{"d":1}', "column 'd' is BOOLEAN and holds 1"),
        (b'{"e":1}', "column 'e' is STRING and holds 1"),
        (b'{"a":1}', "the object has no 'e', which is NOT NULL"),
        (b'{"e":null}', "the object has no 'e', which is NOT NULL"),
    ],
)
def test_json_errors(data: bytes, said: str) -> None:
    """They name the column and what it holds."""
    with pytest.raises(SerializationError, match=said):
        JsonFormat.of(Schema.parse(SCALARS).columns).decode(data)


def test_json_passes_over_what_is_no_column() -> None:
    """Other writers may send more."""
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
    """From Java's own documentation of Double.toString, and Jackson's of what is no number."""
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


@laws
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_json_doubles_read_back_as_they_were(number: float) -> None:
    """By any reader of JSON, to the last bit."""
    data = JsonFormat.of([("x", "DOUBLE")]).encode({"x": number})

    assert struct.pack(">d", json.loads(data)["x"]) == struct.pack(">d", number)


@laws
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_json_floats_read_back_as_they_were(number: float) -> None:
    """To the last bit of single precision."""
    floats = JsonFormat.of([("x", "FLOAT")])

    assert struct.pack(">f", floats.decode(floats.encode({"x": number}))["x"]) == struct.pack(">f", number)


@laws
@given(text)
def test_json_text_is_written_for_any_reader(string: str) -> None:
    """Names and values, with capital letters in escapes and nothing escaped that need not be."""
    data = JsonFormat.of([(string, "STRING")]).encode({string: string})

    assert json.loads(data) == {string: string}
    assert not re.search(rb"(?<!\\)(?:\\\\)*\\u00[01][a-f]", data)


# Avro


def test_avro_takes_a_schema_of_any_shape() -> None:
    """What is no column type of the derived schemas is written by hand."""
    lists = AvroFormat('{"type": "array", "items": "long"}')

    assert lists.encode([1, -1]).hex() == "04020100"
    assert lists.decode(bytes.fromhex("04020100")) == [1, -1]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "cannot be used"),
        ('"nothing"', "cannot be used"),
        ({"type": "record", "name": "n", "namespace": "x", "fields": [{"name": "n", "type": ["null", "n"]}]},
         "holds 'x.n' inside 'x.n'"),
        ({"type": "record", "name": "r", "fields": [
            {"name": "c", "type": {"type": "array", "items": "r"}}]}, "holds 'r' inside 'r'"),
        ({"type": "record", "name": "r", "fields": [
            {"name": "c", "type": {"type": "map", "values": "r"}}]}, "holds 'r' inside 'r'"),
        ({"type": "array", "items": "null"}, "items that take no bytes"),
        ({"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}}, "items that take no bytes"),
        ({"type": "record", "name": "r", "fields": [
            {"name": "e", "type": {"type": "record", "name": "e", "fields": [{"name": "z", "type": "null"}]}},
            {"name": "es", "type": {"type": "array", "items": "e"}}]}, "items that take no bytes"),
    ],
    ids=["json", "type", "itself", "itself-in-list", "itself-in-map", "nulls", "fixed-0", "empty-records"],
)  # fmt: skip
def test_avro_refuses_schemas_without_bounds(schema: Any, said: str) -> None:
    """Some bytes of them end the process, or fill the memory."""
    with pytest.raises(FormatError, match=said):
        AvroFormat(schema)


def test_avro_takes_one_type_in_many_places() -> None:
    """A named type that is used again is not inside itself."""
    point = {"type": "record", "name": "p", "fields": [{"name": "x", "type": "int"}]}
    fields = [
        {"name": "a", "type": point},
        {"name": "b", "type": "p"},
        {"name": "c", "type": {"type": "array", "items": "p"}},
    ]
    shape = AvroFormat({"type": "record", "name": "s", "fields": fields})
    value = {"a": {"x": 1}, "b": {"x": 2}, "c": [{"x": 3}]}

    assert shape.decode(shape.encode(value)) == value


def test_avro_refuses_what_its_writer_would_change() -> None:
    """A required long takes neither 1.5 nor true."""
    required = AvroFormat.of(Schema.parse("a BIGINT NOT NULL").columns)

    for wrong in (1.5, True, None):
        with pytest.raises(SerializationError, match="does not fit its Avro schema"):
            required.encode({"a": wrong})


def test_avro_names_only_what_avro_can_name() -> None:
    """Before anything is written."""
    with pytest.raises(FormatError, match="column 'a b' cannot be a field of Avro"):
        AvroFormat.of([("a b", "BIGINT")])


def test_avro_gives_spark_the_schema_it_writes_with() -> None:
    """As JSON, without what the library keeps in it."""
    given_ = json.loads(AvroFormat.of(Schema.parse("a BIGINT, t TIMESTAMP NOT NULL").columns).schema_json)

    assert given_ == {
        "type": "record",
        "name": "topLevelRecord",
        "fields": [
            {"name": "a", "type": ["long", "null"]},
            {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        ],
    }


def test_avro_reads_other_writers_by_their_number() -> None:
    """An older schema is read as the newer one."""
    old = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}
    new = {
        "type": "record", "name": "r",
        "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string", "default": "-"}],
    }  # fmt: skip
    writer = ConfluentAvroFormat(old, 7)
    reader = ConfluentAvroFormat(new, 8, writers={7: old})

    assert reader.decode(writer.encode({"a": 1})) == {"a": 1, "b": "-"}
    assert reader.decode(reader.encode({"a": 1, "b": "x"})) == {"a": 1, "b": "x"}
    with pytest.raises(SerializationError, match=r"schema 8 is not known \(known: 7\)"):
        writer.decode(reader.encode({"a": 1, "b": "x"}))


@pytest.mark.parametrize("data", [b"", b"\0\0\0\0", b"\1\0\0\0\7\2"], ids=["empty", "short", "magic"])
def test_avro_refuses_bytes_without_the_registry_header(data: bytes) -> None:
    """The message says how to read bare Avro."""
    with pytest.raises(SerializationError, match="read them with the format 'avro'"):
        ConfluentAvroFormat('"long"', 7).decode(data)


@pytest.mark.parametrize("number", [-1, 2**31])
def test_avro_refuses_numbers_that_no_registry_gives(number: int) -> None:
    """They would not fit the header."""
    with pytest.raises(FormatError, match=f"schema_id={number}"):
        ConfluentAvroFormat('"long"', number)


# Fixed

FIXED = FixedFormat.of(
    Schema.parse(
        "a TINYINT NOT NULL, b SMALLINT NOT NULL, c INT NOT NULL, d BIGINT NOT NULL, e DOUBLE NOT NULL, "
        "f BOOLEAN NOT NULL, g DATE NOT NULL, h TIMESTAMP NOT NULL"
    ).columns
)


@laws
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
    """In 36 bytes, whatever the value."""
    data = FIXED.encode(value)

    assert len(data) == FIXED.size_bytes == 36
    assert FIXED.decode(data) == value


def test_fixed_reads_times_of_every_zone_as_utc() -> None:
    """A moment is a moment."""
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
    """Nothing is converted or cut."""
    with pytest.raises(SerializationError):
        FixedFormat.of([("x", type_)]).encode({"x": field})


@pytest.mark.parametrize(
    ("type_", "data", "said"),
    [
        ("INT", "000000", "3 bytes where the fixed layout has 4"),
        ("INT", "0000000000", "5 bytes where the fixed layout has 4"),
        ("INT", "", "0 bytes where the fixed layout has 4"),
        ("BOOLEAN", "02", "column 'x' is BOOLEAN and holds 2"),
        ("DATE", "7fffffff", "outside the years 1 to 9999"),
        ("TIMESTAMP", "8000000000000000", "outside the years 1 to 9999"),
    ],
)
def test_fixed_errors(type_: str, data: str, said: str) -> None:
    """They name the column or the size."""
    with pytest.raises(SerializationError, match=said):
        FixedFormat.of([("x", type_)]).decode(bytes.fromhex(data))


def test_fixed_has_no_place_for_nulls() -> None:
    """A nullable column is refused before anything is written."""
    with pytest.raises(FormatError, match=r"column 'id INT' may be null.*declare it NOT NULL"):
        FixedFormat.of(Schema.parse("id INT").columns)


# Protobuf


def _required() -> Any:
    """A message of the old syntax, with a field that it requires and another message within."""
    file = descriptor_pb2.FileDescriptorProto(name="flowcore_test.proto", package="t", syntax="proto2")
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="x", number=1, type="TYPE_INT64", label="LABEL_OPTIONAL")
    outer = file.message_type.add(name="Outer")
    outer.field.add(name="id", number=1, type="TYPE_INT64", label="LABEL_REQUIRED")
    outer.field.add(name="inner", number=2, type="TYPE_MESSAGE", type_name=".t.Inner", label="LABEL_OPTIONAL")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Outer"))


@laws
@given(st.integers(-62_135_596_800, 253_402_300_799), st.integers(0, 999_999_999))
def test_protobuf_round_trips(seconds: int, nanos: int) -> None:
    """Messages compare by their fields."""
    value = Timestamp(seconds=seconds, nanos=nanos)
    stamps = ProtobufFormat(Timestamp)

    assert stamps.decode(stamps.encode(value)) == value


def test_protobuf_takes_large_and_foreign_text() -> None:
    """A mebibyte, and letters beyond ASCII."""
    for value_format, value in (
        (ProtobufFormat(BytesValue), BytesValue(value=bytes(MIB))),
        (ProtobufFormat(StringValue), StringValue(value="zażółć")),
    ):
        assert value_format.decode(value_format.encode(value)) == value


def test_protobuf_refuses_other_values_and_bytes() -> None:
    """Another class, a wire type that is none, text that is no UTF-8, nesting without end."""
    stamps, words = ProtobufFormat(Timestamp), ProtobufFormat(StringValue)

    with pytest.raises(SerializationError, match="the value is StringValue, not Timestamp"):
        stamps.encode(StringValue(value="x"))
    for value_format, bad in (
        (stamps, b"\x0f"),
        (stamps, b"\x08"),
        (words, b"\x0a\x01\xff"),
        (words, b"\x0a\x05x"),
    ):
        with pytest.raises(SerializationError, match="bytes are no"):
            value_format.decode(bad)
    nested = b""
    for _ in range(500):
        value = b"\x32" + _varint(len(nested)) + nested
        nested = b"\x0a" + _varint(len(value)) + value
    with pytest.raises(SerializationError, match="bytes are no ListValue"):
        ProtobufFormat(ListValue).decode(nested)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))


def test_protobuf_refuses_messages_that_lack_what_they_require() -> None:
    """On both sides."""
    outer = _required()

    with pytest.raises(SerializationError, match="cannot be written"):
        ProtobufFormat(outer).encode(outer())
    with pytest.raises(SerializationError, match=r"lacks a field that it requires|are no Outer"):
        ProtobufFormat(outer).decode(b"")


def test_protobuf_identity_is_that_of_all_its_types() -> None:
    """Not of the file that it was generated from."""
    assert ProtobufFormat(_required()).fingerprint == ProtobufFormat(_required()).fingerprint
    assert ProtobufFormat(Timestamp).fingerprint != ProtobufFormat(StringValue).fingerprint


def test_protobuf_takes_message_classes_only() -> None:
    """A message, or anything else, is not its class."""
    for wrong in (dict, Timestamp(), "Timestamp"):
        with pytest.raises(FormatError, match="no generated Protobuf message class"):
            ProtobufFormat(wrong)  # type: ignore[arg-type]


# Raw


def test_raw_is_the_bytes_themselves() -> None:
    """And nothing but bytes."""
    assert RawFormat().decode(RawFormat().encode(b"\0\xff")) == b"\0\xff"
    with pytest.raises(SerializationError, match="'x' is str, not bytes"):
        RawFormat().encode("x")


# Columns, identity and registry


@pytest.mark.parametrize("kind", [JsonFormat, AvroFormat, FixedFormat], ids=lambda kind: kind.name)
def test_columns_are_checked(kind: Any) -> None:
    """Before anything is written."""
    with pytest.raises(FormatError, match=r"column 'x ARRAY<INT>.*' is of a type that the .* does not hold"):
        kind.of([("x", "ARRAY<INT>")])
    with pytest.raises(FormatError, match="was given 'x' twice"):
        kind.of([("x", "INT"), ("x", "INT")])
    with pytest.raises(FormatError, match="was given no column"):
        kind.of([])


def test_columns_have_one_spelling_of_each_type() -> None:
    """Two ways to write a type are one schema."""
    assert JsonFormat.of([("x", "long")]).fingerprint == JsonFormat.of([("x", "BIGINT")]).fingerprint


FORMATS: dict[str, Callable[[str], ValueFormat[Any]]] = {
    "json": lambda type_: JsonFormat.of([("x", type_)]),
    "avro": lambda type_: AvroFormat.of([("x", type_)]),
    "avro-confluent": lambda type_: build_format("avro-confluent", [("x", type_)], schema_id=1),
    "fixed": lambda type_: FixedFormat.of([("x", type_)]),
}


@pytest.mark.parametrize("name", FORMATS)
def test_identity_is_kept_as_json_and_reads_itself(name: str) -> None:
    """The same on another machine, and after pickling."""
    made = FORMATS[name]("INT")
    kept = json.loads(json.dumps(identity(made)))

    check_readable(FORMATS[name]("INT"), kept)
    check_readable(pickle.loads(pickle.dumps(made)), kept)  # noqa: S301 - our own
    assert kept["format"] == name


@pytest.mark.parametrize("name", FORMATS)
def test_identity_of_another_schema_is_refused(name: str) -> None:
    """Even if the bytes could be read."""
    with pytest.raises(
        FormatError, match=rf"written as '{name}' with the schema .* fields would change places"
    ):
        check_readable(FORMATS[name]("BIGINT"), identity(FORMATS[name]("INT")))


def test_identity_tells_milliseconds_from_microseconds() -> None:
    """Avro's own canonical form does not."""
    kinds = ["timestamp-micros", "timestamp-millis"]
    found = {AvroFormat({"type": "long", "logicalType": kind}).fingerprint for kind in kinds}

    assert len(found) == 2


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"format": "jsn"}, "value format 'jsn' is unknown.*did you mean 'json'"),
        ({"format": "raw", "schema": ""}, "written as 'raw' and would be read as 'json'"),
        ({"version": 2}, "written as 'json' version 2, and version 1 is what this flowcore reads"),
        ({"version": 0}, "written as 'json' version 0"),
        ({"version": "1"}, "is no identity of a value format"),
        ({"schema": None}, "is no identity of a value format"),
    ],
    ids=["unknown", "other", "newer", "older", "no-number", "no-schema"],
)
def test_identity_that_cannot_be_read_is_refused(changed: dict[str, Any], said: str) -> None:
    """Each for its own reason."""
    made = JsonFormat.of([("x", "INT")])

    with pytest.raises(FormatError, match=said):
        check_readable(made, {**identity(made), **changed})


class _Reversed:
    """A user's own format."""

    name = "reversed"
    version = 2
    fingerprint = ""

    def encode(self, value: bytes, /) -> bytes:
        return value[::-1]

    def decode(self, data: bytes, /) -> bytes:
        return data[::-1]


def test_registry_takes_formats_of_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are built by name, and say which of their versions they read."""
    monkeypatch.setattr(registry, "_FORMATS", dict(registry._FORMATS))
    register("reversed", lambda _columns: _Reversed(), reads={1, 2})
    made = build_format("reversed")

    assert "reversed" in format_names()
    assert made.encode(b"ab") == b"ba"
    check_readable(made, {**identity(made), "version": 1})
    with pytest.raises(FormatError, match="version 3, and version 1, 2 is what"):
        check_readable(made, {**identity(made), "version": 3})
    with pytest.raises(FormatError, match="there is a value format 'reversed' already"):
        register("reversed", lambda _columns: _Reversed())


@pytest.mark.parametrize(
    ("name", "columns", "options", "said"),
    [
        ("xml", None, {}, "value format 'xml' is unknown"),
        ("json", None, {}, "value format 'json' needs columns"),
        ("avro", None, {}, "value format 'avro' needs columns"),
        ("json", [("x", "INT")], {"pretty": True}, "'json' cannot be built from pretty"),
        ("avro-confluent", [("x", "INT")], {}, "cannot be built from no options.*schema_id"),
        ("protobuf", None, {"message": dict}, "no generated Protobuf message class"),
    ],
    ids=["unknown", "json-columns", "avro-columns", "option", "no-schema-id", "no-message"],
)
def test_registry_says_what_a_format_needs(
    name: str, columns: Any, options: dict[str, Any], said: str
) -> None:
    """In words of the flow's declaration."""
    with pytest.raises(FormatError, match=said):
        build_format(name, columns, **options)
