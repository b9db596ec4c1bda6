"""The SQL text by which Avro is read and written."""

from __future__ import annotations

from typing import Any

import sqlglot
from sqlglot import exp

from flowcore import KafkaTopic
from flowcore.api.schema import Schema
from flowcore.spark.topics.formats.avro import AvroSql


def _record(**fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": n, "type": kind} for n, kind in fields.items()],
    }


def test_a_writer_may_have_fields_for_which_there_is_no_column() -> None:
    """A flow that does not read them reads its other values; which of them may be null is known."""
    writer = _record(id="long", either=["string", "int"], maybe=["null", "string", "int"], none="null")
    options = {"schema": _record(id="long"), "schema_id": 1, "writers": {2: writer}}
    topic = KafkaTopic("bids", "id BIGINT NOT NULL", format="avro-confluent", format_options=options)

    misfits = " ".join(AvroSql(topic).misfits(Schema.parse("id BIGINT NOT NULL"), "value"))

    assert "`id` IS NULL THEN true" in misfits
    assert "`either` IS NULL THEN true" in misfits
    assert "`maybe` IS NULL" not in misfits
    assert "`none` IS NULL" not in misfits


def test_smaller_columns_are_cast_beside_fields_that_are_no_columns() -> None:
    """A struct is cast field by field, in the order of the Avro schema."""
    options = {"schema": _record(b="int", more=["null", "string"], a=["null", "int"])}
    topic = KafkaTopic("bids", "a TINYINT, b SMALLINT", format="avro", format_options=options)

    found = AvroSql(topic).parse(Schema.parse("a TINYINT, b SMALLINT"), "value")

    assert found.endswith(" AS STRUCT<`b`: SMALLINT, `more`: STRING, `a`: TINYINT>)")


def test_number_of_another_writer_that_is_too_large_is_no_null() -> None:
    """Such a value is not compared with what the column's schema would write."""
    options = {"schema": _record(a=["null", "int"]), "schema_id": 1, "writers": {2: _record(a="int")}}
    topic = KafkaTopic("bids", "a TINYINT", format="avro-confluent", format_options=options)

    own, other = AvroSql(topic).misfits(Schema.parse("a TINYINT"), "value")

    assert "IS NOT NULL" not in own
    assert "OR record.`a` IS NULL AND from_avro(" in other
    assert other.endswith(".`a` IS NOT NULL)")


KIND = {"type": "enum", "name": "K", "symbols": ["A", "B"]}
POINT = _record(x="int", kind=["null", "K"], label=["string", "null"]) | {"name": "P"}


def _bad(**fields: Any) -> dict[str, str]:
    """By column, when its value is not of its Avro type."""
    topic = KafkaTopic("out", format="avro", format_options={"schema": _record(**fields)})
    found = AvroSql(topic).unwritable({name: f"`{name}`" for name in fields})
    if found is None:
        return {}
    cases = sqlglot.parse_one(f"SELECT {found}", dialect="spark").find(exp.Case)
    assert cases is not None
    reasons = {each.this.sql("spark"): each.args["true"].name for each in cases.args["ifs"]}
    ours = {text: reason for text, reason in reasons.items() if not text.endswith(" IS NULL")}
    assert all(" holds a value that is not of its Avro type, " in reason for reason in ours.values())
    return {reason.split("'")[1]: text for text, reason in ours.items()}


def test_rows_are_checked_for_what_spark_fails_to_write_as_avro() -> None:
    """Spark's writer raises for such a value, at each start."""
    found = _bad(
        kind=KIND,
        same=["null", "K"],
        fixed={"type": "fixed", "name": "F", "size": 4},
        text="string",
        at={"type": "long", "logicalType": "timestamp-millis"},
        price={"type": "fixed", "name": "D", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2},
        point=POINT,
        points={"type": "array", "items": ["null", "P"]},
        numbers={"type": "map", "values": "int"},
        maybe={"type": "array", "items": ["int", "null"]},
        id="long",
    )

    wrong = "(_x0.`x` IS NULL) OR (NOT _x0.`kind` IN ('A', 'B')) OR (NOT IS_VALID_UTF8(_x0.`label`))"
    inner = f"NOT _x0 IS NULL AND ({wrong})"
    expected = {
        "kind": "NOT `kind` IN ('A', 'B')",
        "same": "NOT `same` IN ('A', 'B')",
        "fixed": "OCTET_LENGTH(`fixed`) <> 4",
        "text": "NOT IS_VALID_UTF8(`text`)",
        "at": "UNIX_MICROS(CAST(`at` AS TIMESTAMP)) % 1000 <> 0",
        "point": f"EXISTS(ARRAY(`point`), _x0 -> (_x0 IS NULL OR ({inner})))",
        "points": f"EXISTS(`points`, _x0 -> (({inner})))",
        "numbers": "(EXISTS(MAP_KEYS(`numbers`), _x0 -> (_x0 IS NULL OR NOT IS_VALID_UTF8(_x0))) "
        "OR EXISTS(MAP_VALUES(`numbers`), _x0 -> (_x0 IS NULL)))",
    }
    assert found == {name: f"COALESCE({text}, FALSE)" for name, text in expected.items()}


def test_a_row_of_types_that_hold_all_values_is_not_checked() -> None:
    """The check is part of each row's cost."""
    assert (
        _bad(
            id="long",
            price=["null", "double"],
            body="bytes",
            more={"type": "array", "items": ["null", "int"]},
        )
        == {}
    )
