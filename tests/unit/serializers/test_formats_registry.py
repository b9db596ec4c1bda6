"""Formats are built by name and have an identity that is stored and compared."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from flowcore.errors import FormatError
from flowcore.serializers.formats import (
    AvroFormat,
    FixedFormat,
    JsonFormat,
    ValueFormat,
    build_format,
    check_readable,
    format_names,
    identity,
    register,
    registry,
)

FORMATS: dict[str, Callable[[str], ValueFormat[Any]]] = {
    "json": lambda type_: JsonFormat.of([("x", type_)]),
    "avro": lambda type_: AvroFormat.of([("x", type_)]),
    "avro-confluent": lambda type_: build_format("avro-confluent", [("x", type_)], schema_id=1),
    "fixed": lambda type_: FixedFormat.of([("x", type_)]),
}


@pytest.mark.parametrize("name", FORMATS)
def test_identity_round_trips_through_json(name: str) -> None:
    """It is the same on another machine and after pickling."""
    made = FORMATS[name]("INT")
    kept = json.loads(json.dumps(identity(made)))

    check_readable(FORMATS[name]("INT"), kept)
    check_readable(pickle.loads(pickle.dumps(made)), kept)  # noqa: S301 - our own
    assert kept["format"] == name


@pytest.mark.parametrize("name", FORMATS)
def test_identity_of_another_schema_is_refused(name: str) -> None:
    """It is refused even if the bytes could be read."""
    with pytest.raises(
        FormatError, match=rf"written as '{name}' with the schema .* fields would change places"
    ):
        check_readable(FORMATS[name]("BIGINT"), identity(FORMATS[name]("INT")))


def test_identity_distinguishes_milliseconds_and_microseconds() -> None:
    """Avro's canonical form does not."""
    kinds = ["timestamp-micros", "timestamp-millis"]
    found = {AvroFormat({"type": "long", "logicalType": kind}).fingerprint for kind in kinds}

    assert len(found) == 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"format": "jsn"}, "value format 'jsn' is unknown.*did you mean 'json'"),
        ({"format": "raw", "schema": ""}, "written as 'raw' and would be read as 'json'"),
        ({"version": 2}, "written as 'json' version 2, and this flowcore reads version 1"),
        ({"version": 0}, "written as 'json' version 0"),
        ({"version": "1"}, "is not an identity of a value format"),
        ({"schema": None}, "is not an identity of a value format"),
    ],
    ids=["unknown", "other", "newer", "older", "no-number", "no-schema"],
)
def test_identity_that_cannot_be_read_is_refused(changed: dict[str, Any], message: str) -> None:
    """Each case has its own reason."""
    made = JsonFormat.of([("x", "INT")])

    with pytest.raises(FormatError, match=message):
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
    """They are built by name and declare which versions they read."""
    monkeypatch.setattr(registry, "_FORMATS", dict(registry._FORMATS))
    register("reversed", lambda _columns: _Reversed(), reads={1, 2})
    made = build_format("reversed")

    assert "reversed" in format_names()
    assert made.encode(b"ab") == b"ba"
    check_readable(made, {**identity(made), "version": 1})
    with pytest.raises(FormatError, match="version 3, and this flowcore reads version 1, 2"):
        check_readable(made, {**identity(made), "version": 3})
    with pytest.raises(FormatError, match="a value format 'reversed' exists already"):
        register("reversed", lambda _columns: _Reversed())


@pytest.mark.parametrize(
    ("name", "columns", "options", "message"),
    [
        ("xml", None, {}, "value format 'xml' is unknown"),
        ("json", None, {}, "value format 'json' needs columns"),
        ("avro", None, {}, "value format 'avro' needs columns"),
        ("json", [("x", "INT")], {"pretty": True}, "'json' cannot be built from pretty"),
        ("avro-confluent", [("x", "INT")], {}, "cannot be built from no options.*schema_id"),
        ("protobuf", None, {"message": dict}, "is not a generated Protobuf message class"),
    ],
    ids=["unknown", "json-columns", "avro-columns", "option", "no-schema-id", "no-message"],
)
def test_registry_names_missing_options_of_a_format(
    name: str, columns: Any, options: dict[str, Any], message: str
) -> None:
    """The error uses the names of the flow's declaration."""
    with pytest.raises(FormatError, match=message):
        build_format(name, columns, **options)
