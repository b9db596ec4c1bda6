"""Protobuf messages round-trip, and are identified by all of their types."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.struct_pb2 import ListValue
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.wrappers_pb2 import BytesValue, StringValue
from hypothesis import given
from hypothesis import strategies as st

from flowcore.errors import FormatError, SerializationError
from flowcore.serializers.formats import (
    ProtobufFormat,
)
from flowcore.serializers.formats.protobuf import message_of

MIB = 1 << 20


def _required() -> Any:
    """A proto2 message with a required field and a nested message."""
    file = descriptor_pb2.FileDescriptorProto(name="flowcore_test.proto", package="t", syntax="proto2")
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="x", number=1, type="TYPE_INT64", label="LABEL_OPTIONAL")
    outer = file.message_type.add(name="Outer")
    outer.field.add(name="id", number=1, type="TYPE_INT64", label="LABEL_REQUIRED")
    outer.field.add(name="inner", number=2, type="TYPE_MESSAGE", type_name=".t.Inner", label="LABEL_OPTIONAL")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Outer"))


@given(st.integers(-62_135_596_800, 253_402_300_799), st.integers(0, 999_999_999))
def test_protobuf_round_trips(seconds: int, nanos: int) -> None:
    """Messages compare by their fields."""
    value = Timestamp(seconds=seconds, nanos=nanos)
    stamps = ProtobufFormat(Timestamp)

    assert stamps.decode(stamps.encode(value)) == value


def test_protobuf_takes_large_and_foreign_text() -> None:
    """Text of a mebibyte and text beyond ASCII round-trip."""
    for value_format, value in (
        (ProtobufFormat(BytesValue), BytesValue(value=bytes(MIB))),
        (ProtobufFormat(StringValue), StringValue(value="zażółć")),
    ):
        assert value_format.decode(value_format.encode(value)) == value


def test_protobuf_refuses_other_values_and_bytes() -> None:
    """Other classes, invalid wire types, invalid UTF-8 and endless nesting are refused."""
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
    with pytest.raises(SerializationError, match="bytes are not a ListValue"):
        ProtobufFormat(ListValue).decode(nested)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))


def test_protobuf_refuses_messages_without_required_fields() -> None:
    """They are refused for reading and for writing."""
    outer = _required()

    with pytest.raises(SerializationError, match="cannot be written"):
        ProtobufFormat(outer).encode(outer())
    with pytest.raises(SerializationError, match=r"lacks a required field|are not a Outer"):
        ProtobufFormat(outer).decode(b"")


def test_protobuf_takes_message_classes_only() -> None:
    """A message or another object is refused."""
    for wrong in (dict, Timestamp(), "Timestamp"):
        with pytest.raises(FormatError, match="is not a generated Protobuf message class"):
            ProtobufFormat(wrong)  # type: ignore[arg-type]


def test_map_keys_of_a_row_are_converted_as_its_values_are() -> None:
    """Spark has a number of 64 bits without sign as a decimal."""
    file = descriptor_pb2.FileDescriptorProto(name="flowcore_map.proto", package="m", syntax="proto3")
    outer = file.message_type.add(name="Outer")
    entry = outer.nested_type.add(name="CountsEntry", options={"map_entry": True})
    for number, name in enumerate(("key", "value"), 1):
        entry.field.add(name=name, number=number, type="TYPE_UINT64", label="LABEL_OPTIONAL")
    outer.field.add(
        name="counts",
        number=1,
        type="TYPE_MESSAGE",
        type_name=".m.Outer.CountsEntry",
        label="LABEL_REPEATED",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("m.Outer"))

    message: Any = message_of(kind, {"counts": [(Decimal(2**64 - 1), Decimal(7))]})

    assert dict(message.counts) == {2**64 - 1: 7}
