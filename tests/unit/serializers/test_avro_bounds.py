"""A hostile Avro schema is refused in seconds: long, deep, or a short one that stands for a huge type."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from flowcore.errors import FormatError
from flowcore.serializers.formats.avro import parse_avro
from flowcore.serializers.formats.avro_evolution import find_misreading
from flowcore.serializers.formats.avro_schemas import avro_columns


def _record(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": each, "type": kind} for each, kind in fields.items()],
    }


def _doubling(levels: int) -> dict[str, Any]:
    """Each record has the one before it twice."""
    found = _record("r0", a="int")
    for level in range(1, levels):
        found = _record(f"r{level}", a=found, b=f"r{level - 1}")
    return found


def _nested(levels: int) -> str:
    return '{"type":"array","items":' * levels + '"int"' + "}" * levels


def _chain(levels: int) -> dict[str, Any]:
    """Each record has the one before it, by its name: the text is not deep."""
    records = {f"f{level}": _record(f"r{level}", x=f"r{level - 1}") for level in range(1, levels)}
    return _record("all", f0=_record("r0", x="int"), **records)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (_nested(65), "more than 64 levels"),
        (_nested(450), "more than 64 levels"),
        (_nested(10_000), "cannot be used"),
        (_chain(1_000), "more than 64 levels"),
        (json.dumps(_record("x" * 1_000_000)), "characters, more than 1,000,000"),
        (json.dumps(_record("r", a="x" * 900_000)), "cannot be used"),
    ],
    ids=["deep", "deeper", "deepest", "chain", "long", "type"],
)
def test_schema_that_cannot_be_followed_is_refused(schema: Any, message: str) -> None:
    """The error is short, too."""
    with pytest.raises(FormatError, match=message) as refused:
        parse_avro(schema)

    assert len(str(refused.value)) < 1_000


def test_schema_may_be_nested_as_deep_as_a_type_can_be_read() -> None:
    """The limit is far above what people write."""
    schema = parse_avro(_record("r", a=json.loads(_nested(63))))

    assert avro_columns(schema)["a"].type.count("ARRAY<") == 63


def test_short_schema_of_a_huge_type_is_refused() -> None:
    """Written out, its type has 2 to the power of 40 parts."""
    schema = parse_avro(_doubling(40))

    with pytest.raises(FormatError, match="written out, has more than 100,000 characters"):
        avro_columns(schema)


def test_short_schemas_of_huge_types_are_compared_once_by_name() -> None:
    """Both that which can be read and that which cannot."""
    began_s = time.monotonic()
    schema, other = parse_avro(_doubling(40)), parse_avro(_doubling(40) | {"name": "other"})
    changed = parse_avro(json.loads(json.dumps(_doubling(40)).replace('"int"', '"string"')))

    assert find_misreading(schema, other) is None
    assert "written as string and read as int" in (find_misreading(changed, schema) or "")
    assert time.monotonic() - began_s < 10


def test_many_symbols_are_compared_in_a_second() -> None:
    """Each is looked up once."""
    schema = parse_avro({"type": "enum", "name": "e", "symbols": [f"s{n}" for n in range(50_000)]})
    began_s = time.monotonic()

    assert find_misreading(schema, schema) is None
    assert time.monotonic() - began_s < 5


def test_alias_that_is_no_text_is_none() -> None:
    """It is the registry's, and fastavro takes it."""
    schema = parse_avro(
        {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int", "aliases": [[]]}]}
    )

    assert find_misreading(schema, schema) is None


def test_name_of_a_nested_field_cannot_write_a_type() -> None:
    """A type is text, of which the name is a part."""
    schema = parse_avro(_record("r", a=_record("q", **{"b: INT>, c STRUCT<d": "int"})))

    with pytest.raises(FormatError, match="use letters, digits and _"):
        avro_columns(schema)
