"""Protobuf messages as rows: of which type is a field in Spark, and how does a message become a mapping?

A field that may be absent (``optional``, a message, one of a ``oneof``) is null where it is; others
have their default. ``google.protobuf.Timestamp`` is a TIMESTAMP, an enum the text of its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from flowcore.errors import FormatError, SerializationError

__all__ = ["message_of", "protobuf_types", "row_of_message"]

_TYPES = {
    FieldDescriptor.CPPTYPE_INT32: "INT", FieldDescriptor.CPPTYPE_INT64: "BIGINT",
    FieldDescriptor.CPPTYPE_UINT32: "BIGINT", FieldDescriptor.CPPTYPE_UINT64: "DECIMAL(20, 0)",
    FieldDescriptor.CPPTYPE_FLOAT: "FLOAT", FieldDescriptor.CPPTYPE_DOUBLE: "DOUBLE",
    FieldDescriptor.CPPTYPE_BOOL: "BOOLEAN", FieldDescriptor.CPPTYPE_ENUM: "STRING",
}  # fmt: skip
_TIMESTAMP = "google.protobuf.Timestamp"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NANOS_PER_MICRO = 1000


def protobuf_types(message: type[Message]) -> dict[str, str]:
    """The Spark SQL type of each field, by name.

    Raises:
        FormatError: A message holds itself, which no row can.
    """
    return {field.name: _sql_type(field, (message.DESCRIPTOR,)) for field in message.DESCRIPTOR.fields}


def row_of_message(message: Message, names: Iterable[str]) -> dict[str, Any]:
    """Some fields of a message."""
    fields = message.DESCRIPTOR.fields_by_name
    return {name: _read(message, fields[name]) for name in names}


def message_of(kind: type[Message], row: Mapping[str, Any]) -> Message:
    """A message of these fields; null leaves a field out.

    Raises:
        SerializationError: A field does not take its value, or has no way to be absent.
    """
    fields = kind.DESCRIPTOR.fields_by_name
    message = kind()
    for name, value in row.items():
        _write(message, fields[name], value)
    return message


def _sql_type(field: Any, around: tuple[Any, ...]) -> str:
    if _is_map(field):
        key, value = field.message_type.fields
        return f"MAP<{_single_type(key, around)}, {_single_type(value, around)}>"
    single = _single_type(field, around)
    return f"ARRAY<{single}>" if _is_repeated(field) else single


def _single_type(field: Any, around: tuple[Any, ...]) -> str:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return "BINARY" if field.type == FieldDescriptor.TYPE_BYTES else "STRING"
    if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        return _TYPES[field.cpp_type]
    inner = field.message_type
    if inner.full_name == _TIMESTAMP:
        return "TIMESTAMP"
    if inner in around:
        msg = (
            f"the Protobuf message {inner.full_name} holds itself in {field.full_name}: no row is that deep; "
            "send it flat"
        )
        raise FormatError(msg)
    fields = ", ".join(f"{part.name}: {_sql_type(part, (*around, inner))}" for part in inner.fields)
    return f"STRUCT<{fields}>"


def _read(message: Message, field: Any) -> Any:
    if not _is_repeated(field) and field.has_presence and not message.HasField(field.name):
        return None
    found = getattr(message, field.name)
    if _is_map(field):
        value = field.message_type.fields_by_name["value"]
        return [(key, _plain(value, each)) for key, each in sorted(found.items())]
    return [_plain(field, each) for each in found] if _is_repeated(field) else _plain(field, found)


def _plain(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else str(value)
    if field.message_type is None:
        return value
    if field.message_type.full_name == _TIMESTAMP:
        return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // _NANOS_PER_MICRO)
    return {part.name: _read(value, part) for part in field.message_type.fields}


def _write(message: Message, field: Any, value: Any) -> None:
    if value is None:
        if not field.has_presence and not _is_repeated(field):
            msg = (
                f"field {field.name!r} is null, and Protobuf would read it as {field.default_value!r}: "
                "declare it optional in the .proto file, or give it a value"
            )
            raise SerializationError(msg)
        return
    try:
        if _is_map(field):
            for key, each in value.items() if isinstance(value, Mapping) else value:
                _write_entry(getattr(message, field.name), field, key, each)
        elif _is_repeated(field):
            for each in value:
                _append(getattr(message, field.name), field, each)
        elif field.message_type is not None:
            part = getattr(message, field.name)
            part.SetInParent()
            _fill(part, value)
        else:
            setattr(message, field.name, _scalar(field, value))
    except (TypeError, ValueError, KeyError) as error:
        msg = f"field {field.name!r} does not take {value!r:.40} ({error}): convert it"
        raise SerializationError(msg) from error


def _append(repeated: Any, field: Any, value: Any) -> None:
    if field.message_type is None:
        repeated.append(_scalar(field, value))
    else:
        _fill(repeated.add(), value)


def _write_entry(entries: Any, field: Any, key: Any, value: Any) -> None:
    kind = field.message_type.fields_by_name["value"]
    if kind.message_type is None:
        entries[key] = _scalar(kind, value)
    else:
        _fill(entries[key], value)


def _fill(part: Message, value: Any) -> None:
    if part.DESCRIPTOR.full_name == _TIMESTAMP:
        micros = (value - _EPOCH) // timedelta(microseconds=1)
        seconds, rest = divmod(micros, 1_000_000)
        part.MergeFrom(type(part)(seconds=seconds, nanos=rest * _NANOS_PER_MICRO))
        return
    for name, each in value.items():
        _write(part, part.DESCRIPTOR.fields_by_name[name], each)


def _scalar(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_name.get(value)
        return known.number if known else int(value)
    return int(value) if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else value


def _is_repeated(field: Any) -> bool:
    repeated = getattr(field, "is_repeated", None)  # Protobuf 5 has `label` instead, which 6 warns of
    return bool(field.label == field.LABEL_REPEATED if repeated is None else repeated)


def _is_map(field: Any) -> bool:
    kind = field.message_type
    return bool(_is_repeated(field) and kind is not None and kind.GetOptions().map_entry)
