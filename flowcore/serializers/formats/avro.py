"""Avro: a value as one Avro datum, bare or with a schema registry's header.

The header is that of Confluent's registry: a zero byte, then the schema id in 4 bytes, big-endian. Schemas
of ids are passed as options: nothing here calls a registry (`flowcore.kafka.topic_schemas` does).
"""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Self

import fastavro
from fastavro.types import Schema as AvroSchema
from fastavro.validation import validate
from fastavro.write import LOGICAL_WRITERS

from flowcore.errors import FormatError, SerializationError
from flowcore.serializers.formats.avro_schemas import avro_schema, check_bounded, plain_schema
from flowcore.serializers.formats.columns import ColumnDefinitions

__all__ = ["AvroFormat", "ConfluentAvroFormat", "SubjectAvroFormat", "parse_avro"]

_MAGIC = 0
_HEADER_BYTES = 5
_MAX_ID = 2**31 - 1
_MOST_TEXT = 1_000_000
"""Characters of a schema."""
_SHOWN = 200
"""Characters of an error of fastavro, which quotes names and types of any length."""


def parse_avro(schema: AvroSchema | str) -> AvroSchema:
    """An Avro schema as fastavro parses it.

    Raises:
        FormatError: The text is not an Avro schema, is too long, or does not bound the size of its values.
    """
    if isinstance(schema, str) and len(schema) > _MOST_TEXT:
        msg = (
            f"the Avro schema {schema[:80]!r} has {len(schema):,} characters, more than {_MOST_TEXT:,}: it "
            "would take minutes to read; leave out what no value needs"
        )
        raise FormatError(msg)
    try:
        parsed = fastavro.parse_schema(json.loads(schema) if isinstance(schema, str) else schema)
        check_bounded(parsed)
    except FormatError:
        raise
    except Exception as error:  # fastavro raises exceptions of many types
        msg = (
            f"the Avro schema {str(schema)[:80]!r} cannot be used ({str(error)[:_SHOWN]}): no value fits it; "
            "correct it"
        )
        raise FormatError(msg) from error
    return parsed


@dataclass(frozen=True, slots=True)
class AvroFormat:
    """Dictionaries (or other values of the schema) to bare Avro and back.

    Args:
        schema: An Avro schema, as JSON text or parsed JSON; `avro_schemas.avro_schema` derives one.

    >>> AvroFormat(avro_schema([("id", "BIGINT")])).encode({"id": 1}).hex(" ")
    '00 02'
    """

    schema: AvroSchema | str

    name = "avro"

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", parse_avro(self.schema))

    @classmethod
    def of(cls, columns: ColumnDefinitions) -> Self:
        """A format of these scalar columns.

        Raises:
            FormatError: Avro does not have the type, or allow the name, of a column.
        """
        return cls(avro_schema(columns))

    @property
    def schema_json(self) -> str:
        """The schema as the argument of Spark's ``to_avro`` and ``from_avro``."""
        return json.dumps(plain_schema(self.schema))

    def encode(self, value: object, /) -> bytes:
        return _write(self.schema, value)

    def decode(self, data: bytes, /) -> Any:
        return _read(self.schema, None, data)


@dataclass(frozen=True, slots=True)
class ConfluentAvroFormat:
    """As `AvroFormat`, after a schema registry's header.

    Args:
        schema: The schema of written values; all values are read as it.
        schema_id: Id of the schema in the registry; None if values are only read.
        writers: Schemas of other writers by id; their values are read as ``schema``.
        refused: Ids that the registry does not have for these values. Any other unknown id ends a batch, so
            that the registry is asked for it. None: each unknown id is bad.
    """

    schema: AvroSchema | str
    schema_id: int | None
    writers: Mapping[int, AvroSchema | str] = field(default_factory=dict)
    refused: frozenset[int] | None = None

    name = "avro-confluent"

    def __post_init__(self) -> None:
        own = {} if self.schema_id is None else {self.schema_id: self.schema}
        for number in (*own, *self.writers):
            if not isinstance(number, int) or not 0 <= number <= _MAX_ID:
                msg = f"schema_id={number!r} is not an id of a schema registry; pass 0 to {_MAX_ID}"
                raise FormatError(msg)
        writers = {number: parse_avro(schema) for number, schema in {**self.writers, **own}.items()}
        object.__setattr__(self, "schema", parse_avro(self.schema))
        object.__setattr__(self, "writers", writers)

    def encode(self, value: object, /) -> bytes:
        """Header and datum."""
        if self.schema_id is None:
            msg = "the schema has no id, so its values can only be read: pass schema_id"
            raise SerializationError(msg)
        return bytes((_MAGIC,)) + self.schema_id.to_bytes(4, "big") + _write(self.schema, value)

    def decode(self, data: bytes, /) -> Any:
        """The datum after the header."""
        if len(data) < _HEADER_BYTES or data[0] != _MAGIC:
            msg = (
                f"{len(data)} bytes do not begin with a zero byte and a schema id: they were written "
                "without a schema registry; read them with the format 'avro'"
            )
            raise SerializationError(msg)
        number = int.from_bytes(data[1:_HEADER_BYTES], "big")
        writer = self.writers.get(number)
        if writer is None:
            known = ", ".join(map(str, sorted(self.writers)))
            msg = (
                f"schema {number} is not known (known: {known}): its bytes cannot be read; add it to writers"
            )
            raise SerializationError(msg)
        return _read(writer, self.schema, data[_HEADER_BYTES:])


