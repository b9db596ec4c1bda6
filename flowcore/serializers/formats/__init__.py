"""Value formats: a record's value as bytes."""

from flowcore.serializers.formats.avro import AvroFormat, ConfluentAvroFormat, SubjectAvroFormat
from flowcore.serializers.formats.fixed import FixedFormat
from flowcore.serializers.formats.json_text import JsonFormat
from flowcore.serializers.formats.protobuf import ProtobufFormat
from flowcore.serializers.formats.registry import build_format, format_names, register
from flowcore.serializers.formats.value_format import RawFormat, ValueFormat

__all__ = [
    "AvroFormat",
    "ConfluentAvroFormat",
    "FixedFormat",
    "JsonFormat",
    "ProtobufFormat",
    "RawFormat",
    "SubjectAvroFormat",
    "ValueFormat",
    "build_format",
    "format_names",
    "register",
]
