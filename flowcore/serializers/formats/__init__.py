"""Value formats: a record's value as bytes."""

from flowcore.serializers.formats.avro import AvroFormat, ConfluentAvroFormat
from flowcore.serializers.formats.fixed import FixedFormat
from flowcore.serializers.formats.json_text import JsonFormat
from flowcore.serializers.formats.protobuf import ProtobufFormat
from flowcore.serializers.formats.registry import build_format, check_readable, format_names, register
from flowcore.serializers.formats.value_format import FormatIdentity, RawFormat, ValueFormat, identity

__all__ = [
    "AvroFormat",
    "ConfluentAvroFormat",
    "FixedFormat",
    "FormatIdentity",
    "JsonFormat",
    "ProtobufFormat",
    "RawFormat",
    "ValueFormat",
    "build_format",
    "check_readable",
    "format_names",
    "identity",
    "register",
]
