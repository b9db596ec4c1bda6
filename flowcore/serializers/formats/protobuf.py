"""Protobuf: a value as one message of a class that the user generated.

Protobuf passes over fields that it does not know and gives missing ones their defaults, so bytes of another
message, or a message that was cut between two fields, can read as a value. That is Protobuf's way.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto
from google.protobuf.message import DecodeError, EncodeError, Message

from flowcore.errors import FormatError, SerializationError

__all__ = ["ProtobufFormat"]

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class ProtobufFormat(Generic[M]):
    """Messages to bytes and back.

    Args:
        message: The generated class.

    Raises:
        FormatError: It is not a message class.
    """

    message: type[M]

    name = "protobuf"
    version = 1

    def __post_init__(self) -> None:
        given: object = self.message
        if not (isinstance(given, type) and issubclass(given, Message)):
            msg = f"{self.message!r} is no generated Protobuf message class: pass one, such as bids_pb2.Bid"
            raise FormatError(msg)

    @property
    def fingerprint(self) -> str:
        """Of the message type and all types it is made of."""
        digest = hashlib.sha256()
        for name, definition in sorted(_definitions(self.message.DESCRIPTOR).items()):
            digest.update(f"{name}:{len(definition)}:".encode() + definition)
        return digest.hexdigest()[:32]

    def encode(self, value: object, /) -> bytes:
        """One message; maps are written in the order of their keys.

        Raises:
            SerializationError: It is not a message of this class, or lacks a required field.
        """
        if not isinstance(value, self.message):
            msg = f"the value is {type(value).__name__}, not {self.message.__name__}: pass such a message"
            raise SerializationError(msg)
        try:
            return bytes(value.SerializeToString(deterministic=True))
        except EncodeError as error:
            msg = f"the message cannot be written ({error}): give it what it requires"
            raise SerializationError(msg) from error

    def decode(self, data: bytes, /) -> M:
        """The message of which these are all the bytes.

        Raises:
            SerializationError: They are no such message.
        """
        try:
            message = self.message.FromString(data)
        except (DecodeError, RecursionError, UnicodeDecodeError) as error:
            msg = (
                f"{len(data)} bytes are no {self.message.__name__} ({error}): they hold another, or were cut"
            )
            raise SerializationError(msg) from error
        if not message.IsInitialized():
            msg = f"a {self.message.__name__} lacks a field that it requires: it was cut, or is another"
            raise SerializationError(msg)
        return message


def _definitions(root: Any) -> dict[str, bytes]:
    """Every type that a message type is made of, by name; the file it was generated from does not matter."""
    found: dict[str, bytes] = {}
    todo = [root]
    while todo:
        descriptor = todo.pop()
        if descriptor.full_name in found:
            continue
        is_enum = hasattr(descriptor, "values_by_number")
        proto: Any = EnumDescriptorProto() if is_enum else DescriptorProto()
        descriptor.CopyToProto(proto)
        found[descriptor.full_name] = proto.SerializeToString(deterministic=True)
        for field in () if is_enum else descriptor.fields:
            todo += [part for part in (field.message_type, field.enum_type) if part is not None]
    return found
