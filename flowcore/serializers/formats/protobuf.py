"""Protobuf: a value as one message of a generated class, and messages as rows.

Protobuf ignores unknown fields and gives missing fields their defaults. So bytes of another message, or of
a message that was cut between two fields, can be read as a value.

As a row, a field that may be absent (``optional``, a message, one of a ``oneof``) is null if it is; others
have their default. ``google.protobuf.Timestamp`` is a TIMESTAMP, an enum the text of its name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message

from flowcore.errors import FormatError, SerializationError

__all__ = ["ProtobufFormat", "message_of", "protobuf_types", "row_of_message"]

M = TypeVar("M", bound=Message)

_TYPES = {
    FieldDescriptor.CPPTYPE_INT32: "INT", FieldDescriptor.CPPTYPE_INT64: "BIGINT",
    FieldDescriptor.CPPTYPE_UINT32: "BIGINT", FieldDescriptor.CPPTYPE_UINT64: "DECIMAL(20, 0)",
    FieldDescriptor.CPPTYPE_FLOAT: "FLOAT", FieldDescriptor.CPPTYPE_DOUBLE: "DOUBLE",
    FieldDescriptor.CPPTYPE_BOOL: "BOOLEAN", FieldDescriptor.CPPTYPE_ENUM: "STRING",
}  # fmt: skip
_TIMESTAMP = "google.protobuf.Timestamp"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NANOS_PER_MICRO = 1000


@dataclass(frozen=True, slots=True)
class ProtobufFormat(Generic[M]):
    """Messages to bytes and back.

    Raises:
        FormatError: ``message`` is not a message class.
    """

    message: type[M]

    name = "protobuf"

    def __post_init__(self) -> None:
        given: object = self.message
        if not (isinstance(given, type) and issubclass(given, Message)):
            msg = (
                f"{self.message!r} is not a generated Protobuf message class: pass one, such as bids_pb2.Bid"
            )
            raise FormatError(msg)

    def encode(self, value: object, /) -> bytes:
        """One message; maps are written in the order of their keys."""
        if not isinstance(value, self.message):
            msg = f"the value is {type(value).__name__}, not {self.message.__name__}: pass such a message"
            raise SerializationError(msg)
        try:
            return bytes(value.SerializeToString(deterministic=True))
        except EncodeError as error:
            msg = f"the message cannot be written ({error}): set its required fields"
            raise SerializationError(msg) from error

    def decode(self, data: bytes, /) -> M:
        try:
            message = self.message.FromString(data)
        except (DecodeError, RecursionError, UnicodeDecodeError) as error:
            msg = f"{len(data)} bytes are not a {self.message.__name__} ({error}): another message, or cut"
            raise SerializationError(msg) from error
        if not message.IsInitialized():
            msg = f"a {self.message.__name__} lacks a required field: it was cut, or is another message"
            raise SerializationError(msg)
        return message


def protobuf_types(message: type[Message]) -> dict[str, str]:
    """The Spark SQL type of each field, by name.

    Raises:
        FormatError: A message contains itself, which a row cannot.
    """
    return {field.name: _sql_type(field, (message.DESCRIPTOR,)) for field in message.DESCRIPTOR.fields}


def row_of_message(message: Message, names: Iterable[str]) -> dict[str, Any]:
    """Some fields of a message."""
    fields = message.DESCRIPTOR.fields_by_name
    return {name: _read(message, fields[name]) for name in names}


def message_of(kind: type[Message], row: Mapping[str, Any]) -> Message:
    """A message of these fields; null leaves a field out.

    Raises:
        SerializationError: A field does not take its value, or cannot be absent, or two of a oneof are given.
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
            f"the Protobuf message {inner.full_name} contains itself in {field.full_name}: a row cannot be "
            "nested without end; send it flat"
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
        if _is_repeated(field):
            msg = f"field {field.name!r} is null, and Protobuf would read it as empty: make it empty"
            raise SerializationError(msg)
        if not field.has_presence:
            msg = (
                f"field {field.name!r} is null, and Protobuf would read it as {field.default_value!r}: "
                "declare it optional in the .proto file, or give it a value"
            )
            raise SerializationError(msg)
        return
    group = field.containing_oneof
    if group is not None and (other := message.WhichOneof(group.name)) is not None:
        msg = (
            f"fields {other!r} and {field.name!r} are not null, and of the oneof {group.name!r} Protobuf "
            "keeps one: make one of them null"
        )
        raise SerializationError(msg)
    try:
        _set(message, field, value)
    except (TypeError, ValueError, KeyError) as error:
        msg = f"field {field.name!r} does not take {value!r:.40} ({error}): convert it"
        raise SerializationError(msg) from error


def _set(message: Message, field: Any, value: Any) -> None:
    part = getattr(message, field.name)
    if _is_map(field):
        key_kind, kind = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        for name, each in value.items() if isinstance(value, Mapping) else value:
            key = _scalar(key_kind, name)
            if kind.message_type is None:
                part[key] = _scalar(kind, each)
            else:
                _fill(part[key], each)
    elif _is_repeated(field):
        for each in value:
            if field.message_type is None:
                part.append(_scalar(field, each))
            else:
                _fill(part.add(), each)
    elif field.message_type is not None:
        part.SetInParent()
        _fill(part, value)
    else:
        setattr(message, field.name, _scalar(field, value))


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
    repeated = getattr(field, "is_repeated", None)  # Protobuf 5 has `label` instead; 6 deprecates it
    return bool(field.label == field.LABEL_REPEATED if repeated is None else repeated)


def _is_map(field: Any) -> bool:
    kind = field.message_type
    return bool(_is_repeated(field) and kind is not None and kind.GetOptions().map_entry)
