"""Evolution of Avro schemas, compared with what fastavro's reader does with a value."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowcore.serializers.formats.avro import parse_avro
from flowcore.serializers.formats.avro_evolution import find_misreading

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}


def _record(*fields: tuple[Any, ...], name: str = "r") -> dict[str, Any]:
    found = []
    for field_name, kind, *default in fields:
        found.append({"name": field_name, "type": kind, **({"default": default[0]} if default else {})})
    return {"type": "record", "name": name, "fields": found}


def _enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "e", "symbols": list(symbols), **more}


def _fixed(size: int, name: str = "f") -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


def _parsed(schema: Any) -> Any:
    return parse_avro(json.dumps(schema))


def _problem(writer: Any, reader: Any) -> str | None:
    return find_misreading(_parsed(writer), _parsed(reader))


def _read_again(writer: Any, reader: Any, value: Any) -> Any:
    """The value after fastavro has written it, and read it as the other schema."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _parsed(writer), value)
    return fastavro.schemaless_reader(io.BytesIO(out.getvalue()), _parsed(writer), _parsed(reader))


A = ("a", "long")
READABLE: dict[str, tuple[Any, Any, Any, Any]] = {
    "same": (_record(A), _record(A), {"a": 1}, {"a": 1}),
    "field added": (_record(A), _record(A, ("b", "string", "-")), {"a": 1}, {"a": 1, "b": "-"}),
    "null added": (_record(A), _record(A, ("b", ["null", "int"], None)), {"a": 1}, {"a": 1, "b": None}),
    "field removed": (_record(A, ("b", "int")), _record(A), {"a": 1, "b": 2}, {"a": 1}),
    "order": (_record(A, ("b", "int")), _record(("b", "int"), A), {"a": 1, "b": 2}, {"a": 1, "b": 2}),
    "int to long": ("int", "long", 1, 1),
    "float to double": ("float", "double", 0.5, 0.5),
    "text to bytes": ("string", "bytes", "x", b"x"),
    "made nullable": ("long", ["null", "long"], 1, 1),
    "nullable, other order": (["null", "long"], ["long", "null"], None, None),
    "items": ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, [1], [1]),
    "values": ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, {"k": 1}, {"k": 1}),
    "symbol added": (_enum("A"), _enum("A", "B"), "A", "A"),
    "symbol with a default": (_enum("A", "B"), _enum("A", default="A"), "B", "A"),
    "logical type": (MICROS, MICROS, 0, None),
    "a type used twice": (
        _record(("x", _record(A, name="n")), ("y", "n")),
        _record(("x", _record(A, ("b", "int", 0), name="n")), ("y", "n")),
        {"x": {"a": 1}, "y": {"a": 2}},
        {"x": {"a": 1, "b": 0}, "y": {"a": 2, "b": 0}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", READABLE.values(), ids=READABLE)
def test_evolution_accepts_what_can_be_read(case: tuple[Any, Any, Any, Any]) -> None:
    """The library fastavro reads it, too."""
    writer, reader, value, expected = case

    assert _problem(writer, reader) is None
    found = _read_again(writer, reader, value)
    assert expected is None or found == expected


MISREAD: dict[str, tuple[Any, Any, Any, str]] = {
    "field without a default": (_record(A), _record(A, ("b", "int")), {"a": 1}, "'b' is not written"),
    "other type": (_record(A), _record(("a", "string")), {"a": 1}, "'a' is written as long and read as str"),
    "long to int": ("long", "int", 1, "written as long and read as int"),
    "null": (["null", "long"], "long", None, "written as null and read as long"),
    "one type of a union": ("string", ["null", "long"], "x", "read as one of null, long"),
    "items": (
        {"type": "array", "items": "long"}, {"type": "array", "items": "int"}, [1], "an item of the value",
    ),
    "values": (
        {"type": "map", "values": "long"}, {"type": "map", "values": "int"}, {"k": 1}, "a value of the value",
    ),
    "symbol removed": (_enum("A", "B"), _enum("A"), "B", "the symbol 'B'"),
    "size": (_fixed(1), _fixed(2), b"x", "fixed f"),
    "record as text": (_record(A), "string", {"a": 1}, "written as record r and read as string"),
    "nested": (
        _record(("x", _record(A, name="n"))), _record(("x", _record(("a", "int"), name="n"))),
        {"x": {"a": 1}},
        "field 'a' of field 'x'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MISREAD.values(), ids=MISREAD)
def test_evolution_names_what_cannot_be_read(case: tuple[Any, Any, Any, str]) -> None:
    """The library fastavro fails with it, too."""
    writer, reader, value, message = case

    assert message in str(_problem(writer, reader))
    with pytest.raises(Exception):  # noqa: B017, PT011 - fastavro raises exceptions of many types
        _read_again(writer, reader, value)


@pytest.mark.parametrize(
    ("writer", "reader"),
    [(MILLIS, MICROS), (DECIMAL, {**DECIMAL, "scale": 3}), (_fixed(1), _fixed(1, "g"))],
    ids=["milliseconds", "scale", "name"],
)
def test_evolution_refuses_wrong_values_that_avro_would_give(writer: Any, reader: Any) -> None:
    """Milliseconds read as microseconds are another time; Java compares the names of fixed types."""
    assert _problem(writer, reader) is not None
    assert _problem(writer, writer) is None


def test_evolution_does_not_compare_the_name_of_a_record() -> None:
    """Java's reader, which Spark uses, does not either; fastavro does."""
    assert _problem(_record(A), _record(A, name="s")) is None


_SIMPLE = st.sampled_from(["int", "long", "float", "double", "string", "bytes", "boolean"])
_TYPES = st.one_of(_SIMPLE, _SIMPLE.map(lambda kind: ["null", kind]))
_VALUES = {
    "int": 1, "long": 2, "float": 0.5, "double": 0.25, "string": "x", "bytes": b"x", "boolean": True,
}  # fmt: skip


@given(writer=_TYPES, reader=_TYPES)
def test_evolution_agrees_with_fastavro(writer: Any, reader: Any) -> None:
    """A type can be read as another if fastavro reads each of its values."""
    values = [_VALUES[writer]] if isinstance(writer, str) else [None, _VALUES[writer[1]]]
    schemas = _record(("a", writer)), _record(("a", reader))

    def reads(value: Any) -> bool:
        try:
            _read_again(*schemas, {"a": value})
        except Exception:  # noqa: BLE001 - as above
            return False
        return True

    assert (_problem(*schemas) is None) == all(reads(value) for value in values)
