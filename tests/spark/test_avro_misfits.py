"""Rows that Avro cannot hold become JSON with a reason, in SQL as Spark runs it."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from flowcore import KafkaTopic
from flowcore.api.value_formats import format_of, value_schema
from flowcore.spark.frame.sql import quote
from flowcore.spark.topics.values import write_value

pytestmark = pytest.mark.spark


def _shop() -> dict[str, Any]:
    """A schema with types that hold less than the column types that Spark has for them."""
    kind = {"type": "enum", "name": "K", "symbols": ["A", "B"]}
    point = {"type": "record", "name": "P", "fields": [
        {"name": "x", "type": "int"}, {"name": "k", "type": ["null", "K"]}]}  # fmt: skip
    types = {
        "kind": ["null", kind],
        "code": ["null", {"type": "fixed", "name": "F", "size": 2}],
        "text": ["null", "string"],
        "at": ["null", {"type": "long", "logicalType": "timestamp-millis"}],
        "local": ["null", {"type": "long", "logicalType": "local-timestamp-millis"}],
        "point": ["null", point],
        "points": ["null", {"type": "array", "items": "P"}],
        "maybe": ["null", {"type": "map", "values": ["null", "P"]}],
        "id": "long",
    }
    fields = [{"name": name, "type": each} for name, each in types.items()]
    return {"type": "record", "name": "Shop", "fields": fields}


_HELD: dict[str, str] = {
    "kind": "'B'", "code": "X'0001'", "text": "'ż'", "at": "TIMESTAMP'2026-01-01 00:00:00.001'",
    "local": "TIMESTAMP_NTZ'1969-01-01 00:00:00.001'", "point": "named_struct('x', 1, 'k', 'A')",
    "points": "array(named_struct('x', 1, 'k', CAST(NULL AS STRING)))",
    "maybe": "map('a', CAST(NULL AS STRUCT<x: INT, k: STRING>), 'b', named_struct('x', 2, 'k', 'B'))",
    "id": "1L",
}  # fmt: skip
_NOT_HELD: list[tuple[str, str]] = [
    ("kind", "'C'"), ("code", "X'00'"), ("text", "CAST(X'ff' AS STRING)"),
    ("at", "TIMESTAMP'2026-01-01 00:00:00.000001'"), ("local", "TIMESTAMP_NTZ'1969-01-01 00:00:00.000001'"),
    ("point", "named_struct('x', CAST(NULL AS INT), 'k', 'A')"), ("point", "named_struct('x', 1, 'k', 'C')"),
    ("points", "array(named_struct('x', 1, 'k', 'A'), CAST(NULL AS STRUCT<x: INT, k: STRING>))"),
    ("points", "array(named_struct('x', 1, 'k', 'C'))"),
    ("maybe", "map('a', named_struct('x', 1, 'k', 'C'))"),
    ("maybe", "map(CAST(X'ff' AS STRING), named_struct('x', 1, 'k', 'A'))"), ("id", "CAST(NULL AS BIGINT)"),
]  # fmt: skip


def test_row_that_avro_cannot_hold_has_a_reason_and_is_json(live: SparkSession) -> None:
    """Spark's writer would raise, at each start; rows beside it are written."""
    topic = KafkaTopic("t", format="avro", format_options={"schema": _shop()})
    schema = value_schema(topic)
    assert schema
    rows = [_HELD, {name: "NULL" if name != "id" else "2L" for name in _HELD}]
    rows += [_HELD | {name: text} for name, text in _NOT_HELD]
    selects = []
    for place, row in enumerate(rows):
        texts = (f"CAST({row[each.name]} AS {each.type}) AS {each.name}" for each in schema.columns)
        selects.append(f"SELECT {place} AS place, {', '.join(texts)}")
    frame = live.sql(" UNION ALL ".join(selects))
    text, reason = write_value(topic, {name: quote(name) for name in schema.names}, frame)

    found = frame.selectExpr("place", f"{text} AS value", f"{reason} AS reason").orderBy("place").collect()

    assert [row.reason for row in found[:2]] == [None, None]
    decoded = [format_of(topic).decode(bytes(row.value)) for row in found[:2]]
    assert decoded[0]["maybe"] == {"a": None, "b": {"x": 2, "k": "B"}}
    assert decoded[1] == dict.fromkeys(_HELD) | {"id": 2}
    for each, (name, _) in zip(found[2:], _NOT_HELD, strict=True):
        assert each.reason is not None, name
        assert each.reason.startswith(f"cannot be written as avro: column {name!r} ")
        assert bytes(each.value).startswith(b"{")
