"""Formats are built by name."""

from __future__ import annotations

from typing import Any

import pytest

from flowcore.errors import FormatError
from flowcore.serializers.formats import (
    build_format,
    format_names,
    register,
    registry,
)


class _Reversed:
    """A user's own format."""

    name = "reversed"

    def encode(self, value: bytes, /) -> bytes:
        return value[::-1]

    def decode(self, data: bytes, /) -> bytes:
        return data[::-1]


def test_registry_takes_formats_of_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are built by name as flowcore's own are."""
    monkeypatch.setattr(registry, "_FORMATS", dict(registry._FORMATS))
    register("reversed", lambda _columns: _Reversed())
    made = build_format("reversed")

    assert "reversed" in format_names()
    assert made.encode(b"ab") == b"ba"
    with pytest.raises(FormatError, match="a value format 'reversed' exists already"):
        register("reversed", lambda _columns: _Reversed())


@pytest.mark.parametrize(
    ("name", "columns", "options", "message"),
    [
        ("xml", None, {}, "value format 'xml' is unknown"),
        ("json", None, {}, "value format 'json' needs columns"),
        ("avro", None, {}, "value format 'avro' needs columns"),
        ("json", [("x", "INT")], {"pretty": True}, "'json' cannot be built from pretty: .*options are: none"),
        (
            "avro",
            [("x", "INT")],
            {"schma": 1},
            "'avro' cannot be built from schma: .*; its options are: schema$",
        ),
        ("protobuf", None, {}, "'protobuf' cannot be built from no options: .* its options are: message"),
        ("avro-confluent", [("x", "INT")], {"schema_id": "7"}, "schema_id='7' is not an id of"),
        ("avro-confluent", [("x", "INT")], {"schema_id": 1, "subject": "s"}, "no registry would be asked"),
        ("protobuf", None, {"message": dict}, "is not a generated Protobuf message class"),
    ],
    ids=[
        "unknown",
        "json-columns",
        "avro-columns",
        "option",
        "misspelt",
        "left-out",
        "text",
        "subject-and-id",
        "no-message",
    ],
)
def test_registry_names_missing_options_of_a_format(
    name: str, columns: Any, options: dict[str, Any], message: str
) -> None:
    """The error uses the names of the flow's declaration."""
    with pytest.raises(FormatError, match=message):
        build_format(name, columns, **options)