@dataclass(frozen=True, slots=True)
class SubjectAvroFormat:
    """As `ConfluentAvroFormat`, with ids that a run asks the schema registry for when it starts.

    Args:
        schema: The schema of written values, or that as which all values are read. None: the newest version
            of the subject.
        subject: The subject; None for that of the topic's values.
    """

    schema: AvroSchema | str | None = None
    subject: str | None = None

    name = "avro-confluent"

    def __post_init__(self) -> None:
        if self.subject is not None and (not isinstance(self.subject, str) or not self.subject):
            msg = (
                f"subject={self.subject!r} names no subject of a schema registry; pass for instance "
                "'bids-value'"
            )
            raise FormatError(msg)
        if self.schema is not None:
            object.__setattr__(self, "schema", parse_avro(self.schema))

    def encode(self, _value: object, /) -> bytes:
        """Refuse: the id is not known."""
        raise _unresolved()

    def decode(self, _data: bytes, /) -> Any:
        """Refuse: the schemas of ids are not known."""
        raise _unresolved()


def _unresolved() -> SerializationError:
    return SerializationError(
        "the format has no schema_id: only a run asks the schema registry for it; pass schema_id, and "
        "writers to read other versions"
    )


def _shortest_decimal(
    number: object, schema: Any, encode: Callable[..., Any] = LOGICAL_WRITERS["bytes-decimal"]
) -> Any:
    """A decimal in as few bytes as Java writes: fastavro writes -128 in two, which Spark refuses."""
    data = encode(number, schema)
    has_needless_sign = isinstance(number, Decimal) and data[0] == 0xFF and data[1:2] >= b"\x80"  # noqa: PLR2004
    return data[1:] if has_needless_sign else data


LOGICAL_WRITERS["bytes-decimal"] = _shortest_decimal


def _write(schema: AvroSchema, value: object) -> bytes:
    out = io.BytesIO()
    if isinstance(value, Mapping):
        value = dict.fromkeys(_nullable(schema)) | dict(value)
    try:
        validate(value, schema, strict=True)  # the writer alone truncates 1.5 to 1
        fastavro.schemaless_writer(out, schema, value, strict=True)
    except Exception as error:
        msg = f"the value does not fit its Avro schema ({_short(error)}): convert it"
        raise SerializationError(msg) from error
    return out.getvalue()


def _read(writer: AvroSchema, reader: AvroSchema | None, data: bytes) -> Any:
    source = io.BytesIO(data)
    try:
        value = fastavro.schemaless_reader(source, writer, reader)
    except Exception as error:
        what = f"{len(data)} bytes are not Avro of this schema ({_short(error)})"
        msg = f"{what}: they have another schema, or were cut"
        raise SerializationError(msg) from error
    if source.tell() != len(data):
        msg = f"{len(data) - source.tell()} bytes are left over after an Avro value: they have another schema"
        raise SerializationError(msg)
    return value


def _nullable(schema: AvroSchema) -> list[str]:
    """The fields of a record that may be missing."""
    if not isinstance(schema, Mapping) or schema["type"] != "record":
        return []
    return [field["name"] for field in schema["fields"] if "null" in field["type"]]


def _short(error: Exception) -> str:
    return f"{type(error).__name__} {' '.join(str(error).split())}"[:160].strip()
