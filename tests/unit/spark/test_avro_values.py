"""The SQL text by which Avro is read and written."""

from __future__ import annotations

from typing import Any

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
